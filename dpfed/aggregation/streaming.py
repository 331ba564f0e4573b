"""Whose turn it still is: which clients reach a step, and whose rows have come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.agreement import Agreement
from dpfed.aggregation.steps import ProtocolStep
from dpfed.errors import ConfigError

_ORDER = list(ProtocolStep)


class Turns:
    """The clients of a sum, each with the step before which it vanishes, or none."""

    def __init__(self, agreement: Agreement, dropouts: Mapping[int, ProtocolStep]) -> None:
        self._clients = frozenset(agreement.graph.circle)
        self._size = agreement.size
        self._vanish = {int(client): ProtocolStep(step) for client, step in dropouts.items()}
        self._came: set[int] = set()

    def reach(self, step: ProtocolStep) -> list[int]:
        """Clients that take part in the step, sorted. UPLOAD: those who send an input, in time or late."""
        return sorted(
            client
            for client in self._clients
            if client not in self._vanish or _ORDER.index(self._vanish[client]) > _ORDER.index(step)
        )

    def is_late(self, client: int) -> bool:
        """Whether its input comes after the close of the step."""
        return self._vanish.get(client) is ProtocolStep.LATE

    def take(self, clients: NDArray[np.int64], rows: NDArray[np.uint32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """The rows [c, d] of those who still send one. ConfigError for a client that is unknown or came before."""
        if rows.shape != (len(clients), self._size) or rows.dtype != np.uint32:
            raise ConfigError(
                f"rows {rows.dtype} {list(rows.shape)} of {len(clients)} clients: must be uint32 "
                f"[{len(clients)}, {self._size}]."
            )
        senders = set(self.reach(ProtocolStep.UPLOAD))
        for client, row in zip(map(int, clients), rows, strict=True):
            if client not in self._clients or client in self._came:
                raise ConfigError(f"a row of client {client}: not one of this sum's clients, or its second.")
            self._came.add(client)
            if client in senders:
                yield client, row
