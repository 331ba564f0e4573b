"""Measures in a run's files that show why it learns, or does not: each is public or for the operator only.

Public measures are computed from released files (ledger, metrics) and from the configuration. Operator-only measures
are from diagnostics.jsonl, which no epsilon covers: do not publish them.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.ledger.regular_file import LARGEST_CONFIGURATION
from accounting.require import real
from dpfed.errors import RunError
from dpfed.records.metrics import MetricsLine
from dpfed.records.reading import Unavailable, read_lines, text_of_file
from dpfed.records.round import RoundRecord
from dpfed.report.units import percent, significant

_LONGEST = 300
NOTHING = 0.02
"""Share of what a constant prediction lacks to a perfect one; a model that gains no more has learned nothing."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Measures of a run; None if its files lack one.

    rounds, planned:  numbers of rounds done, and configured
    accuracies, losses: of the rounds that were evaluated
    nothing_learned:  sentence of `nothing_learned`; None for a model that has learned something
    epsilon, budget:  epsilon spent, and allowed
    noise:            L2 norm of the noise in a round's mean update, over the clip norm; 1 is as long as the mean of
                      clipped updates that all agree. Root mean square over rounds
    reach:            how far clipped updates that all agree can take the model, over the norm that it starts with
    typical:          operator-only: the median norm of updates before they are clipped, over the clip norm
    move: operator-only: the median norm of updates, over the norm of the model that the run starts with
    rounding:         operator-only: `RoundRecord.rounding`, the median over rounds
    clipped, broken:  operator-only: the shares of updates that were clipped, and that were not finite
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

    @property
    def noise_over_run(self) -> float | None:
        """Noise of all rounds together: it grows as the root of their number, the agreement of clients as their
        number.
        """
        return None if self.noise is None else self.noise / math.sqrt(max(1, self.rounds))


def evidence_of(folder: Path) -> Evidence:
    """Return the evidence in the folder of a run, finished or not. Raise RunError if it holds no run."""
    try:
        config = tomllib.loads(text_of_file(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        metrics, rounds = read_lines(folder / "metrics.jsonl", MetricsLine, running=True), folder / "diagnostics.jsonl"
        diagnostics = read_lines(rounds, RoundRecord, running=True) if rounds.exists() else []
        if not metrics:
            raise ValueError("no round is finished")
        return _evidence(folder, config, metrics, diagnostics)
    except (Unavailable, ValueError, TypeError, AttributeError, RecursionError, AccountingError) as error:
        raise RunError(
            f"{folder}: is no folder of a run with a round in it ({str(error)[:_LONGEST]}). `dpfed run` makes them."
        ) from None


def nothing_learned(lines: Sequence[MetricsLine]) -> str | None:
    """Return a sentence if the last evaluated model is no better than a constant prediction, else None. Public.

    Labels: the constant is the most frequent label of the test half, as accuracy has it. Other targets: it is their
    mean, whose R2 is 0. Returns None for files without either number, as versions up to 0.3 wrote of labels.
    """
    for line in reversed(lines):
        accuracy, constant, r2 = line.test_accuracy, line.majority_accuracy, line.scores.get("test_r2")
        if accuracy is not None and constant is not None:
            most = constant + NOTHING * (1 - constant)
            return _nothing(accuracy <= most, "accuracy", percent(accuracy), "most frequent label", percent(constant))
        if r2 is not None:
            return _nothing(r2 <= NOTHING, "R2", significant(r2), "mean of the targets", "0")
    return None


def _nothing(holds: bool, score: str, value: str, constant: str, reached: str) -> str | None:
    if not holds:
        return None
    return (
        f"Nothing was learned: the last model has a test {score} of {value}, the {constant} alone has {reached}. "
        f"A gain of at most {NOTHING:.0%} of what the {constant} lacks counts as nothing."
    )


def _evidence(
    folder: Path, config: Mapping[str, Any], metrics: Sequence[MetricsLine], seen: Sequence[RoundRecord]
) -> Evidence:
    last, start = metrics[-1], next((line.probes.before_norm for line in seen if line.probes is not None), None)
    clip, norms = last.clip_norm, _given_values(line.typical_norm for line in seen)
    typical = statistics.median(norms) if norms else None
    rounds, step = len(metrics), _number(config.get("server", {}).get("learning_rate", 1.0))
    return Evidence(
        rounds=rounds,
        planned=config.get("federation", {}).get("rounds"),
        accuracies=_given_values(line.test_accuracy for line in metrics),
        losses=_given_values(line.test_loss for line in metrics),
        nothing_learned=nothing_learned(metrics),
        epsilon=last.epsilon,
        budget=_number(config.get("privacy", {}).get("epsilon")),
        noise=_noise(folder / "ledger.jsonl"),
        reach=clip * rounds * (step or 1.0) / start if clip and start else None,
        typical=typical,
        move=typical * clip / start if typical and clip and start else None,
        rounding=median_rounding(seen),
        clipped=_share([(line.clipped, line.counted) for line in seen]),
        broken=_share([(line.not_finite, line.cohort) for line in seen]),
    )


def median_rounding(seen: Sequence[RoundRecord]) -> float | None:
    """Return the median over rounds of the error by rounding beside a typical update; None for rounds without one."""
    return statistics.median(found) if (found := _given_values(line.rounding for line in seen)) else None


def _noise(file: Path) -> float | None:
    """Return the root mean square, over the ledger's releases, of the noise norm in the mean, in clip norms."""
    if not file.exists():
        return None
    found = []
    for one in Ledger.so_far(file).shared_releases:
        size, divisor = one.detail.get("dimension"), one.detail.get("divided_by")
        if size and divisor and one.noise_std and one.clip_norm:
            found.append((one.noise_std * math.sqrt(size) / divisor / one.clip_norm) ** 2)
    return math.sqrt(statistics.fmean(found)) if found else None


def _share(pairs: Iterable[tuple[int | None, int | None]]) -> float | None:
    """Return the sum of parts over the sum of wholes, over the rounds that have both."""
    known = [(part, whole) for part, whole in pairs if part is not None and whole]
    total = sum(whole for _, whole in known)
    return sum(part for part, _ in known) / total if total else None


def _given_values(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _number(value: object) -> float | None:
    return None if value is None else real("a number", value=value)
