"""A run that goes on for more rounds than it began with: only where nothing else of it follows from their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpfed.config.tables import Config, parse_written
from dpfed.errors import ConfigError, RunError
from dpfed.methods.facts import MethodFacts
from dpfed.methods.goals import PrivacyGoal, goal_of

ROUNDS = "federation.rounds"


def prolonged(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the second configuration is the first with more rounds."""
    then, later = before["federation"]["rounds"], now["federation"]["rounds"]
    return bool(later > then and {**now, "federation": {**now["federation"], "rounds": then}} == dict(before))


def require_same_rounds(before: Mapping[str, Any], config: Config, facts: MethodFacts, goal: object, sent: int) -> None:
    """RunError unless a round of the longer run is a round of the shorter one, under a budget that was there before.

    Claim: whoever looks at the results and then prolongs the run has chosen its length by them. Under a budget that was
    fixed before the first round this is no matter: what is released is a part of what the longest run within the budget
    would release, so its epsilon covers it. Without a budget no number that was stated before does.
    """
    said = f"{ROUNDS}: cannot be prolonged from {before['federation']['rounds']} to {config.federation.rounds}, since"
    if facts.local_training == "pruned":
        raise RunError(f"{said} the sparsity of {facts.name} follows from it. Start a new run.")
    if config.local.schedule in ("cosine", "linear"):
        raise RunError(f"{said} local.schedule={config.local.schedule!r} ends with the last round. Start a new run.")
    if goal is None:
        return
    if not isinstance(goal, PrivacyGoal) or goal.budget is None or config.privacy is None:
        raise RunError(
            f"{said} the run has no budget: its length would be chosen by its results, which its epsilon does not "
            "cover. Start a new run with privacy.epsilon and privacy.noise_multiplier; it ends where either does."
        )
    if config.privacy.noise_schedule is not None:
        raise RunError(f"{said} the parts of privacy.noise_schedule follow from it. Start a new run.")
    try:
        shorter = goal_of(parse_written(before, source="config.toml"), facts, sent)
    except ConfigError as error:
        raise RunError(f"{said} what it began with is refused: {error}") from None
    if not shorter.is_like(goal):
        raise RunError(
            f"{said} its noise follows from the number of rounds (privacy.epsilon alone, privacy.slots or tolerances "
            "by default). Runs that give privacy.noise_multiplier and privacy.epsilon can be prolonged."
        )
