"""Causes why a run does not learn, the likeliest first, and the key to change.

These are rules of thumb with the thresholds below, not theorems: no privacy claim depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accounting.rounding import downwards, upwards
from dpfed.report.evidence import Evidence
from dpfed.report.units import percent, significant

BROKEN = 0.01
"""Threshold for the share of updates that are not finite."""
TOO_FAR, HARDLY = 5.0, 1e-3
"""Thresholds for one client's update over the model it starts from: above, training diverges; below, it hardly
moves.
"""
LOUD = 0.4
"""Threshold for the noise of the whole run, over the sum of clients that all agree."""
IDLE = 0.25
"""Threshold for updates so much shorter than the clip norm that the noise is far too large for them."""
TIED = 0.5
"""Threshold for the distance, over the model's norm, that the model can move."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause, its evidence, and the key to change. `operator_only`: the evidence is covered by no epsilon."""

    cause: str
    words: str
    key: str
    advice: str
    operator_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of the evidence as text."""

    name: str
    value: str
    operator_only: bool = False


def findings_of(found: Evidence) -> list[Cause]:
    """Return the causes, the likeliest first; empty if none was found."""
    rules: tuple[Callable[[Evidence], Cause | None], ...] = (
        _diverges,
        _does_not_begin,
        _clip_too_large,
        _clip_too_small,
        _noise_too_large,
        _budget_spent,
    )
    return [finding for rule in rules if (finding := rule(found)) is not None]


def is_learning(found: Evidence) -> bool | None:
    """Return True if the last evaluation is better than the first, None for fewer than two.

    It uses public numbers only.
    """
    if found.nothing_learned is not None:
        return False
    if len(found.losses) >= 2 and len(found.accuracies) < 2:
        return found.losses[-1] < 0.9 * found.losses[0]
    if len(found.accuracies) < 2:
        return None
    return found.accuracies[-1] > found.accuracies[0] + 0.2 or found.accuracies[-1] > 0.8


def measures_of(found: Evidence) -> list[Measure]:
    """Return the numbers of the evidence as text."""
    planned = "" if found.planned is None else f" of {found.planned:,}"
    measures = [Measure(name="rounds", value=f"{found.rounds:,}{planned}")]
    if found.accuracies:
        measures.append(Measure(name="accuracy", value=_from_to([percent(value) for value in found.accuracies])))
    if found.losses:
        measures.append(Measure(name="test loss", value=_from_to([significant(value) for value in found.losses])))
    if found.epsilon is not None:
        allowed = "" if found.budget is None else f" of {downwards(found.budget)}"
        measures.append(Measure(name="epsilon spent, at most", value=f"{upwards(found.epsilon)}{allowed}"))
    measures += _measures_of_value("noise of a round, over the clip norm", found.noise)
    measures += _measures_of_value("noise of the run, over all that clients could agree on", found.noise_over_run)
    measures += _measures_of_value("reach of clipped updates, over the model's norm", found.reach)
    measures += _measures_of_value("typical update, over the clip norm", found.typical, operator_only=True)
    measures += _measures_of_value("typical update, over the model's norm", found.move, operator_only=True)
    measures += _measures_of_value("rounding to integers, over a typical update", found.rounding, operator_only=True)
    for name, share in (("updates clipped", found.clipped), ("updates not finite", found.broken)):
        if share is not None:
            measures.append(Measure(name=name, value=f"{share:.1%}", operator_only=True))
    return measures


def _measures_of_value(name: str, value: float | None, *, operator_only: bool = False) -> list[Measure]:
    if value is None:
        return []
    return [Measure(name=name, value=significant(value), operator_only=operator_only)]


def _from_to(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _diverges(found: Evidence) -> Cause | None:
    if found.broken is not None and found.broken > BROKEN:
        words, private = f"{found.broken:.1%} of the updates are not finite", True
    elif found.move is not None and found.move > TOO_FAR:
        words, private = f"a typical update is {significant(found.move)} times as long as the model itself", True
    elif found.typical is None and not _is_loud(found) and _grows(found.losses):
        words = f"the test loss grows from {significant(found.losses[0])} to {significant(found.losses[-1])}"
        private = False
    else:
        return None
    return Cause(
        cause="learning rate too large",
        words=f"Local training diverges: {words}.",
        key="local.learning_rate",
        advice="Divide it by 10, then by 3, until updates are shorter than the model.",
        operator_only=private,
    )


def _grows(losses: tuple[float, ...]) -> bool:
    return len(losses) > 1 and losses[-1] > 2 * max(losses[0], 1.0)


def _is_loud(found: Evidence) -> bool:
    return found.noise_over_run is not None and found.noise_over_run >= LOUD


def _does_not_begin(found: Evidence) -> Cause | None:
    if found.move is None or found.move >= HARDLY:
        return None
    return Cause(
        cause="learning rate too small",
        words=f"Clients hardly train: a typical update is {significant(found.move)} of the model's norm.",
        key="local.learning_rate",
        advice="Multiply it by 10, or give clients more steps (local.epochs).",
        operator_only=True,
    )


def _clip_too_large(found: Evidence) -> Cause | None:
    if found.typical is None or found.noise is None or found.typical >= IDLE:
        return None
    if found.noise / found.typical < 1:
        return None
    return Cause(
        cause="clip norm too large",
        words=f"A typical update is {significant(found.typical)} of the clip norm, to which noise is scaled. In a "
        f"round it is {significant(found.noise / found.typical)} times as long as what clients could agree on.",
        key="privacy.clip_norm",
        advice=f"Multiply it by {significant(found.typical, 2)}; epsilon stays the same. Choose it on public data, "
        "or by [privacy.adaptive]: this number looked at private updates.",
        operator_only=True,
    )


def _clip_too_small(found: Evidence) -> Cause | None:
    if found.reach is None or found.reach >= TIED:
        return None
    typical = "" if found.typical is None else f" Updates are typically {significant(found.typical)} clip norms long."
    return Cause(
        cause="clip norm too small",
        words="Clipped updates that all agree, in all rounds, take the model no further than "
        f"{significant(found.reach)} of its own norm.{typical}",
        key="privacy.clip_norm",
        advice="Multiply it by 10, or server.learning_rate as much; epsilon stays the same.",
        operator_only=found.typical is not None,
    )


def _noise_too_large(found: Evidence) -> Cause | None:
    over_run = found.noise_over_run
    if not _is_loud(found) or over_run is None or found.noise is None:
        return None
    return Cause(
        cause="noise too large",
        words=f"The noise of a round is {significant(found.noise)} times as long as the mean of clipped updates could "
        f"be, and {significant(over_run)} of it is left after {found.rounds:,} rounds.",
        key="federation.cohort",
        advice="Use more clients a round, fewer coordinates (method.keep), a larger privacy.epsilon, or a smaller "
        "network; `dpfed budget` prints epsilon for each.",
    )


def _budget_spent(found: Evidence) -> Cause | None:
    if found.planned is None or found.budget is None or found.epsilon is None:
        return None
    per_round = found.epsilon / max(1, found.rounds)
    if found.rounds >= found.planned or found.epsilon + per_round < found.budget:
        return None
    return Cause(
        cause="budget spent",
        words=f"Epsilon {upwards(found.epsilon)} of {downwards(found.budget)} was spent in {found.rounds:,} of "
        f"{found.planned:,} rounds.",
        key="privacy.noise_multiplier",
        advice="Leave it out: it is then calibrated so that all rounds fit the budget. Or plan fewer rounds.",
    )
