"""Batches of local training: rows of the data set for each batch of each client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting.cohorts import uniform_threshold
from dpfed import replayed
from dpfed.data.partition import Holdings
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The batches of c clients, padded to a common number of steps S and batch size B.

    samples:  int64 [c, S, B], rows of the training half. Padding repeats the batch's first real sample, so a padded
              batch holds no number that is not a real sample's.
    real:     bool [c, S, B], false at padding
    steps:    int64 [c], number of real batches of each client; the first steps[i] batches of client i are real
    expected: int64 [c], expected batch sizes if batches are Poisson samples; a batch may then be empty
    """

    samples: NDArray[np.int64]
    real: NDArray[np.bool_]
    steps: NDArray[np.int64]
    expected: NDArray[np.int64] | None = None

    def of(self, rows: NDArray[np.int64]) -> Schedule:
        """Return the batches of the clients at the given positions in 0 .. c-1, without expected sizes."""
        return Schedule(samples=self.samples[rows], real=self.real[rows], steps=self.steps[rows])


@dataclass(frozen=True, kw_only=True)
class PoissonBatches:
    """Batches by Poisson sampling: with n records, each is in a batch with probability q = min(1, batch_size / n).

    Draws are independent. A round has `steps` batches, or ceil(epochs / q); exactly one of the two is given. A record's
    uniform number depends on (round, client, step, the record's position in the client's data). It does not depend on
    the number of records or of steps.
    """

    batch_size: int
    epochs: int | None = None
    steps: int | None = None

    def expected(self, size: int) -> int:
        """Return the expected batch size q n."""
        return min(self.batch_size, size)

    def probability(self, size: int) -> float:
        """Return the probability q, for size at least 1."""
        return self.expected(size) / size

    def count(self, size: int) -> int:
        """Return the number of batches of a round; 0 for a client without records."""
        if size == 0:
            return 0
        return self.steps if self.steps is not None else -(-(self.epochs or 0) * size // self.expected(size))

    def draw(self, partition: Holdings, clients: NDArray[np.int64], randomness: Randomness, *, number: int) -> Schedule:
        """Return the batches of `clients` [c] in a round."""
        drawn = [self._client_batches(partition.of(int(client)), int(client), randomness, number) for client in clients]
        counts = np.array([len(batches) for batches in drawn], dtype=np.int64)
        width = max((len(batch) for batches in drawn for batch in batches), default=0)
        shape = (len(clients), int(counts.max(initial=0)), max(width, 1))
        samples, real = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        for place, batches in enumerate(drawn):
            for step, batch in enumerate(batches):
                samples[place, step] = batch[0] if len(batch) else 0
                samples[place, step, : len(batch)] = batch
                real[place, step, : len(batch)] = True
        expected = np.minimum(partition.sizes[clients], self.batch_size)
        return Schedule(samples=samples, real=real, steps=counts, expected=expected)

    def _client_batches(
        self, rows: NDArray[np.int64], client: int, randomness: Randomness, number: int
    ) -> list[NDArray[np.int64]]:
        size, count = len(rows), self.count(len(rows))
        if count == 0:
            return []
        drawn = (randomness.uniform(size, "local.records", number, client, step) for step in range(count))
        batches = [rows[uniforms < uniform_threshold(self.probability(size))] for uniforms in drawn]
        replay = replayed.current_replay()
        return batches if replay is None else [replay.batch(batch) for batch in batches]


def count_steps(
    sizes: NDArray[np.int64], *, batch_size: int, epochs: int | None, steps: int | None
) -> NDArray[np.int64]:
    """Return the local steps [c] of clients with sizes [c]: epochs * ceil(size / batch_size), or `steps`; 0 without
    samples.
    """
    if epochs is not None:
        return epochs * -(-sizes // batch_size)
    return np.where(sizes > 0, np.int64(steps or 0), np.int64(0))


def draw_schedule(
    partition: Holdings,
    clients: NDArray[np.int64],
    *,
    batch_size: int,
    epochs: int | None,
    steps: int | None,
    number: int,
    seeds: Seeds,
    purpose: str,
) -> Schedule:
    """Return the batches of `clients` [c] in a round, with samples in a new order every epoch.

    The last batch of an epoch may be short. A client's batches depend only on (seeds, purpose, round, its id).
    Exactly one of epochs and steps is given.
    """
    sizes = partition.sizes[clients]
    counts = count_steps(sizes, batch_size=batch_size, epochs=epochs, steps=steps)
    width = min(batch_size, int(sizes.max(initial=1)))
    shape = (len(clients), int(counts.max(initial=0)), width)
    samples, real = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    for size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == size)
        count = int(counts[rows[0]])
        places, filled = _shuffled_batches(seeds, purpose, number, clients[rows], int(size), count, width)
        samples[rows, :count] = partition.rows_at(clients[rows], places)
        real[rows, :count] = filled
    return Schedule(samples=samples, real=real, steps=counts)


def _shuffled_batches(
    seeds: Seeds, purpose: str, number: int, ids: NDArray[np.int64], size: int, count: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the samples' positions in clients of equal size, and the mask of real ones: [len(ids), count, width]."""
    batches = -(-size // width)
    epochs = -(-count // batches)
    order = np.argsort(seeds.keys(purpose, number, ids, (epochs, size)), axis=-1, kind="stable")
    places = np.zeros((len(ids), epochs, batches * width), dtype=np.int64)
    places[..., :size] = order
    places = places.reshape(len(ids), epochs * batches, width)[:, :count]
    real = np.tile((np.arange(batches * width) < size).reshape(batches, width), (epochs, 1))[:count]
    return np.where(real, places, places[..., :1]), np.broadcast_to(real, places.shape)
