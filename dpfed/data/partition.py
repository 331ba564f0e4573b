"""Partitions of the training samples among clients.

A partition assigns the positions of samples to clients, from the public seed. It defines the federated data set of a
guarantee, whose neighbours differ in one client or record of the partition; it is not part of the mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, DataError


class Holdings(Protocol):
    """Rows of the training half that each client holds: a `Partition`, or a rule for one (`population.Resampled`)."""

    @property
    def clients(self) -> int: ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples of each client, int64 [clients]."""

    @property
    def total(self) -> int:
        """Number of samples of all clients together."""

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the rows of one client."""

    def rows_at(self, clients: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of clients [c] at positions [c, ...] among their samples."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Partition of samples: client i holds the samples indices[offsets[i] : offsets[i + 1]].

    indices: int64 [samples], rows of the training half
    offsets: int64 [clients + 1], from 0 to len(indices), never decreasing; two equal offsets in a row are a client
             without samples.
    ids:     public ids of the clients, if the data have any

    Raises DataError if indices and offsets do not fit together.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ids: ClientIds | None = None

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
        """Number of clients, including those without samples."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples of each client, int64 [clients]."""
        return np.diff(self.offsets)

    @property
    def total(self) -> int:
        """Number of samples of all clients together."""
        return len(self.indices)

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the rows that `client` (0 .. clients-1) holds."""
        if not 0 <= client < self.clients:
            raise ConfigError(f"client={client}: this partition has clients 0..{self.clients - 1}. Choose one of them.")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def rows_at(self, clients: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of clients [c] at positions [c, ...] among their samples."""
        starts = self.offsets[clients].reshape(-1, *[1] * (places.ndim - 1))
        rows: NDArray[np.int64] = self.indices[starts + places]
        return rows


def partition_of_lists(rows: Sequence[NDArray[np.int64]]) -> Partition:
    """Return the partition in which client i holds rows[i]."""
    indices = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    return Partition(indices=indices, offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64))


def natural(
    owners: NDArray[np.int64],
    clients: int,
    generator: np.random.Generator,
    *,
    available: int,
    ids: ClientIds | None = None,
) -> Partition:
    """Return the natural partition: owners [N] names the client, from 0 and below `available`, of each row.

    With fewer `clients` than owners, exactly `clients` owners take part, drawn uniformly without replacement. Raises
    ConfigError if there are more `clients` than owners.
    """
    if not 1 <= clients <= available:
        raise ConfigError(
            f"clients={clients}: the data have {available} natural clients. Set federation.clients to a number "
            f"from 1 to {available}."
        )
    chosen = np.arange(available) if clients == available else np.sort(generator.permutation(available)[:clients])
    order = np.argsort(owners, kind="stable").astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=available))])
    dealt = partition_of_lists([order[ends[i] : ends[i + 1]] for i in chosen])
    return dealt if ids is None else replace(dealt, ids=ids.ids_at(chosen))


def iid(samples: int, clients: int, generator: np.random.Generator) -> Partition:
    """Divide all `samples` rows at random among `clients`; sizes differ by at most one.

    Raises ConfigError unless 1 <= clients <= samples.
    """
    if not 1 <= clients <= samples:
        raise ConfigError(
            f"clients={clients}: an iid partition of {samples} samples needs from 1 to {samples} clients, so that each "
            "has at least one sample. Lower clients, or draw samples for each client (data.partition = 'resampled')."
        )
    return partition_of_lists(np.array_split(generator.permutation(samples).astype(np.int64), clients))


_LEAST_UNITS, _MOST_UNITS = 10, 100


def dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, generator: np.random.Generator) -> Partition:
    """Divide each label's samples by shares ~ Dirichlet(alpha, ..., alpha) over clients (Yurochkin et al. 2019).

    Every sample has a client. The smaller alpha is, the fewer clients hold most of a label. Some clients may have no
    samples; shares are not redrawn to avoid that. FedMRN's Non-IID-1 is alpha = 0.3, or 0.2 with 100 classes. Raises
    ConfigError.
    """
    if clients < 1 or not 0 < alpha < float("inf"):
        raise ConfigError(f"clients={clients}, alpha={alpha}: must be at least 1, and positive and finite.")
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for rows in _rows_by_label(labels, generator):
        shares = generator.dirichlet(np.full(clients, alpha))
        for own, part in zip(held, np.split(rows, _share_ends(shares, len(rows))[:-1]), strict=True):
            own.append(part)
    return partition_of_lists([np.concatenate(parts) for parts in held])


def some_labels(labels: NDArray[np.int64], clients: int, each: int, generator: np.random.Generator) -> Partition:
    """Assign `each` labels to each client; each label's samples are divided evenly among all clients that have it.

    One label of a client is assigned in turn, so that enough clients have every label. The others are drawn uniformly
    from the remaining labels (Li et al. 2022). Samples of a label that no client has are not used. FedMRN's Non-IID-2
    is each = 3, or 20 with 100 classes. Raises ConfigError.
    """
    present = np.unique(labels)
    _check_numbers(clients, each, len(present))
    turn = generator.permutation(clients) % len(present)
    has = np.zeros((clients, len(present)), dtype=np.bool_)
    for client in range(clients):
        first = turn[client]
        others = generator.permutation(np.delete(np.arange(len(present)), first))[: each - 1]
        has[client, [first, *others]] = True
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label, rows in enumerate(_rows_by_label(labels, generator)):
        holders = np.flatnonzero(has[:, label]).tolist()
        for holder, part in zip(holders, np.array_split(rows, max(len(holders), 1)), strict=False):
            held[holder].append(part)
    return partition_of_lists([np.concatenate(parts) for parts in held])


def unbalanced(labels: NDArray[np.int64], clients: int, most: int, generator: np.random.Generator) -> Partition:
    """Return FedPM's partition: client n gets the share j_n / (j_1 + ... + j_N) of all samples, of at most `most`
    labels.

    Sizes j_n are uniform in {10, ..., 100} (Isik et al. 2023, section 3.2, c_max).

    The paper does not assign labels to clients. Here clients choose in turn, the largest first: `most` labels at random
    with probability in proportion to each label's remaining samples, then samples from them as evenly as possible. A
    client whose labels run out has less than its share, and remaining samples are not used. With 10 labels and most = 2
    this is about 5% of samples on average, with most = 4 under 1%. Raises ConfigError.
    """
    left = _rows_by_label(labels, generator)
    _check_numbers(clients, most, len(left))
    units = generator.integers(_LEAST_UNITS, _MOST_UNITS + 1, clients)
    wanted = units * len(labels) // units.sum()
    held: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * clients
    for client in np.argsort(-wanted, kind="stable"):
        sizes = np.array([len(rows) for rows in left])
        some = np.flatnonzero(sizes)
        if not len(some):
            break
        count = min(most, len(some))
        chosen = generator.choice(some, count, replace=False, p=sizes[some] / sizes[some].sum())
        takes = _even_counts(int(wanted[client]), sizes[chosen])
        held[client] = np.concatenate([left[i][:take] for i, take in zip(chosen, takes, strict=True)])
        for i, take in zip(chosen, takes, strict=True):
            left[i] = left[i][take:]
    return partition_of_lists(held)


def _check_numbers(clients: int, each: int, present: int) -> None:
    if clients < 1 or not 1 <= each <= present:
        raise ConfigError(
            f"clients={clients}, labels={each}: must be at least one client, and from 1 to {present} labels, the "
            "number that the data have. Change data.labels."
        )


def _rows_by_label(labels: NDArray[np.int64], generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the rows of each label that occurs, in random order."""
    shuffled = generator.permutation(len(labels)).astype(np.int64)
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    return np.split(order, np.cumsum(counts[counts > 0])[:-1])


def _share_ends(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Return the end of each share of `total`; the last end is `total`."""
    ends: NDArray[np.int64] = np.floor(np.cumsum(shares) * total + 0.5).astype(np.int64)
    ends[-1] = total
    return np.minimum(ends, total)


def _even_counts(wanted: int, sizes: NDArray[np.int64]) -> list[int]:
    """Return the number of samples to draw of each label, as evenly as the labels' sizes allow."""
    takes = [0] * len(sizes)
    for place, i in enumerate(np.argsort(sizes, kind="stable")):
        takes[i] = min(int(sizes[i]), wanted // (len(sizes) - place))
        wanted -= takes[i]
    return takes
