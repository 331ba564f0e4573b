"""report.html, audit.png and audit.json of an audited function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from accounting.rounding import downwards, upwards
from dpfed.audit.functions.outcome import FunctionAudit, FunctionTest
from dpfed.audit.round.claims import trade_off
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.errors import RunError
from dpfed.report.figures.audit import Observed, plot_audit
from dpfed.report.figures.inline import ChartGroup
from dpfed.report.page import rendered
from dpfed.run.durable_files import put


def write_function_audit(audit: FunctionAudit, folder: Path) -> None:
    """Write audit.json, audit.png and report.html into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / "audit.json", json.dumps(audit.to_dict(), indent=2, allow_nan=False).encode())
        put(folder / "report.html", _page(audit, _drawn(audit, folder / "audit.png")).encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error.strerror}).") from None


def _page(audit: FunctionAudit, errors: ChartGroup) -> str:
    finds = audit.to_dict()["power"]["epsilon"]
    kind = audit.found_kind[:1].upper() + audit.found_kind[1:]
    found = (
        "So few calls find nothing with probability 90%."
        if finds is None
        else f"{kind} of epsilon {upwards(finds)} or more would have failed with probability 90%, "
        "whatever these calls showed."
    )
    verdict = audit.in_words()
    return rendered(
        "audit_function.html",
        title=f"Audit of {audit.name}",
        audit=audit,
        verdict=verdict[:1].upper() + verdict[1:],
        errors=errors,
        rows=[_row(one, audit.claim.gaussian) for one in audit.tests],
        found=found,
        alarm=f"{1 - audit.confidence:.0%}",
        confidence=f"{audit.confidence:.0%}",
    )


def _row(one: FunctionTest, gaussian: bool) -> dict[str, object]:
    return {
        "pair": one.pair,
        "score": one.score,
        "gap": one.gap,
        "trials": one.trials,
        "bound": downwards(one.lower_bound),
        "gaussian": downwards(one.lower_bound_gdp) if gaussian else "–",
        "rejected": one.rejected,
    }


def _drawn(audit: FunctionAudit, path: Path) -> ChartGroup:
    """Write the figure for print to `path` and return it for a page."""
    epsilons = np.linspace(0.0, 1.3 * min(audit.claim.epsilon, 50.0) + 0.1, 300)
    rates = np.linspace(0.0, 1.0, 401)
    claimed = np.asarray(audit.claim.profile(epsilons))
    pairs = [_observed(one) for one in audit.tests]
    allowed = trade_off(audit.claim.profile, rates)
    return plot_audit(epsilons, claimed, rates, allowed, pairs, path)


def _observed(one: FunctionTest) -> Observed:
    test = one.test
    limits = [
        float(upper_limit(count, trials, alpha=test.alpha / 2))
        for count, trials in ((test.false_positives, test.trials0), (test.false_negatives, test.trials1))
    ]
    return Observed(
        name=one.pair if one.score == "direction" else f"{one.pair} ({one.score})",
        rejected=one.rejected,
        false_positive_rate=test.false_positives / test.trials0,
        false_negative_rate=test.false_negatives / test.trials1,
        fpr_upper=limits[0],
        fnr_upper=limits[1],
    )
