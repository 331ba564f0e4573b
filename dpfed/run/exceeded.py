"""Which budget does not pay for a run's first round, in words."""

from __future__ import annotations

from accounting.caveats import no_round_fits
from accounting.ledger.project import ProjectLedger
from dpfed.methods.goals import PrivacyGoal
from dpfed.methods.records import RecordGoal


def of_the_run(goal: PrivacyGoal | RecordGoal, after: float) -> str:
    """The run's own epsilon, which one round would bring to `after`."""
    table = "local.record" if isinstance(goal, RecordGoal) else "privacy"
    return no_round_fits(
        f"{table}.epsilon",
        allowed=goal.budget or 0.0,
        after=after,
        delta=goal.delta,
        advice=f"{_quieter(goal)} or {table}.epsilon.",
    )


def of_the_project(goal: PrivacyGoal, project: ProjectLedger, why: str) -> str:
    """The budget of a project, which refuses this run's first round."""
    return (
        f"{project.ledger.path} (a project ledger): not even one round fits: {why} {_quieter(goal)}, or do without the "
        "run."
    )


def _quieter(goal: PrivacyGoal | RecordGoal) -> str:
    if isinstance(goal, RecordGoal):
        return "Raise local.record.noise_multiplier"
    return "Lower privacy.clip_norm" if goal.noise_multiplier is None else "Raise privacy.noise_multiplier"
