"""Files report.html, audit.png and audit.json of an audit by trials of a method's round or of a user's function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from accounting.compose.readings import tradeoff
from accounting.rounding import downwards, upwards
from dpfed.audit.outcome import AnyAudit, PairTest
from dpfed.audit.round.claims import Claim
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.audit.verdict import FALSE_ALARM, failed_checks_first, names_of_failed_checks
from dpfed.errors import RunError
from dpfed.report.figures.audit import ObservedErrors, plot_audit
from dpfed.report.figures.inline import ChartGroup, inline_svg
from dpfed.report.page import free_paths, render_page
from dpfed.runs.durable_files import put

_FARTHEST = 50.0
_UNNAMED_SCORES = ("filter", "direction")
"""Scores whose names the figure omits."""


def write_audit(audit: AnyAudit, folder: Path) -> Path:
    """Write report.html, audit.png and audit.json into the folder and return the path of the page.

    Files of a run or of a different claim are kept: the new names are then report-2.html, audit-2.png, audit-2.json.
    RunError if the files cannot be written."""
    subject = f"audit upload {audit.method}: {_claim_text(audit)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page, plot, record = free_paths(folder, "report.html", "audit.png", "audit.json", subject=subject)
        put(record, json.dumps(audit.to_dict(), indent=2, allow_nan=False).encode())
        put(page, _audit_page(audit, _draw_figure(audit, plot), subject).encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error.strerror}). Name another --out.") from None
    return page


def moved_release_text(audit: AnyAudit) -> str:
    """Return a text on the pair that moves the release most beyond its claimed sensitivity; empty if no pair does."""
    known = [(one.moved.factor, one.pair, one.moved.epsilon) for one in audit.tests if one.moved is not None]
    factor, pair, epsilon = max(known, key=lambda one: one[0], default=(0.0, "", None))
    if not factor > 0:
        return ""
    return (
        f"Known score distribution: the client of “{pair}” moves the release by at least {downwards(factor, digits=3)} "
        "times the claimed sensitivity"
        + (
            "."
            if epsilon is None
            else f"; then epsilon is at least {downwards(epsilon)} if everything else is as claimed."
        )
    )


def _claim_text(audit: AnyAudit) -> str:
    claim = audit.claim
    seen = f", {_visible_part(claim.visible_output)}" if isinstance(claim, Claim) else ""
    return f"{claim.description}{seen}, epsilon at most {upwards(claim.epsilon)} at delta {upwards(claim.delta)}"


def _audit_page(audit: AnyAudit, errors: ChartGroup, subject: str) -> str:
    claim, of_round, failed = audit.claim, isinstance(audit.claim, Claim), names_of_failed_checks(audit.checks)
    verdict, finds = audit.as_text(), audit.power.as_text()
    return render_page(
        "audit_round.html" if of_round else "audit_function.html",
        title=f"Audit of one upload: {audit.method}" if of_round else f"Audit of {audit.method}",
        subject=subject,
        audit=audit,
        failed=failed,
        checks=failed_checks_first(audit.checks),
        verdict=verdict[:1].upper() + verdict[1:],
        moved=moved_release_text(audit),
        claim=_claim_text(audit),
        errors=errors,
        rows=[_pair_row(one, claim.is_gaussian) for one in audit.tests],
        found=finds[:1].upper() + finds[1:],
        delta=upwards(claim.delta),
        confidence=f"{audit.confidence:.0%}",
        alarm=f"{1 - audit.confidence:.0%}",
        false_alarm=f"{FALSE_ALARM:g}",
    )


def _visible_part(what: str) -> str:
    return "every upload seen" if what == "uploads" else "only the sum seen"


def _pair_row(one: PairTest, gaussian: bool) -> dict[str, object]:
    test = one.test
    return {
        "pair": one.pair,
        "score": one.score,
        "gap": one.gap,
        "trials": one.trials,
        "errors": f"{test.false_positives:,} of {test.trials0:,}, {test.false_negatives:,} of {test.trials1:,}",
        "bound": downwards(one.lower_bound),
        "gaussian": downwards(one.lower_bound_gdp) if gaussian else "–",
        "rejected": one.rejected,
    }


def _draw_figure(audit: AnyAudit, path: Path) -> ChartGroup:
    """Write the figure to `path` and return its panels for a page."""
    epsilons = np.linspace(0.0, 1.3 * min(audit.claim.epsilon, _FARTHEST) + 0.1, 300)
    rates = np.linspace(0.0, 1.0, 401)
    allowed = tradeoff(audit.claim.profile, rates)
    claimed = np.asarray(audit.claim.profile(epsilons))
    observed = [_observed_errors(one) for one in audit.tests]
    return inline_svg(plot_audit(epsilons, claimed, rates, allowed, observed, path), files=path.name)


def _observed_errors(one: PairTest) -> ObservedErrors:
    test = one.test
    limits = [
        float(upper_limit(count, trials, alpha=test.alpha / 2))
        for count, trials in ((test.false_positives, test.trials0), (test.false_negatives, test.trials1))
    ]
    return ObservedErrors(
        name=one.pair if one.score in _UNNAMED_SCORES else f"{one.pair} ({one.score})",
        rejected=one.rejected,
        false_positive_rate=test.false_positives / test.trials0,
        false_negative_rate=test.false_negatives / test.trials1,
        fpr_upper=limits[0],
        fnr_upper=limits[1],
    )
