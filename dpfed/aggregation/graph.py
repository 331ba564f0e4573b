"""Graph of the clients that share masks and hold shares of each other's secrets, and its risk: probabilities that a
sum is exposed, or cannot be computed."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import ConfigError
from dpfed.seeds import Seeds


@dataclass(frozen=True)
class Graph:
    """Clients in a circle; `neighbours_per_side` clients before a client and as many after it are its neighbours.

    `random_circle` places every client at random, which gives the k-regular graph of Bell, Bonawitz, Gascon, Lepoint,
    Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", 2020. If they cover the circle,
    all clients are neighbours: Bonawitz et al. 2017.
    """

    circle: tuple[int, ...]
    neighbours_per_side: int

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Return the client's neighbours, sorted, without the client itself."""
        return self._all_neighbours[client]

    def neighbourhood(self, client: int) -> tuple[int, ...]:
        """Return the client and its neighbours, sorted: the holders of shares of its secrets."""
        return tuple(sorted((client, *self.neighbours(client))))

    def is_connected(self, survivors: Collection[int]) -> bool:
        """Return True if masks connect all survivors into one sum; otherwise the sums of separate parts would be
        visible.

        A circle with missing clients is disconnected exactly if `neighbours_per_side` clients in a row are missing at
        two or more places.
        """
        places = np.flatnonzero(np.isin(np.array(self.circle), np.array(list(survivors))))
        gaps = np.diff(places, append=places[:1] + len(self.circle))
        return int((gaps > self.neighbours_per_side).sum()) <= 1

    @cached_property
    def _all_neighbours(self) -> dict[int, tuple[int, ...]]:
        count = len(self.circle)
        steps = [step for step in range(-self.neighbours_per_side, self.neighbours_per_side + 1) if step]
        return {
            client: tuple(sorted({self.circle[(place + step) % count] for step in steps} - {client}))
            for place, client in enumerate(self.circle)
        }


def complete_graph(clients: NDArray[np.int64]) -> Graph:
    """Return the graph in which every two clients are neighbours."""
    return Graph(tuple(sorted(map(int, clients))), len(clients) // 2)


def random_circle(clients: NDArray[np.int64], neighbours: int, seed: int) -> Graph:
    """Return a random k-regular graph with k = `neighbours`, a function of the set of clients and the seed.

    A client's position follows from a key of (seed, its id), so one client removed leaves the order of all others. The
    seed is public, and must be chosen independently of which clients are corrupt. Complete if k >= n - 1.
    Raises ConfigError for an odd k, and for a k below log2(n), where random graphs are often disconnected.
    `default_neighbours` is 3 log2(n).
    """
    refuse_few_neighbours(len(clients), neighbours)
    if neighbours >= len(clients) - 1:
        return complete_graph(clients)
    ordered = np.sort(clients)
    keys = Seeds(root=seed).keys("secagg.graph", 0, ordered, ())
    return Graph(tuple(map(int, ordered[np.argsort(keys, kind="stable")])), neighbours // 2)


def refuse_few_neighbours(clients: int, neighbours: int) -> None:
    """Raise ConfigError for a number of neighbours that is odd or too small for the clients."""
    if neighbours < 2 or neighbours % 2:
        raise ConfigError(
            f"neighbours={neighbours}: must be an even number of at least 2 (half of them on either side of a circle). "
            f"For {clients} clients use {default_neighbours(clients)}, or 0 for all."
        )
    if neighbours < min(clients - 1, math.log2(max(clients, 2))):
        raise ConfigError(
            f"neighbours={neighbours} of {clients} clients: below log2({clients}) = {math.log2(clients):.1f} the graph "
            f"is often disconnected, and the sums of its parts visible. Use {default_neighbours(clients)} or more."
        )


def default_neighbours(clients: int) -> int:
    """Return 3 log2(n), rounded up to an even number: 20 for a hundred clients, 30 for a thousand."""
    return 2 * math.ceil(1.5 * math.log2(max(clients, 2)))


def shares_needed(group: int, threshold: float) -> int:
    """Return the number of needed shares in a group of this size: always more than half."""
    return max(math.ceil(threshold * group - 1e-9), group // 2 + 1)
