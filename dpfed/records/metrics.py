"""Record of a round that may be published with the model: a line of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpfed.records.reading import Count, Real, Size, Text


@dataclass(frozen=True, kw_only=True)
class MetricsLine:
    """Line of metrics.jsonl.

    scores:    score by its key: test_accuracy, test_loss, test_NAME, last_test_NAME, validation_NAME; a score is None
    in
               rounds without evaluation
    epsilon:   upper bound for all rounds so far; None in a run without privacy
    clip_norm: clip norm of the next round
    majority_accuracy: test accuracy of always predicting the most frequent label of the test half; None in rounds
               without evaluation
    uplink_megabytes: megabytes that all clients have sent so far
    aborted:   public reason why the round has no result; None if it has one
    """

    round: Count
    scores: Mapping[str, Real | None] = field(default_factory=dict)
    epsilon: Size | None = None
    clip_norm: Size | None = None
    majority_accuracy: Size | None = None
    uplink_megabytes: Size = 0.0
    aborted: Text | None = None

    @property
    def test_accuracy(self) -> float | None:
        return self.scores.get("test_accuracy")

    @property
    def test_loss(self) -> float | None:
        return self.scores.get("test_loss")

    @property
    def has_result(self) -> bool:
        return self.aborted is None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a line of metrics.jsonl."""
        rest = {"epsilon": self.epsilon, "clip_norm": self.clip_norm, "uplink_megabytes": self.uplink_megabytes}
        if self.majority_accuracy is not None:
            rest = {"majority_accuracy": self.majority_accuracy, **rest}
        aborted = {} if self.aborted is None else {"aborted": self.aborted}
        return {"round": self.round, **self.scores, **rest, **aborted}
