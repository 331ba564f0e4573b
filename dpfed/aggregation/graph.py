"""Which clients share masks and hold shares of each other's secrets."""

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
    """Clients in a circle, each the neighbour of the `reach` before and the `reach` behind it.

    `random_circle` makes one with every client at a random place, the k-regular graph of Bell, Bonawitz, Gascon,
    Lepoint, Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", 2020. Where the reach
    goes round, all are neighbours: Bonawitz et al. 2017.
    """

    circle: tuple[int, ...]
    reach: int

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Sorted, without the client itself."""
        return self._all[client]

    def group(self, client: int) -> tuple[int, ...]:
        """The client and its neighbours, sorted: who hold the shares of its secrets."""
        return tuple(sorted((client, *self.neighbours(client))))

    def connected(self, survivors: Collection[int]) -> bool:
        """Whether masks tie all survivors into one sum; otherwise the sums of the parts would be visible.

        A circle of which clients are gone falls apart exactly where `reach` in a row are gone at two places or more.
        """
        places = np.flatnonzero(np.isin(np.array(self.circle), np.array(list(survivors))))
        gaps = np.diff(places, append=places[:1] + len(self.circle))
        return int((gaps > self.reach).sum()) <= 1

    @cached_property
    def _all(self) -> dict[int, tuple[int, ...]]:
        count = len(self.circle)
        steps = [step for step in range(-self.reach, self.reach + 1) if step]
        return {
            client: tuple(sorted({self.circle[(place + step) % count] for step in steps} - {client}))
            for place, client in enumerate(self.circle)
        }


def complete(clients: NDArray[np.int64]) -> Graph:
    """Every two clients are neighbours."""
    return Graph(tuple(sorted(map(int, clients))), len(clients) // 2)


def random_circle(clients: NDArray[np.int64], neighbours: int, seed: int) -> Graph:
    """A random k-regular graph with k = `neighbours`, the same for the same set of clients and seed.

    A client's place follows a key of (seed, its id), so that one client less leaves all others in their order. The seed
    is public, and must be chosen without regard to who is corrupt. Complete where k >= n - 1.
    ConfigError for an odd k, and for one below log2(n), where random graphs fall apart; `graph_risk` says what a k is
    worth, `default_neighbours` is 3 log2(n).
    """
    refuse_few_neighbours(len(clients), neighbours)
    if neighbours >= len(clients) - 1:
        return complete(clients)
    ordered = np.sort(clients)
    keys = Seeds(root=seed).keys("secagg.graph", 0, ordered, ())
    return Graph(tuple(map(int, ordered[np.argsort(keys, kind="stable")])), neighbours // 2)


def refuse_few_neighbours(clients: int, neighbours: int) -> None:
    """ConfigError for a number of neighbours that is odd or too small for so many clients."""
    if neighbours < 2 or neighbours % 2:
        raise ConfigError(
            f"neighbours={neighbours}: must be an even number of at least 2 (half of them on either side of a circle). "
            f"For {clients} clients take {default_neighbours(clients)}, or 0 for all."
        )
    if neighbours < min(clients - 1, math.log2(max(clients, 2))):
        raise ConfigError(
            f"neighbours={neighbours} of {clients} clients: below log2({clients}) = {math.log2(clients):.1f} the graph "
            f"easily falls into parts whose sums could be seen. Take {default_neighbours(clients)} or more."
        )


def default_neighbours(clients: int) -> int:
    """3 log2(n), rounded up to an even number: 20 for a hundred clients, 30 for a thousand."""
    return 2 * math.ceil(1.5 * math.log2(max(clients, 2)))
