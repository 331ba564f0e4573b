"""Which candidate is taken: by validation accuracy alone. The test half is never looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.sweep.grid import Choice

RULE = "highest validation accuracy after the last round of one run; of equal ones the first in the file"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What was chosen for a row at a point: `values` of the best candidate, None where a candidate's run failed."""

    row: str
    at: Mapping[str, str]
    values: Mapping[str, Any] | None
    scores: tuple[tuple[Mapping[str, Any], float | None], ...]
    seed: int
    validation: int

    def to_dict(self) -> dict[str, Any]:
        """The entry of tuned.json."""
        return {
            "row": self.row,
            "at": dict(self.at),
            "chosen": None if self.values is None else dict(self.values),
            "scores": [{"values": dict(values), "validation_accuracy": score} for values, score in self.scores],
            "rule": RULE,
            "seed": self.seed,
            "validation_samples": self.validation,
        }


def pick(choice: Choice, summaries: Sequence[Mapping[str, Any] | None]) -> Tuned:
    """The best of the candidates whose runs ended with these summaries (None: it failed)."""
    scores = [None if summary is None else summary["validation_accuracy"] for summary in summaries]
    given = [score for score in scores if score is not None]
    best = scores.index(max(given)) if len(given) == len(scores) else None
    config = choice.runs[0].config
    return Tuned(
        row=choice.row,
        at=choice.at,
        values=None if best is None else choice.values[best],
        scores=tuple(zip(choice.values, scores, strict=True)),
        seed=config.run.seed,
        validation=config.data.validation or 0,
    )
