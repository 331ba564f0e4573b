"""What the files of a run say about why it learns, or does not: measures, each public or for the operator alone.

Public: from what was released (ledger, metrics) and from the configuration. Operator-only: from diagnostics.jsonl,
which no epsilon covers; do not publish what is computed from it.
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.ledger import Release
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_LINES, read_text
from accounting.require import real
from dpfed.errors import RunError

_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """None where the files do not say it.

    rounds, planned:  done, and configured
    accuracies, losses: of the rounds that were evaluated
    epsilon, budget:  spent, and allowed
    noise:            L2 norm of the noise in a round's mean update, over the clip norm; 1 is as long as the mean of
                      clipped updates that all agree. Root mean square over rounds
    reach:            how far clipped updates that all agree can take the model, over the norm that it starts with
    typical:          operator-only: the median norm of updates before they are clipped, over the clip norm
    move:             operator-only: the same, over the norm of the model that the run starts with
    clipped, broken:  operator-only: the shares of updates that were clipped, and that were not finite
    """

    rounds: int
    planned: int | None
    accuracies: tuple[float, ...]
    losses: tuple[float, ...]
    epsilon: float | None
    budget: float | None
    noise: float | None
    reach: float | None
    typical: float | None
    move: float | None
    clipped: float | None
    broken: float | None

    @property
    def noise_over_run(self) -> float | None:
        """Of all rounds together: noise adds up as the root of their number, what clients agree on as their number."""
        return None if self.noise is None else self.noise / math.sqrt(max(1, self.rounds))


def evidence_of(folder: Path) -> Evidence:
    """From the folder of a run that is finished or not. RunError where there is none."""
    try:
        config = tomllib.loads(read_text(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        metrics = _lines(folder / "metrics.jsonl")
        diagnostics = _lines(folder / "diagnostics.jsonl") if (folder / "diagnostics.jsonl").exists() else []
        if not metrics:
            raise ValueError("no round is finished")
        return _evidence(folder, config, metrics, diagnostics)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, AccountingError) as error:
        words = f"has no {error}" if isinstance(error, KeyError) else str(error)[:_LONGEST]
        raise RunError(
            f"{folder}: is no folder of a run with a round in it ({words}). `dpfed run` makes them."
        ) from None


def _evidence(
    folder: Path, config: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], seen: Sequence[Mapping[str, Any]]
) -> Evidence:
    clip = _number(metrics[-1].get("clip_norm"))
    start = _start_norm(seen)
    typical = _median(seen, "typical_norm")
    rounds, step = len(metrics), _number(config.get("server", {}).get("learning_rate", 1.0))
    return Evidence(
        rounds=rounds,
        planned=config.get("federation", {}).get("rounds"),
        accuracies=_values(metrics, "test_accuracy"),
        losses=_values(metrics, "test_loss"),
        epsilon=_number(metrics[-1].get("epsilon")),
        budget=_number(config.get("privacy", {}).get("epsilon")),
        noise=_noise(folder / "ledger.jsonl"),
        reach=clip * rounds * (step or 1.0) / start if clip and start else None,
        typical=typical,
        move=typical * clip / start if typical and clip and start else None,
        clipped=_share(seen, "clipped", "counted"),
        broken=_share(seen, "not_finite", "cohort"),
    )


def _noise(file: Path) -> float | None:
    """Root mean square over the ledger's releases of the noise norm in the mean, in clip norms."""
    if not file.exists():
        return None
    found = []
    for one in Ledger.so_far(file).releases:
        size, divisor = one.detail.get("dimension"), one.detail.get("divided_by")
        if isinstance(one, Release) and size and divisor and one.noise_std and one.clip_norm:
            found.append((one.noise_std * math.sqrt(size) / divisor / one.clip_norm) ** 2)
    return math.sqrt(statistics.fmean(found)) if found else None


def _start_norm(seen: Sequence[Mapping[str, Any]]) -> float | None:
    probes = [line["probes"] for line in seen if line.get("probes")]
    return _number(probes[0].get("before_norm")) if probes else None


def _share(seen: Sequence[Mapping[str, Any]], part: str, whole: str) -> float | None:
    pairs = [(line[part], line[whole]) for line in seen if line.get(part) is not None and line.get(whole)]
    total = sum(_number(count) or 0.0 for _, count in pairs)
    return sum(_number(count) or 0.0 for count, _ in pairs) / total if total else None


def _median(seen: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _values(seen, key)
    return statistics.median(values) if values else None


def _values(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[float, ...]:
    return tuple(value for line in lines if (value := _number(line.get(key))) is not None)


def _number(value: object) -> float | None:
    return None if value is None else real("a number", value=value)


def _lines(file: Path) -> list[dict[str, Any]]:
    """Whole lines; what a running process is writing is left out."""
    lines = [json.loads(line) for line in read_text(file, at_most=LARGEST_LINES).split("\n")[:-1]]
    if not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"{file.name}: a line is not that of a round")
    return lines
