"""The whole protocol in one process: clients and server are objects that pass each other bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.agreement import Agreement
from dpfed.aggregation.client import Client
from dpfed.aggregation.modular_total import ModularTotal
from dpfed.aggregation.server import Server
from dpfed.aggregation.steps import ProtocolStep
from dpfed.aggregation.streaming import Turns
from dpfed.errors import SecureSumAborted, WireError


class ProtocolSum:
    """Bonawitz et al. 2017, semi-honest, over all pairs or over a random k-regular graph (Bell et al. 2020).

    What is run is the protocol: keys are agreed on, secrets shared and recovered, uploads masked, dropouts removed.
    What is shown is its algebra, not secrecy: one process holds both sides.

    agreement: the public terms, with all clients, those who dropped included
    dropouts:  the step before which a client vanishes

    An abort is raised by `close`, at whatever step it came.
    """

    def __init__(self, agreement: Agreement, *, dropouts: Mapping[int, ProtocolStep]) -> None:
        self._turns = Turns(agreement, dropouts)
        self._server = Server(agreement)
        self._late: bytes | None = None
        self._aborted: SecureSumAborted | None = None
        self._clients = {client: Client(agreement, client) for client in self._turns.reach(ProtocolStep.ADVERTISE)}
        try:
            self._agree_on_masks()
        except SecureSumAborted as aborted:
            self._aborted = aborted

    def add(self, clients: NDArray[np.int64], rows: NDArray[np.uint32]) -> None:
        """Rows [c, d] of clients, each masked and sent at once; those of clients that are gone are ignored.

        A late client's row is masked; it is sent when the server has closed the step, or not at all if another
        late one already waits: the server does not look into it.
        """
        for client, row in self._turns.take(clients, rows):
            if self._aborted is not None:
                continue
            upload = self._clients[client].upload(row)
            if self._turns.is_late(client):
                self._late = upload
            else:
                self._server.receive(upload)

    def close(self) -> ModularTotal:
        """The sum of the rows that came in time. SecureSumAborted if too few clients were left at some step."""
        if self._aborted is not None:
            raise self._aborted
        requests = self._server.close_step()
        self._refuse_late()
        for client in self._turns.reach(ProtocolStep.UNMASK):
            if client in requests:
                self._server.receive(self._clients[client].unmask(requests[client]))
        return self._server.close()

    def _agree_on_masks(self) -> None:
        for one in self._clients.values():
            self._server.receive(one.advertise())
        keys = self._server.close_step()
        for client in self._turns.reach(ProtocolStep.SHARE):
            self._server.receive(self._clients[client].share(keys[client]))
        forwarded = self._server.close_step()
        for client in self._turns.reach(ProtocolStep.UPLOAD):
            self._clients[client].hold(forwarded[client])

    def _refuse_late(self) -> None:
        if self._late is None:
            return
        try:
            self._server.receive(self._late)
        except WireError:
            return
        raise AssertionError("a late input was let in")
