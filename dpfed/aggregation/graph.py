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
    Raises ConfigError for an odd k, and for a k below log2(n), where random graphs are often disconnected. `graph_risk`
    computes the risk of a k; `default_neighbours` is 3 log2(n).
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


@dataclass(frozen=True, kw_only=True)
class GraphRisk:
    """Probabilities over the random graph, for sets of corrupt and dropped clients that do not depend on the graph.

    overheard: some honest client has t corrupt neighbours, who with the server learn its secrets (upper bound)
    split:     the masks of honest survivors form two or more separate parts, whose sums the server learns (exact)
    stuck:     a needed secret of some client has fewer than t holders left, and the sum is aborted (upper bound)

    `overheard` and `split` are risks to privacy; `stuck` is the risk of an aborted sum.
    """

    overheard: float
    split: float
    stuck: float


def graph_risk(*, clients: int, neighbours: int, threshold: float, corrupt: float, dropout: float) -> GraphRisk:
    """Compute the three conditions of Bell et al. 2020 on a good graph (semi-honest), for a circle in random order.

    corrupt, dropout: fractions of the n clients that collude with the server, and that drop out after they have sent
    their shares; in the worst case these are different clients. Rounded down to whole clients.

    A client's k neighbours are a uniformly random k-subset of the others, so the number of corrupt or dropped clients
    among them is hypergeometric; `overheard` and `stuck` are sums of exact tails over the clients (union bound). Let m
    of the n clients of a circle be missing, each survivor connected to the k/2 before and after it. The circle is
    disconnected if and only if k/2 in a row are missing at two or more places: counted by inclusion and exclusion over
    the gaps. Integer arithmetic throughout: no rounding before the last division.
    """
    _refuse_parameters(clients, neighbours, corrupt, dropout)
    neighbours = min(neighbours, clients - 1)
    bad, gone = math.floor(corrupt * clients + 1e-9), math.floor(dropout * clients + 1e-9)
    needed = shares_needed(neighbours + 1, threshold)
    others = clients - 1
    overheard = _hypergeometric_tail(others, bad, neighbours, needed)
    # A survivor holds a share of its own secrets; a dropped client does not.
    survivor = _hypergeometric_tail(others, gone, neighbours, neighbours + 2 - needed)
    lost = _hypergeometric_tail(others, gone - 1, neighbours, neighbours + 1 - needed) if gone else 0.0
    return GraphRisk(
        overheard=min(1.0, (clients - bad) * overheard),
        split=_split_probability(clients, min(bad + gone, clients), neighbours),
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
    """Return the least even k with overheard + split <= privacy and stuck <= success, or else clients - 1.

    Raises ConfigError if the complete graph does not meet both bounds either.
    """
    choices: list[int] = [*range(2, clients - 1, 2), clients - 1]
    for neighbours in choices:
        risk = graph_risk(clients=clients, neighbours=neighbours, threshold=threshold, corrupt=corrupt, dropout=dropout)
        if risk.overheard + risk.split <= privacy and risk.stuck <= success:
            return neighbours
    raise ConfigError(
        f"threshold={threshold:g} with {corrupt:.0%} of {clients} clients corrupt and {dropout:.0%} dropped: no graph "
        "meets the bounds. The threshold must be above the corrupt fraction, and at most the fraction that remains."
    )


def _hypergeometric_tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return P(at least `least` of the drawn are marked), hypergeometric, exact."""
    cases = range(max(least, 0, drawn - population + marked), min(marked, drawn) + 1)
    favourable = sum(math.comb(marked, hit) * math.comb(population - marked, drawn - hit) for hit in cases)
    return favourable / math.comb(population, drawn)


def _split_probability(clients: int, gone: int, neighbours: int) -> float:
    """Return P(k/2 clients in a row are missing at two or more places), exact; `gone` uniformly random clients miss.

    Given that some position is a survivor, the gaps between survivors are a uniformly random composition of `gone` into
    as many terms as survivors. All events here are invariant to that position.
    """
    left, reach = clients - gone, neighbours // 2
    if left < 2 or neighbours >= clients - 1:
        return 0.0
    favourable = sum(
        (1 - runs % 2 * 2) * (runs - 1) * math.comb(left, runs) * math.comb(gone - runs * reach + left - 1, left - 1)
        for runs in range(2, min(left, gone // reach) + 1)
    )
    return favourable / math.comb(gone + left - 1, left - 1)


def _refuse_parameters(clients: int, neighbours: int, corrupt: float, dropout: float) -> None:
    if clients < 2 or neighbours < 1 or (neighbours % 2 and neighbours < clients - 1):
        raise ConfigError(
            f"{clients} clients with {neighbours} neighbours: must be 2 or more, and an even number or all."
        )
    if not (0 <= corrupt < 1 and 0 <= dropout < 1):
        raise ConfigError(f"corrupt={corrupt:g}, dropout={dropout:g}: must be fractions of the clients, in [0, 1).")
