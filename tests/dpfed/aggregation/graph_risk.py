"""Exact risks of a random graph of masks."""

import math
from dataclasses import dataclass

from dpfed.aggregation.cryptography import shares_needed


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
