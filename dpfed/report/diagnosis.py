"""Likely causes why a run does not learn, each with the configuration key to change.

The rules are heuristics with the thresholds below, not theorems: no privacy claim depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accounting.rounding import downwards, upwards
from dpfed.report.evidence import RunEvidence
from dpfed.report.units import percent_text, significant_text

BROKEN_SHARE = 0.01
"""Largest share of updates that may be NaN or infinite before training is said to diverge."""
DIVERGING_UPDATE, TINY_UPDATE = 5.0, 1e-3
"""Thresholds for the norm of a client's update over the norm of its model: divergence above, no progress below."""
LARGE_NOISE = 0.4
"""Threshold for the noise of all rounds, over the sum of clipped updates that all agree."""
SHORT_UPDATE = 0.25
"""Threshold for the norm of a typical update over the clip norm: below it, the noise is unnecessarily large."""
SHORT_REACH = 0.5
"""Threshold for the distance that clipped updates can move the model, over the model's norm."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause, its evidence as text, and the key to change. `operator_only`: no epsilon covers the evidence."""

    cause: str
    words: str
    key: str
    advice: str
    operator_only: bool = False


@dataclass(frozen=True, kw_only=True)
class EvidenceMeasure:
    """A named number of the evidence, as text. `operator_only`: no epsilon covers the number."""

    name: str
    value: str
    operator_only: bool = False


def likely_causes(found: RunEvidence) -> list[Cause]:
    """Return the causes that were found, the likeliest first."""
    rules: tuple[Callable[[RunEvidence], Cause | None], ...] = (
        _failing_code,
        _diverging_training,
        _hardly_trains,
        _clip_too_large,
        _clip_too_small,
        _noise_too_large,
        _spent_budget,
    )
    return [finding for rule in rules if (finding := rule(found)) is not None]


def is_learning(found: RunEvidence) -> bool | None:
    """Return True if the last evaluation is clearly better than the first, None for fewer than two evaluations.

    Only public numbers are used.
    """
    if found.nothing_learned is not None:
        return False
    if len(found.losses) >= 2 and len(found.accuracies) < 2:
        return found.losses[-1] < 0.9 * found.losses[0]
    if len(found.accuracies) < 2:
        return None
    return found.accuracies[-1] > found.accuracies[0] + 0.2 or found.accuracies[-1] > 0.8


def measures_of(found: RunEvidence) -> list[EvidenceMeasure]:
    """Return the numbers of the evidence, each with its name and as text."""
    planned = "" if found.planned is None else f" of {found.planned:,}"
    measures = [EvidenceMeasure(name="rounds", value=f"{found.rounds:,}{planned}")]
    if found.accuracies:
        measures.append(
            EvidenceMeasure(name="accuracy", value=_range_text([percent_text(value) for value in found.accuracies]))
        )
    if found.losses:
        measures.append(
            EvidenceMeasure(name="test loss", value=_range_text([significant_text(value) for value in found.losses]))
        )
    if found.epsilon is not None:
        allowed = "" if found.budget is None else f" of {downwards(found.budget)}"
        measures.append(EvidenceMeasure(name="epsilon spent, at most", value=f"{upwards(found.epsilon)}{allowed}"))
    measures += _measures_of_value("noise of a round, over the clip norm", found.noise)
    measures += _measures_of_value("noise of the run, over the sum of agreeing updates", found.noise_over_run)
    measures += _measures_of_value("reach of clipped updates, over the model's norm", found.reach)
    measures += _measures_of_value("typical update, over the clip norm", found.typical, operator_only=True)
    measures += _measures_of_value("typical update, over the model's norm", found.move, operator_only=True)
    measures += _measures_of_value("rounding to integers, over a typical update", found.rounding, operator_only=True)
    for name, share in (
        ("updates clipped", found.clipped),
        ("updates not finite", found.broken),
        ("trainings that failed", found.failing),
    ):
        if share is not None:
            measures.append(EvidenceMeasure(name=name, value=f"{share:.1%}", operator_only=True))
    return measures


def _measures_of_value(name: str, value: float | None, *, operator_only: bool = False) -> list[EvidenceMeasure]:
    if value is None:
        return []
    return [EvidenceMeasure(name=name, value=significant_text(value), operator_only=operator_only)]


def _range_text(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _failing_code(found: RunEvidence) -> Cause | None:
    if not found.failing:
        return None
    named = ", ".join(f"{name} ({rounds} round{'s' * (rounds > 1)})" for name, rounds in found.failing_clients)
    most = f" Most often: {named}." if named else ""
    return Cause(
        cause="code of the network or the loss fails",
        words=f"The training of {found.failing:.1%} of the clients raised an exception; their updates count as zero."
        f"{most}",
        key="run.on_error",
        advice='Simulate the run with run.on_error = "raise", which shows the exception, and mend the code.',
        operator_only=True,
    )


def _diverging_training(found: RunEvidence) -> Cause | None:
    if found.broken is not None and found.broken > BROKEN_SHARE:
        words, private = f"{found.broken:.1%} of the updates are not finite", True
    elif found.move is not None and found.move > DIVERGING_UPDATE:
        words, private = f"a typical update is {significant_text(found.move)} times as long as the model itself", True
    elif found.typical is None and not _is_noise_large(found) and _loss_grows(found.losses):
        words = f"the test loss grows from {significant_text(found.losses[0])} to {significant_text(found.losses[-1])}"
        private = False
    else:
        return None
    return Cause(
        cause="learning rate too large",
        words=f"Local training diverges: {words}.",
        key="local.learning_rate",
        advice="Divide it by 10, then by 3, until updates have a smaller norm than the model.",
        operator_only=private,
    )


def _loss_grows(losses: tuple[float, ...]) -> bool:
    return len(losses) > 1 and losses[-1] > 2 * max(losses[0], 1.0)


def _is_noise_large(found: RunEvidence) -> bool:
    return found.noise_over_run is not None and found.noise_over_run >= LARGE_NOISE


def _hardly_trains(found: RunEvidence) -> Cause | None:
    if found.move is None or found.move >= TINY_UPDATE:
        return None
    return Cause(
        cause="learning rate too small",
        words=f"Clients hardly train: a typical update is {significant_text(found.move)} of the model's norm.",
        key="local.learning_rate",
        advice="Multiply it by 10, or give clients more steps (local.epochs).",
        operator_only=True,
    )


_UNCOVERED = "This factor was computed from private updates, and no epsilon covers a choice by it."


def _clip_too_large(found: RunEvidence) -> Cause | None:
    if found.typical is None or found.noise is None or found.typical >= SHORT_UPDATE:
        return None
    if found.noise / found.typical < 1:
        return None
    return Cause(
        cause="clip norm too large",
        words=f"A typical update is {significant_text(found.typical)} of the clip norm, to which noise is scaled. In a "
        f"round, noise is {significant_text(found.noise / found.typical)} times as long as a mean of equal updates.",
        key="privacy.clip_norm",
        advice=f"Multiply it by {significant_text(found.typical, 2)}; epsilon stays the same. {_UNCOVERED} "
        "Choose it on public data, or by [privacy.adaptive].",
        operator_only=True,
    )


def _clip_too_small(found: RunEvidence) -> Cause | None:
    if found.reach is None or found.reach >= SHORT_REACH:
        return None
    typical, factor = "", SHORT_REACH / found.reach if found.reach > 0 else 10.0
    advice = f"Multiply it, or server.learning_rate, by {significant_text(factor, 2)}; epsilon stays the same."
    if found.typical is not None and found.typical > 1:
        typical = f" Updates are typically {significant_text(found.typical)} clip norms long."
        advice = (
            f"Multiply it by {significant_text(found.typical, 2)}; epsilon stays the same. {_UNCOVERED} "
            "Choose it on public data, or by [privacy.adaptive]."
        )
    return Cause(
        cause="clip norm too small",
        words="If all clipped updates agreed in all rounds, they would move the model by only "
        f"{significant_text(found.reach)} of the model's norm.{typical}",
        key="privacy.clip_norm",
        advice=advice,
        operator_only=found.typical is not None,
    )


def _noise_too_large(found: RunEvidence) -> Cause | None:
    over_run = found.noise_over_run
    if not _is_noise_large(found) or over_run is None or found.noise is None:
        return None
    return Cause(
        cause="noise too large",
        words=f"The noise of a round is {significant_text(found.noise)} times as long as the mean of clipped updates "
        f"could be. Over {found.rounds:,} rounds together this ratio is {significant_text(over_run)}.",
        key="federation.cohort",
        advice="Use more clients a round, fewer coordinates (method.keep), a larger privacy.epsilon, or a smaller "
        "network; `dpfed budget` prints epsilon for each choice.",
    )


def _spent_budget(found: RunEvidence) -> Cause | None:
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
        advice="Remove the key: the noise is then calibrated so that all rounds fit the budget. Or plan fewer rounds.",
    )
