"""Files audit.html and audit.png of the audit of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accounting.errors import AccountingError
from accounting.rounding import upwards
from dpfed.audit.evidence.cohort_distribution import size_distribution
from dpfed.audit.evidence.noise_evidence import limits_of_ratio, measured_noise
from dpfed.audit.run import RunAudit
from dpfed.audit.verdict import failed_checks_first, names_of_failed_checks
from dpfed.errors import DpfedError, RunError
from dpfed.report.figures.audit_run import CanaryScores, CohortSizes, NoiseRatios, plot_audit
from dpfed.report.figures.inline import ChartGroup, inline_svg
from dpfed.report.page import free_paths, render_page
from dpfed.runs.durable_files import put

_MEANING = {
    "pass": "Nothing in the run's files contradicts its claim.",
    "fail": "The run's files contradict its claim: do not rely on its epsilon.",
    "inconclusive": "At least one check could not be made, so the audit neither supports nor contradicts the claim.",
}
_COLOURS = {"pass": "pass", "fail": "fail", "inconclusive": "unknown"}
_HOLDS = {True: ("yes", "pass"), False: ("no", "fail"), None: ("could not tell", "unknown")}


def write_audit_report(found: RunAudit, out: Path) -> Path:
    """Write audit.html and audit.png into `out` and return the path of the page.

    Files of a different audit are kept: the new names are then audit-2.html and audit-2.png. RunError if the page
    cannot be written."""
    page, subject = out / "audit.html", _audit_subject(found, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        page, plot = free_paths(out, "audit.html", "audit.png", subject=subject)
        seen = _canary_scores(found), _noise_ratios(found), _cohort_sizes(found)
        group = inline_svg(plot_audit(*seen, plot), files=plot.name)
        put(page, _audit_page(found, group, subject).encode())
    except OSError as error:
        raise RunError(f"{page}: cannot be written ({error.strerror}). Name another folder with --out.") from None
    return page


def _audit_subject(found: RunAudit, out: Path) -> str:
    """Return the name of the audited ledger: relative if the report is in the run folder, else an absolute path."""
    own = found.files.path.resolve() == out.resolve()
    return f"audit run {found.files.ledger_name if own else found.files.path.resolve() / found.files.ledger_name}"


def _audit_page(found: RunAudit, group: ChartGroup, subject: str) -> str:
    checks, failed = [], names_of_failed_checks(found.checks)
    for one in failed_checks_first(found.checks):
        holds, colour = _HOLDS[one.passed]
        checks.append({"name": one.name, "holds": holds, "colour": colour, "detail": one.detail})
    return render_page(
        "audit_run.html",
        title=f"Audit: {found.verdict_in_full}{f', {failed}' if failed else ''}",
        subject=subject,
        failed=failed,
        folder=found.files.path.name or str(found.files.path),
        verdict=found.verdict_in_full,
        colour=_COLOURS[found.verdict],
        meaning=_MEANING[found.verdict],
        claimed=_value_text(found.claimed_epsilon),
        delta=_value_text(found.delta),
        recomputed=_value_text(found.recomputed_epsilon),
        alpha=f"{1 - found.confidence:.2g}",
        group=group,
        checks=checks,
        notes=found.notes,
        not_checked=found.not_checked,
        remarks=[remark[:1].upper() + remark[1:] for remark in found.second_opinion[1]],
    )


def _value_text(value: float | None) -> str:
    return "unknown" if value is None else upwards(value)


def _canary_scores(found: RunAudit) -> CanaryScores | None:
    if found.canaries is None:
        return None
    scores, present = found.canaries.scores, found.canaries.present
    return CanaryScores(present=scores[present], absent=scores[~present], shift=found.canaries.shift)


def _noise_ratios(found: RunAudit) -> NoiseRatios | None:
    """Return each round's noise standard deviation over the charged one, with the test's limits for one round."""
    try:
        rounds, _ = measured_noise(found.files)
    except (DpfedError, AccountingError):
        return None
    if not rounds:
        return None
    each = found.alpha_of_each_check / 2 / len(rounds)
    bounds = np.sqrt([limits_of_ratio(one, alpha=each) for one in rounds])
    return NoiseRatios(
        rounds=[one.round for one in rounds],
        ratios=np.sqrt([one.ratio for one in rounds]),
        low=bounds[:, 0],
        high=bounds[:, 1],
    )


def _cohort_sizes(found: RunAudit) -> CohortSizes | None:
    try:
        who = found.files.sampler
        law = size_distribution(who)
        return CohortSizes(
            sizes=[one.cohort for one in found.files.rounds], smallest_size=law.smallest_size, mass=law.mass
        )
    except (DpfedError, AccountingError):
        return None
