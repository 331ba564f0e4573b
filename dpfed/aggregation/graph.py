"""Graph of the clients that share masks and hold shares of each other's secrets, and its risk: the chances that a
sum is exposed, or stuck."""

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
        return self._all_neighbours[client]

    def group(self, client: int) -> tuple[int, ...]:
        """Return the client and its neighbours, sorted: who hold the shares of its secrets."""
        return tuple(sorted((client, *self.neighbours(client))))

    def connected(self, survivors: Collection[int]) -> bool:
        """Return True if masks tie all survivors into one sum; otherwise the sums of the parts would be visible.

        A circle of which clients are gone falls apart exactly where `reach` in a row are gone at two places or more.
        """
        places = np.flatnonzero(np.isin(np.array(self.circle), np.array(list(survivors))))
        gaps = np.diff(places, append=places[:1] + len(self.circle))
        return int((gaps > self.reach).sum()) <= 1

    @cached_property
    def _all_neighbours(self) -> dict[int, tuple[int, ...]]:
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
    """Return a random k-regular graph with k = `neighbours`, the same for the same set of clients and seed.

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
    """Raise ConfigError for a number of neighbours that is odd or too small for the clients."""
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


def shares_needed(group: int, threshold: float) -> int:
    """Return how many of a group of this size are needed: always more than half."""
    return max(math.ceil(threshold * group - 1e-9), group // 2 + 1)


@dataclass(frozen=True, kw_only=True)
class GraphRisk:
    """Chances over the random graph, for sets of corrupt and dropped clients that do not depend on it.

    overheard: some honest client has t corrupt neighbours, who with the server know its secrets (upper bound)
    split:     the masks of honest survivors fall into two parts or more, whose sums the server sees (exact)
    stuck:     some client's secrets that are needed have fewer than t holders left, and the sum ends (upper bound)

    The first two are about privacy, the third about getting a sum at all.
    """

    overheard: float
    split: float
    stuck: float


def graph_risk(*, clients: int, neighbours: int, threshold: float, corrupt: float, dropout: float) -> GraphRisk:
    """Compute the three conditions of Bell et al. 2020 on a good graph (semi-honest), for a circle in random order.

    corrupt, dropout: fractions of the n clients that collude with the server, and that drop out after their shares are
    out; at worst they are different clients. Rounded down to whole clients.

    A client's k neighbours are a uniformly random k-subset of the others: corrupt or dropped ones among them are
    hypergeometric; `overheard` and `stuck` are sums of exact tails over the clients (union bound). A circle with
    m of n places gone, each survivor tied to the k/2 before and behind, is in parts if and only if k/2 in a row are
    gone at two places or more: counted by inclusion and exclusion over the gaps. All integers: no rounding before the
    last division.
    """
    _refuse(clients, neighbours, corrupt, dropout)
    neighbours = min(neighbours, clients - 1)
    bad, gone = math.floor(corrupt * clients + 1e-9), math.floor(dropout * clients + 1e-9)
    needed = shares_needed(neighbours + 1, threshold)
    others = clients - 1
    overheard = _tail(others, bad, neighbours, needed)
    # A survivor holds a share of its own secrets, a client that is gone does not.
    survivor = _tail(others, gone, neighbours, neighbours + 2 - needed)
    lost = _tail(others, gone - 1, neighbours, neighbours + 1 - needed) if gone else 0.0
    return GraphRisk(
        overheard=min(1.0, (clients - bad) * overheard),
        split=_split(clients, min(bad + gone, clients), neighbours),
        stuck=min(1.0, (clients - gone) * survivor + gone * lost),
    )


def least_neighbours(
    *,
    clients: int,
    threshold: float,
    corrupt: float,
    dropout: float,
    privacy: float = 2.0**-40,
    success: float = 2.0**-20,
) -> int:
    """Return the least even k with overheard + split <= privacy and stuck <= success; clients - 1 if none is smaller.

    ConfigError where even all others would not.
    """
    choices: list[int] = [*range(2, clients - 1, 2), clients - 1]
    for neighbours in choices:
        risk = graph_risk(clients=clients, neighbours=neighbours, threshold=threshold, corrupt=corrupt, dropout=dropout)
        if risk.overheard + risk.split <= privacy and risk.stuck <= success:
            return neighbours
    raise ConfigError(
        f"threshold={threshold:g} with {corrupt:.0%} of {clients} clients corrupt and {dropout:.0%} lost: no graph "
        "will do. It must be above the corrupt fraction, and at most what is left when the lost are gone."
    )


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return P(at least `least` of the drawn are marked), hypergeometric, exact."""
    cases = range(max(least, 0, drawn - population + marked), min(marked, drawn) + 1)
    favourable = sum(math.comb(marked, hit) * math.comb(population - marked, drawn - hit) for hit in cases)
    return favourable / math.comb(population, drawn)


def _split(clients: int, gone: int, neighbours: int) -> float:
    """P(two runs or more of k/2 in a row are gone), a uniformly random set of that size being gone, exact.

    Given that some place is left, gaps between survivors are a uniformly random way to write `gone` as a sum of as many
    numbers as there are survivors; all events here are the same for every place.
    """
    left, reach = clients - gone, neighbours // 2
    if left < 2 or neighbours >= clients - 1:
        return 0.0
    favourable = sum(
        (1 - runs % 2 * 2) * (runs - 1) * math.comb(left, runs) * math.comb(gone - runs * reach + left - 1, left - 1)
        for runs in range(2, min(left, gone // reach) + 1)
    )
    return favourable / math.comb(gone + left - 1, left - 1)


def _refuse(clients: int, neighbours: int, corrupt: float, dropout: float) -> None:
    if clients < 2 or neighbours < 1 or (neighbours % 2 and neighbours < clients - 1):
        raise ConfigError(
            f"{clients} clients with {neighbours} neighbours: must be 2 or more, and an even number or all."
        )
    if not (0 <= corrupt < 1 and 0 <= dropout < 1):
        raise ConfigError(f"corrupt={corrupt:g}, dropout={dropout:g}: fractions of the clients, from 0 to below 1.")
