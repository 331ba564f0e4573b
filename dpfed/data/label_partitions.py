"""Partitions in which clients differ by the labels they hold. Every sample goes to one client at most."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfed.data.partition import Partition, of_lists
from dpfed.errors import ConfigError

_LEAST_UNITS, _MOST_UNITS = 10, 100


def dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, generator: np.random.Generator) -> Partition:
    """Each label's samples are divided by shares ~ Dirichlet(alpha, ..., alpha) over clients (Yurochkin et al. 2019).

    Every sample has a client. The smaller alpha, the fewer clients hold most of a label; some may hold nothing at all:
    nothing is drawn anew to avoid that. FedMRN's Non-IID-1 is alpha = 0.3, or 0.2 with 100 classes. Raises ConfigError.
    """
    if clients < 1 or not 0 < alpha < float("inf"):
        raise ConfigError(f"clients={clients}, alpha={alpha}: must be at least 1, and positive and finite.")
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for rows in _rows_by_label(labels, generator):
        shares = generator.dirichlet(np.full(clients, alpha))
        for own, part in zip(held, np.split(rows, _ends(shares, len(rows))[:-1]), strict=True):
            own.append(part)
    return of_lists([np.concatenate(parts) for parts in held])


def some_labels(labels: NDArray[np.int64], clients: int, each: int, generator: np.random.Generator) -> Partition:
    """Each client holds samples of `each` labels, whose samples are shared out evenly among all who have the label.

    One label of a client comes in turn, so that clients in sufficient number hold every label, the others are drawn
    uniformly from the rest (Li et al. 2022). A label that nobody has stays unused. FedMRN's Non-IID-2 is each = 3, or
    20 with 100 classes. Raises ConfigError.
    """
    present = np.unique(labels)
    _check(clients, each, len(present))
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
    return of_lists([np.concatenate(parts) for parts in held])


def unbalanced(labels: NDArray[np.int64], clients: int, most: int, generator: np.random.Generator) -> Partition:
    """FedPM's: client n wants the share j_n / (j_1 + ... + j_N) of all samples, with j_n uniform in {10, ..., 100}, of
    at most `most` labels (Isik et al. 2023, section 3.2, c_max).

    The paper does not say who gets which labels. Here the largest client chooses first: `most` labels by chance in
    proportion to what is left of each, and as evenly from them as they allow. A client whose labels run out holds less
    than its share, and the rest stays unused: with 10 labels and most = 2 some 5% of samples on average, with 4 under
    1%. Raises ConfigError.
    """
    left = _rows_by_label(labels, generator)
    _check(clients, most, len(left))
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
        takes = _evenly(int(wanted[client]), sizes[chosen])
        held[client] = np.concatenate([left[i][:take] for i, take in zip(chosen, takes, strict=True)])
        for i, take in zip(chosen, takes, strict=True):
            left[i] = left[i][take:]
    return of_lists(held)


def _check(clients: int, each: int, present: int) -> None:
    if clients < 1 or not 1 <= each <= present:
        raise ConfigError(
            f"clients={clients}, labels={each}: there must be a client, and from 1 to {present} labels, those that the "
            "data have. Change data.labels."
        )


def _rows_by_label(labels: NDArray[np.int64], generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """The rows of each label that occurs, in random order."""
    shuffled = generator.permutation(len(labels)).astype(np.int64)
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    return np.split(order, np.cumsum(counts[counts > 0])[:-1])


def _ends(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Where each share of `total` ends, the last at `total`."""
    ends: NDArray[np.int64] = np.floor(np.cumsum(shares) * total + 0.5).astype(np.int64)
    ends[-1] = total
    return np.minimum(ends, total)


def _evenly(wanted: int, sizes: NDArray[np.int64]) -> list[int]:
    """So many of each, the smallest pile first: what it lacks the larger ones give."""
    takes = [0] * len(sizes)
    for place, i in enumerate(np.argsort(sizes, kind="stable")):
        takes[i] = min(int(sizes[i]), wanted // (len(sizes) - place))
        wanted -= takes[i]
    return takes
