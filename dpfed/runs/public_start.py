"""Training on public samples before round 1: the start of a run, and the score that the public samples give alone.

Both depend on public samples and public settings only, so that everything computed from them is public, and releases of
later rounds are charged as from any other start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dpfed.clients import Course, LocalTraining
from dpfed.clients.optimisers import Adam
from dpfed.data.samples import Public
from dpfed.errors import ConfigError
from dpfed.runs.evaluate import Objective, evaluate, finite_or_none
from dpfed.seeds import Seeds

_STEPS, _BATCH, _RATE = 1000, 32, 1e-3
"""Training of `score_alone`: fixed, so that no sample chooses it."""


PUBLIC_START_NOTE = (
    "the model starts from training on the public samples: epsilon does not cover server.start_epochs, rates and clip "
    "norms that were chosen by looking at clients' data"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicTraining:
    """Training on a run's public samples by the server, before round 1.

    clients: local training of the clients, whose network, loss and batches are used
    course:  training of what the server broadcasts: weights, or the probabilities of a mask
    edge:    probabilities are kept in [edge, 1 - edge]; None for weights
    """

    clients: LocalTraining
    course: Course
    public: Public
    seeds: Seeds
    edge: float | None = None

    def start(self, broadcast: Tensor, *, epochs: int) -> Tensor:
        """Return the first broadcast [n]: `broadcast` after `epochs` passes over the public samples.

        Raises ConfigError if training diverges.
        """
        batch = self.clients.batch_size
        steps = epochs * -(-len(self.public.labels) // batch)
        moved = self._after(self.course, broadcast, "public.start", steps=steps, batch_size=batch)
        if not moved.isfinite().all():
            raise ConfigError(
                f"server.start='public' with server.start_epochs={epochs}: training on the public samples diverges. "
                "Lower local.learning_rate, or set fewer epochs."
            )
        return moved if self.edge is None else moved.clamp_(self.edge, 1 - self.edge)

    def score_alone(self, initial: Tensor, inputs: Tensor, labels: Tensor, *, objective: Objective) -> float | None:
        """Return the score of the public samples alone on the test half: accuracy, or the loss without classes.

        The run's network starts from weights `initial` [d] and takes 1,000 steps of Adam at rate 0.001 in batches of
        32. Returns None if the score is not finite.
        """
        adam = Adam(size=self.clients.model.size, learning_rate=_RATE)
        weights = self._after(adam, initial, "public.alone", steps=_STEPS, batch_size=_BATCH)
        result = evaluate(self.clients.model, weights, inputs, labels, objective=replace(objective, metrics={}))
        return finite_or_none(result.accuracy if objective.has_accuracy else result.loss)

    def _after(self, course: Course, start: Tensor, purpose: str, *, steps: int, batch_size: int) -> Tensor:
        """Return `start` [n] after `steps` steps on the public samples."""
        training = replace(
            self.clients,
            course=course,
            epochs=None,
            steps=steps,
            batch_size=batch_size,
            record=None,
            precision="float32",
        )
        inputs, labels = self.public.inputs, self.public.labels
        return start + training.train_on(inputs, labels, start, number=0, seeds=self.seeds, purpose=purpose)
