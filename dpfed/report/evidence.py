"""Measures, from a run's files, of whether and why it learns: each is public or for the operator only.

Public measures are computed from released files (ledger, metrics) and the configuration. Operator-only measures are
computed from diagnostics.jsonl, which no epsilon covers: do not publish them.
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_LINES
from accounting.require import real
from dpfed.errors import RunError
from dpfed.participation.members import parse_members
from dpfed.records.metrics import MetricsLine
from dpfed.records.reading import Unavailable, read_lines, text_of_file
from dpfed.records.round import RoundRecord
from dpfed.report.units import percent_text, significant_text
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
    epsilon, budget:  epsilon spent, and epsilon allowed
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
    except (Unavailable, ValueError, TypeError, AttributeError, RecursionError, AccountingError) as error:
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
    clip, norms = last.clip_norm, _given_values(line.typical_norm for line in seen)
    typical = statistics.median(norms) if norms else None
    rounds, step = len(metrics), _optional_number(config.get("server", {}).get("learning_rate", 1.0))
    return RunEvidence(
        rounds=rounds,
        planned=config.get("federation", {}).get("rounds"),
        accuracies=_given_values(line.test_accuracy for line in metrics),
        losses=_given_values(line.test_loss for line in metrics),
        nothing_learned=nothing_learned(metrics),
        epsilon=last.epsilon,
        budget=_optional_number(config.get("privacy", {}).get("epsilon")),
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
