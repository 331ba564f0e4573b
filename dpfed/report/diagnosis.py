"""Diagnosis of a run that does not learn: measures from its files, likely causes, and the key to change for each.

Public measures are computed from released files (ledger, metrics) and the configuration. Operator-only measures are
computed from diagnostics.jsonl, which no epsilon covers: do not publish them.

The rules are heuristics with the thresholds below, not theorems: no privacy claim depends on them.
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_LINES
from accounting.require import count, real
from accounting.rounding import downwards, upwards
from dpfed.config.tables import private_table
from dpfed.errors import RunError
from dpfed.participation.sampling import parse_members
from dpfed.records.reading import Unavailable, read_lines, text_of_file
from dpfed.records.round import MetricsLine, RoundRecord
from dpfed.report.privacy_text import percent_text, significant_text
from dpfed.runs.folder import CLIENT_NAMES

_LONGEST, _MOST_NAMED = 300, 5
NOTHING_SHARE = 0.02
"""A model has learned nothing if it closes at most this share of the gap from a constant to a perfect prediction."""


@dataclass(frozen=True, kw_only=True)
class RunEvidence:
    """Measures of a run; a measure is None if the files do not contain it.

    rounds, planned:  numbers of finished rounds, and of configured rounds
    accuracies, losses: test accuracies and test losses of the evaluated rounds
    nothing_learned:  sentence returned by the function `nothing_learned`, or None
    epsilon, budget:  epsilon spent, and epsilon allowed; table: the table of the configuration that has the latter
    noise:            L2 norm of the noise in a round's mean update, over the clip norm, as root mean square over
                      rounds; at 1 the noise is as long as the mean of clipped updates that all agree
    reach:            distance that clipped updates which all agree can move the model, over the initial model's norm
    typical:          operator-only: the median norm of updates before clipping, over the clip norm
    move:             operator-only: the median norm of updates, over the norm of the initial model
    rounding:         operator-only: the median over rounds of `RoundRecord.rounding`
    clipped, broken:  operator-only: the shares of updates that were clipped, and that were not finite
    failing:          operator-only: the share of clients whose training raised an exception; not part of `broken`
    failing_clients:  operator-only: names (numbers without names) of clients whose training failed in most rounds, each
                      with the number of these rounds
    """

    rounds: int
    planned: int | None
    accuracies: tuple[float, ...]
    losses: tuple[float, ...]
    nothing_learned: str | None
    epsilon: float | None
    budget: float | None
    noise: float | None
    reach: float | None
    typical: float | None
    move: float | None
    rounding: float | None
    clipped: float | None
    broken: float | None
    failing: float | None = None
    failing_clients: tuple[tuple[str, int], ...] = ()
    table: str = "privacy"

    @property
    def noise_over_run(self) -> float | None:
        """Norm of all rounds' noise together, over the sum of clipped updates that all agree: noise / sqrt(rounds)."""
        return None if self.noise is None else self.noise / math.sqrt(max(1, self.rounds))


def evidence_of(folder: Path) -> RunEvidence:
    """Return the evidence in a run folder, finished or not. Raise RunError if the folder holds no run with a round."""
    try:
        config = tomllib.loads(text_of_file(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        metrics, rounds = read_lines(folder / "metrics.jsonl", MetricsLine, running=True), folder / "diagnostics.jsonl"
        diagnostics = read_lines(rounds, RoundRecord, running=True) if rounds.exists() else []
        if not metrics:
            raise ValueError("no round is finished")
        return _run_evidence(folder, config, metrics, diagnostics)
    except (Unavailable, ValueError, TypeError, LookupError, AttributeError, RecursionError, AccountingError) as error:
        raise RunError(
            f"{folder}: is no run folder with a finished round ({str(error)[:_LONGEST]}). Name a folder of `dpfed run`."
        ) from None


def nothing_learned(lines: Sequence[MetricsLine]) -> str | None:
    """Return a sentence if the last evaluated model is no better than a constant prediction, else None. Public.

    For labels the constant is the most frequent label of the test half; for other targets it is their mean, whose R2
    is 0. Returns None if the lines have neither number, as those of labels up to version 0.3.
    """
    for line in reversed(lines):
        accuracy, constant, r2 = line.test_accuracy, line.majority_accuracy, line.scores.get("test_r2")
        if accuracy is not None and constant is not None:
            most = constant + NOTHING_SHARE * (1 - constant)
            return _sentence_if_nothing_learned(
                accuracy <= most, "accuracy", percent_text(accuracy), "most frequent label", percent_text(constant)
            )
        if r2 is not None:
            return _sentence_if_nothing_learned(
                r2 <= NOTHING_SHARE, "R2", significant_text(r2), "mean of the targets", "0"
            )
    return None


def _sentence_if_nothing_learned(holds: bool, score: str, value: str, constant: str, reached: str) -> str | None:
    if not holds:
        return None
    return (
        f"Nothing was learned: the last model has a test {score} of {value}; always predicting the {constant} has "
        f"{reached}. A gain of at most {NOTHING_SHARE:.0%} of the gap to a perfect prediction counts as nothing."
    )


def _run_evidence(
    folder: Path, config: Mapping[str, Any], metrics: Sequence[MetricsLine], seen: Sequence[RoundRecord]
) -> RunEvidence:
    last, start = metrics[-1], next((line.probes.before_norm for line in seen if line.probes is not None), None)
    clients_clip = bool(config.get("privacy"))  # the clip norm of [local.record] bounds gradients, not updates
    clip, norms = last.clip_norm if clients_clip else None, _given_values(line.typical_norm for line in seen)
    typical = statistics.median(norms) if norms else None
    rounds, step = len(metrics), _optional_number(config.get("server", {}).get("learning_rate", 1.0))
    planned = config.get("federation", {}).get("rounds")
    return RunEvidence(
        rounds=rounds,
        planned=None if planned is None else count(rounds=planned),
        accuracies=_given_values(line.test_accuracy for line in metrics),
        losses=_given_values(line.test_loss for line in metrics),
        nothing_learned=nothing_learned(metrics),
        epsilon=last.epsilon,
        budget=_optional_number(private_table(config).get("epsilon")),
        table="privacy" if clients_clip else "local.record",
        noise=_noise_norm(folder / "ledger.jsonl"),
        reach=clip * rounds * (step or 1.0) / start if clip and start else None,
        typical=typical,
        move=typical * clip / start if typical and clip and start else None,
        rounding=median_rounding(seen),
        clipped=_pooled_share([(line.clipped, line.counted) for line in seen]),
        broken=_pooled_share([(max(line.not_finite - line.failed, 0), line.cohort) for line in seen]),
        failing=_pooled_share([(line.failed, line.cohort) for line in seen]),
        failing_clients=_failing_clients(folder, seen, config.get("federation", {}).get("clients", 0)),
    )


def _failing_clients(folder: Path, seen: Sequence[RoundRecord], clients: int) -> tuple[tuple[str, int], ...]:
    """Return the clients whose training failed, by their names if the run recorded them, and in how many rounds."""
    found = Counter(
        client for line in seen if line.failing for client in parse_members(line.failing, clients).tolist()
    ).most_common(_MOST_NAMED)
    file = folder / CLIENT_NAMES
    if not found or not file.exists():
        return tuple((str(client), count) for client, count in found)
    names = json.loads(text_of_file(file, at_most=LARGEST_LINES))
    return tuple((str(names[client])[:_LONGEST], count) for client, count in found)


def median_rounding(seen: Sequence[RoundRecord]) -> float | None:
    """Return the median over rounds of rounding error over the norm of a typical update, or None if no round has it."""
    return statistics.median(found) if (found := _given_values(line.rounding for line in seen)) else None


def _noise_norm(file: Path) -> float | None:
    """Return the noise norm in a round's mean update, over the clip norm: root mean square over the releases."""
    if not file.exists():
        return None
    found = []
    for one in Ledger.so_far(file).shared_releases:
        size, divisor = one.detail.get("dimension"), one.detail.get("divided_by")
        if size and divisor and one.noise_std and one.clip_norm:
            found.append((one.noise_std * math.sqrt(size) / divisor / one.clip_norm) ** 2)
    return math.sqrt(statistics.fmean(found)) if found else None


def _pooled_share(pairs: Iterable[tuple[int | None, int | None]]) -> float | None:
    """Return the sum of parts over the sum of totals, for the rounds that have both; None without such rounds."""
    known = [(part, whole) for part, whole in pairs if part is not None and whole]
    total = sum(whole for _, whole in known)
    return sum(part for part, _ in known) / total if total else None


def _given_values(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _optional_number(value: object) -> float | None:
    return None if value is None else real("a number", value=value)


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
    allowed = "" if found.budget is None else f" of {downwards(found.budget)}"
    public = {
        "rounds": f"{found.rounds:,}{planned}",
        "accuracy": _range_text(found.accuracies, percent_text),
        "test loss": _range_text(found.losses, significant_text),
        "epsilon spent, at most": None if found.epsilon is None else f"{upwards(found.epsilon)}{allowed}",
        "noise of a round, over the clip norm": _text_or_none(found.noise),
        "noise of the run, over the sum of agreeing updates": _text_or_none(found.noise_over_run),
        "reach of clipped updates, over the model's norm": _text_or_none(found.reach),
    }
    of_operator = {
        "typical update, over the clip norm": _text_or_none(found.typical),
        "typical update, over the model's norm": _text_or_none(found.move),
        "rounding to integers, over a typical update": _text_or_none(found.rounding),
        "updates clipped": _text_or_none(found.clipped, "{:.1%}".format),
        "updates not finite": _text_or_none(found.broken, "{:.1%}".format),
        "trainings that failed": _text_or_none(found.failing, "{:.1%}".format),
    }
    return [
        EvidenceMeasure(name=name, value=value, operator_only=texts is of_operator)
        for texts in (public, of_operator)
        for name, value in texts.items()
        if value is not None
    ]


def _text_or_none(value: float | None, as_text: Callable[[float], str] = significant_text) -> str | None:
    return None if value is None else as_text(value)


def _range_text(values: Sequence[float], as_text: Callable[[float], str]) -> str | None:
    """Return the first and the last of several values as text; None without values."""
    ends = values if len(values) < 2 else (values[0], values[-1])
    return " to ".join(map(as_text, ends)) or None


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
    elif (
        found.typical is None
        and not _is_noise_large(found)
        and found.losses[1:]
        and found.losses[-1] > 2 * max(found.losses[0], 1.0)
    ):
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
        key=f"{found.table}.noise_multiplier",
        advice="Remove the key: the noise is then calibrated so that all rounds fit the budget. Or plan fewer rounds.",
    )
