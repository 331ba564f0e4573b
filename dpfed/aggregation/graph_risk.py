"""What a number of neighbours and a threshold are worth: the chances that a sum is exposed, or stuck."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfed.aggregation.agreement import shares_needed
from dpfed.errors import ConfigError


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
    """The three conditions of Bell et al. 2020 on a good graph (semi-honest), for their circle in random order.

    corrupt, dropout: fractions of the n clients that collude with the server, and that are lost after their shares are
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
    """The least even k with overheard + split <= privacy and stuck <= success; all others if no smaller one will do.

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
    """P(at least so many of the drawn are marked), hypergeometric, exact."""
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
