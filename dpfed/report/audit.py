"""report.html and audit.png of an audited upload."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from accounting.rounding import downwards, upwards
from dpfed.audit.round.claims import trade_off
from dpfed.audit.round.round_audit import ENOUGH, NOT_TESTED, PairTest, UploadAudit
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.audit.verdict import FALSE_ALARM
from dpfed.errors import RunError
from dpfed.report.figures.audit import Observed, plot_audit
from dpfed.report.figures.inline import ChartGroup
from dpfed.report.page import rendered
from dpfed.run.durable_files import put


def write_audit(audit: UploadAudit, folder: Path) -> None:
    """Write audit.json, audit.png and report.html into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / "audit.json", json.dumps(audit.to_dict(), indent=2, allow_nan=False).encode())
        put(folder / "report.html", _page(audit, _drawn(audit, folder / "audit.png")).encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error.strerror}).") from None


def verdict_words(audit: UploadAudit) -> str:
    """The verdict in a sentence or two."""
    refuted = [one for one in audit.tests if one.rejected]
    broken = [check.name for check in audit.checks if not check.passed]
    words = []
    if refuted:
        words += [_refuted(one) for one in refuted[:1]]
    if broken:
        words.append(f"Checks that failed: {', '.join(broken)}.")
    if words:
        return " ".join(words)
    found = (
        f"Epsilon {upwards(audit.claim.epsilon)} at delta {upwards(audit.claim.delta)} is claimed; {audit.trials:,} "
        f"trials and {len(audit.checks)} checks found nothing against it, with a pair that reaches "
        f"{audit.score_gap:.3g} of the claimed sensitivity. The trials would have found {audit.power.in_words()}."
    )
    if audit.verdict == "pass":
        return found
    if audit.score_gap < ENOUGH:
        return (
            f"No pair comes nearer to the claimed sensitivity than {audit.score_gap:.3g} of it (at least {ENOUGH:g} is "
            "needed): a claim that just fails would not have been seen."
        )
    return f"{found} That is too little for a pass: noise short by a fifth must be found. More trials may do."


def _refuted(one: PairTest) -> str:
    if not one.test.rejected:
        return f"The client of “{one.pair}” moves the release farther than is claimed."
    return (
        f"The claimed profile is refuted by “{one.pair}”: at epsilon {downwards(one.test.epsilon)} the trials "
        f"need delta of at least {downwards(one.test.seen)}, claimed is {upwards(one.test.claimed)}."
    )


def moved_words(audit: UploadAudit) -> str:
    """What whole scores show, where their law is known; else nothing."""
    known = [one for one in audit.tests if one.moved is not None and one.moved.factor > 0]
    if not known:
        return ""
    best = max(known, key=lambda one: one.moved.factor if one.moved else 0.0)
    assert best.moved is not None
    shows = best.moved.epsilon
    return (
        f"Known law: the client of “{best.pair}” moves the release at least {downwards(best.moved.factor, digits=3)} "
        "times as far as is claimed"
        + ("." if shows is None else f", an epsilon of at least {downwards(shows)} if all else is as claimed.")
    )


def _page(audit: UploadAudit, errors: ChartGroup) -> str:
    claim = audit.claim
    return rendered(
        "audit.html",
        title=f"Audit of one upload: {audit.method}",
        audit=audit,
        audit_not_tested="; ".join(NOT_TESTED),
        verdict=verdict_words(audit),
        moved=moved_words(audit),
        claim=f"{claim.to_dict()['kind']}, {claim.mechanism.adjacency} neighbours, {_seen(claim.seen)}, "
        f"epsilon at most {upwards(claim.epsilon)} at delta {upwards(claim.delta)}",
        errors=errors,
        rows=[_row(one, claim.is_gaussian) for one in audit.tests],
        delta=upwards(claim.delta),
        confidence=f"{audit.confidence:.0%}",
        false_alarm=f"{FALSE_ALARM:g}",
        clients="one upload is looked at" if claim.seen == "uploads" else "the sum is of few clients",
    )


def _seen(what: str) -> str:
    return "every upload seen" if what == "uploads" else "only the sum seen"


def _row(one: PairTest, gaussian: bool) -> dict[str, object]:
    test = one.test
    return {
        "pair": one.pair,
        "score": one.score,
        "gap": one.gap,
        "trials": one.trials,
        "errors": f"{test.false_positives:,} of {test.trials0:,}, {test.false_negatives:,} of {test.trials1:,}",
        "bound": downwards(one.lower_bound) + (f" ({downwards(one.lower_bound_gdp)})" if gaussian else ""),
        "rejected": one.rejected,
    }


def _drawn(audit: UploadAudit, path: Path) -> ChartGroup:
    """Write the figure for print to `path` and return it for a page."""
    epsilons = np.linspace(0.0, 1.3 * audit.claim.epsilon + 0.1, 300)
    rates = np.linspace(0.0, 1.0, 401)
    pairs = [_observed(one, one.test.alpha) for one in audit.tests]
    allowed = trade_off(audit.claim.profile, rates)
    return plot_audit(epsilons, audit.claim.profile(epsilons), rates, allowed, pairs, path)


def _observed(one: PairTest, alpha: float) -> Observed:
    test = one.test
    limits = [
        float(upper_limit(count, trials, alpha=alpha / 2))
        for count, trials in ((test.false_positives, test.trials0), (test.false_negatives, test.trials1))
    ]
    return Observed(
        name=one.pair if one.score == "filter" else f"{one.pair} ({one.score})",
        rejected=one.rejected,
        false_positive_rate=test.false_positives / test.trials0,
        false_negative_rate=test.false_negatives / test.trials1,
        fpr_upper=limits[0],
        fnr_upper=limits[1],
    )
