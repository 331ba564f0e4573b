"""Public terms of a secure sum, the clients that take part in each step, and the modular total of their rows."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.graph import Graph, complete_graph, random_circle, shares_needed
from dpfed.aggregation.steps import ProtocolStep
from dpfed.errors import ConfigError, SecureSumAborted

MOST_BITS = 32

FEWEST = 2
"""Least number of clients in a sum: with fewer, no client's row is hidden."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Public terms of one round.

    graph:     clients of the round, with the pairs that share masks
    size:      number of coordinates d of a row
    bits:      b of the ring Z_{2^b}, 1 to 32
    threshold: fraction in (1/2, 1] of a client and its neighbours that must answer to recover the client's secrets; the
               same fraction of all clients must be in the sum
    fewest_rows: number of rows that the sum must contain, whatever the threshold; noise shares are for this number
    session:   16 public bytes that no other round has
    """

    graph: Graph
    size: int
    bits: int
    threshold: float
    fewest_rows: int = FEWEST
    session: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def shares_needed(self, client: int) -> int:
        """Return t of the t-of-n secret sharing of this client's secrets."""
        return shares_needed(len(self.graph.neighbours(client)) + 1, self.threshold)

    def require_all(self, step: ProtocolStep, alive: Collection[int]) -> None:
        """Raise SecureSumAborted if too few clients are alive after the step. Needed are the threshold's fraction
        and, up to the upload step, `fewest_rows`; the replies of the last step do not change the sum."""
        total, came = len(self.graph.circle), len(alive)
        needed = max(shares_needed(total, self.threshold), FEWEST if step is ProtocolStep.UNMASK else self.fewest_rows)
        if came < needed:
            _abort(step, f"{came} of {total} clients answered, {needed} are needed")

    def require_neighbourhood(self, step: ProtocolStep, alive: Collection[int], client: int) -> None:
        """Raise SecureSumAborted unless enough of the holders of shares of this client's secrets are alive."""
        group, needed = self.graph.neighbourhood(client), self.shares_needed(client)
        came = sum(member in alive for member in group)
        if came < needed:
            _abort(step, f"of {len(group)} holders of shares of client {client} {came} answered, {needed} are needed")

    def require_connected(self, survivors: Collection[int]) -> None:
        """Raise SecureSumAborted if the survivors' masks do not connect them into one sum."""
        if not self.graph.is_connected(survivors):
            _abort(
                ProtocolStep.UPLOAD,
                f"{len(survivors)} of {len(self.graph.circle)} clients answered, and more are needed: no masks connect "
                "them into one sum",
            )


def agree_on_terms(
    clients: NDArray[np.int64],
    *,
    size: int,
    bits: int,
    threshold: float,
    neighbours: int | None = None,
    graph_seed: int,
    least: int = FEWEST,
) -> Agreement:
    """Return the terms of a sum over these clients. Raise ConfigError for terms that contradict each other.

    neighbours: k of the k-regular graph drawn from the public `graph_seed`; None: all pairs are neighbours
    """
    ids = [int(client) for client in clients]
    if len(set(ids)) < len(ids) or any(not 0 <= one < 1 << 62 for one in ids):
        raise ConfigError(f"clients of a secure sum: {ids[:8]}...: must be different numbers from 0 to 2^62.")
    if size < 1:
        raise ConfigError(f"size={size}: a secure sum needs at least one coordinate.")
    if not 1 <= bits <= MOST_BITS:
        raise ConfigError(f"bits={bits}: sums are modulo 2^1 to 2^{MOST_BITS}; lower the scale or send fewer values.")
    if not 0.5 < threshold <= 1:
        raise ConfigError(
            f"threshold={threshold:g}: must be above 1/2 and at most 1. At half or below, two halves of the clients "
            "could be sent different messages and give up both secrets of one client."
        )
    graph = complete_graph(clients) if neighbours is None else random_circle(clients, neighbours, graph_seed)
    return Agreement(graph=graph, size=size, bits=bits, threshold=threshold, fewest_rows=max(least, FEWEST))


def _abort(step: ProtocolStep, why: str) -> None:
    raise SecureSumAborted(f"the secure sum ended at step {step}: {why}. Nothing of it may be released.")


_ORDER = list(ProtocolStep)


class StepPlan:
    """Clients of a sum and the steps they reach: a dropped client vanishes before one of the steps."""

    def __init__(self, agreement: Agreement, dropouts: Mapping[int, ProtocolStep]) -> None:
        self._clients = frozenset(agreement.graph.circle)
        self._size = agreement.size
        self._vanish = {int(client): ProtocolStep(step) for client, step in dropouts.items()}
        self._came: set[int] = set()

    def clients_at(self, step: ProtocolStep) -> list[int]:
        """Return the clients that take part in the step, sorted. UPLOAD: those that send a row, in time or late."""
        return sorted(
            client
            for client in self._clients
            if client not in self._vanish or _ORDER.index(self._vanish[client]) > _ORDER.index(step)
        )

    def is_late(self, client: int) -> bool:
        """Return True if the client's row arrives after the upload step is closed."""
        return self._vanish.get(client) is ProtocolStep.LATE

    def accept(self, clients: NDArray[np.int64], rows: NDArray[np.uint32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """Yield the rows [c, d] of clients that may still send. Raise ConfigError for an unknown or repeated client."""
        if rows.shape != (len(clients), self._size) or rows.dtype != np.uint32:
            raise ConfigError(
                f"rows {rows.dtype} {list(rows.shape)} of {len(clients)} clients: must be uint32 "
                f"[{len(clients)}, {self._size}]."
            )
        senders = set(self.clients_at(ProtocolStep.UPLOAD))
        for client, row in zip(map(int, clients), rows, strict=True):
            if client not in self._clients or client in self._came:
                raise ConfigError(f"a row of client {client}: not in this sum, or already added.")
            self._came.add(client)
            if client in senders:
                yield client, row


@dataclass(frozen=True, kw_only=True, eq=False)
class ModularTotal:
    """`total`: uint32 [d], the sum modulo 2^b of the rows of the clients `included_clients`, sorted int64."""

    total: NDArray[np.uint32]
    included_clients: NDArray[np.int64]
