"""Which candidate is taken: by validation accuracy (or loss) alone. The test half is never looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.sweep.grid import Choice

_ENDING = "after the last round of one run; of equal ones the first in the file"
RULES = {
    "validation_accuracy": f"highest validation accuracy {_ENDING}",
    "validation_loss": f"lowest validation loss {_ENDING}",
}
"""By the score that it looks at: the loss where targets are no classes."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What was chosen for a row at a point: `values` of the best candidate, None where a candidate's run failed;
    `score` is the key of summary.json that was looked at."""

    row: str
    at: Mapping[str, str]
    values: Mapping[str, Any] | None
    scores: tuple[tuple[Mapping[str, Any], float | None], ...]
    seed: int
    validation: int
    score: str = "validation_accuracy"

    def to_dict(self) -> dict[str, Any]:
        """The entry of tuned.json."""
        return {
            "row": self.row,
            "at": dict(self.at),
            "chosen": None if self.values is None else dict(self.values),
            "scores": [{"values": dict(values), self.score: score} for values, score in self.scores],
            "rule": RULES[self.score],
            "seed": self.seed,
            "validation_samples": self.validation,
        }


def pick(choice: Choice, summaries: Sequence[Mapping[str, Any] | None]) -> Tuned:
    """The best of the candidates whose runs ended with these summaries (None: it failed)."""
    best, key, scores = best_of(summaries)
    config = choice.runs[0].config
    return Tuned(
        row=choice.row,
        at=choice.at,
        values=None if best is None else choice.values[best],
        scores=tuple(zip(choice.values, scores, strict=True)),
        seed=config.run.seed,
        validation=config.data.validation or 0,
        score=key,
    )


def best_of(summaries: Sequence[Mapping[str, Any] | None]) -> tuple[int | None, str, list[float | None]]:
    """Which of these runs is best, None where one failed; the score that was looked at; and all scores."""
    of_classes = all(one is None or one["validation_accuracy"] is not None for one in summaries)
    key, best = ("validation_accuracy", max) if of_classes else ("validation_loss", min)
    scores = [None if summary is None else summary.get(key) for summary in summaries]
    given = [score for score in scores if score is not None]
    return scores.index(best(given)) if given and len(given) == len(scores) else None, key, scores
