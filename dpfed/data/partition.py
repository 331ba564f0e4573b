"""Which training samples each client holds.

A partition deals out samples by place, from the public seed: it makes the federated data set that a guarantee is about,
whose neighbours differ in one client or record as dealt out, and is no part of the private mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import ConfigError, DataError


class Holdings(Protocol):
    """Who holds which rows of the training half: a `Partition`, or a rule for one (`resampled.Resampled`)."""

    @property
    def clients(self) -> int: ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client, int64 [clients]."""

    @property
    def total(self) -> int:
        """Samples of all clients together."""

    @property
    def largest_row(self) -> int:
        """No client holds a row beyond it; -1 where nobody holds one."""

    def of(self, client: int) -> NDArray[np.int64]:
        """The rows of one client."""

    def at(self, clients: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of clients [c] at places [c, ...] among their own."""

    def label_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Samples of each label that each client holds, int64 [clients, classes]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Client i holds the samples indices[offsets[i] : offsets[i + 1]].

    indices: int64 [samples], rows of the training half
    offsets: int64 [clients + 1], from 0 to len(indices), never decreasing; equal neighbours are a client
             without samples.

    Raises DataError when the two do not fit together.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, array in (("indices", self.indices), ("offsets", self.offsets)):
            if array.ndim != 1 or array.dtype != np.int64:
                raise DataError(
                    f"{name}: {array.dtype} of shape {array.shape}; a partition's {name} must be int64 in "
                    "one dimension. Convert it."
                )
        ends = self.offsets
        if len(ends) < 2 or ends[0] != 0 or ends[-1] != len(self.indices) or np.any(np.diff(ends) < 0):
            raise DataError(
                f"offsets: {len(ends)} values; a partition's offsets must rise from 0 to "
                f"len(indices)={len(self.indices)}, one more than there are clients. "
                "Build them with numpy.cumsum of the clients' sizes."
            )
        if len(self.indices) and self.indices.min() < 0:
            raise DataError(f"indices: {self.indices.min()} found; rows count from 0. Check the partition.")

    @property
    def clients(self) -> int:
        """Number of clients, those without samples included."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client, int64 [clients]."""
        return np.diff(self.offsets)

    @property
    def total(self) -> int:
        """Samples of all clients together."""
        return len(self.indices)

    @property
    def largest_row(self) -> int:
        """No client holds a row beyond it; -1 where nobody holds one."""
        return int(self.indices.max(initial=-1))

    def of(self, client: int) -> NDArray[np.int64]:
        """The rows that `client` (0 .. clients-1) holds."""
        if not 0 <= client < self.clients:
            raise ConfigError(f"client={client}: this partition has clients 0..{self.clients - 1}. Choose one of them.")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def at(self, clients: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of clients [c] at places [c, ...] among their own."""
        starts = self.offsets[clients].reshape(-1, *[1] * (places.ndim - 1))
        rows: NDArray[np.int64] = self.indices[starts + places]
        return rows

    def label_counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Samples of each label that each client holds, int64 [clients, classes], from labels [N] of all rows."""
        owners = np.repeat(np.arange(self.clients), self.sizes)
        counts = np.bincount(owners * classes + labels[self.indices], minlength=self.clients * classes)
        return counts.reshape(self.clients, classes).astype(np.int64)


def of_lists(rows: Sequence[NDArray[np.int64]]) -> Partition:
    """Client i holds rows[i]."""
    sizes = np.array([len(one) for one in rows], dtype=np.int64)
    indices = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    return Partition(indices=indices, offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]))


def natural(owners: NDArray[np.int64], clients: int, generator: np.random.Generator, *, available: int) -> Partition:
    """Everyone keeps what is theirs: owners [N] says which of the `available` clients holds each row, from 0.

    With fewer `clients` than owners so many of them, drawn uniformly without replacement, and nobody else takes part.
    Raises ConfigError with more.
    """
    if not 1 <= clients <= available:
        raise ConfigError(
            f"clients={clients}: the data have {available} clients in nature. Set federation.clients to a number "
            f"from 1 to {available}."
        )
    chosen = np.arange(available) if clients == available else np.sort(generator.permutation(available)[:clients])
    order = np.argsort(owners, kind="stable").astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=available))])
    return of_lists([order[ends[i] : ends[i + 1]] for i in chosen])


def iid(samples: int, clients: int, generator: np.random.Generator) -> Partition:
    """All `samples` rows dealt at random to `clients`; sizes differ by at most one.

    Raises ConfigError unless 1 <= clients <= samples.
    """
    if not 1 <= clients <= samples:
        raise ConfigError(
            f"clients={clients}: an iid partition of {samples} samples needs from 1 to {samples} clients, so "
            "that each holds at least one sample. Lower clients, or let each draw its own (data.partition = "
            "'resampled')."
        )
    sizes = np.full(clients, samples // clients, dtype=np.int64)
    sizes[: samples % clients] += 1
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    return Partition(indices=generator.permutation(samples).astype(np.int64), offsets=offsets)
