"""Secure sums in one process: the whole protocol with clients and server exchanging bytes, or its masks alone."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.client import Client
from dpfed.aggregation.cryptography import SeededMask, Words, apply_masks, pack_ids, reduce_modulo
from dpfed.aggregation.messages import Agreement, ModularTotal, ProtocolStep, StepPlan
from dpfed.aggregation.server import Server
from dpfed.compress.fixed_point import word_type
from dpfed.errors import SecureSumAborted


class ProtocolSum:
    """Bonawitz et al. 2017, semi-honest, over all pairs or over a random k-regular graph (Bell et al. 2020).

    The whole protocol is run: keys are agreed on, secrets shared and recovered, uploads masked, dropouts removed. It
    demonstrates the algebra, not secrecy: one process holds the secrets of clients and server.

    agreement: the public terms, with all clients, dropped ones included
    dropouts:  the step before which each dropped client vanishes

    `close` raises the error of an abort, whatever the step of the abort.
    """

    def __init__(self, agreement: Agreement, *, dropouts: Mapping[int, ProtocolStep]) -> None:
        self._turns = StepPlan(agreement, dropouts)
        self._server = Server(agreement)
        self._aborted: SecureSumAborted | None = None
        self._clients = {client: Client(agreement, client) for client in self._turns.clients_at(ProtocolStep.ADVERTISE)}
        try:
            self._agree_on_masks()
        except SecureSumAborted as aborted:
            self._aborted = aborted

    def add(self, clients: NDArray[np.int64], rows: NDArray[np.uint32]) -> None:
        """Mask and send rows [c, d] of the clients at once; rows of dropped or late clients are ignored."""
        for client, row in self._turns.accept(clients, rows):
            if self._aborted is None and not self._turns.is_late(client):
                self._server.receive(self._clients[client].upload(row))

    def close(self) -> ModularTotal:
        """Return the sum of rows that arrived in time. Raise SecureSumAborted if a step had too few clients left."""
        if self._aborted is not None:
            raise self._aborted
        requests = self._server.close_step()
        for client in self._turns.clients_at(ProtocolStep.UNMASK):
            if client in requests:
                self._server.receive(self._clients[client].unmask(requests[client]))
        return self._server.close()

    def _agree_on_masks(self) -> None:
        for one in self._clients.values():
            self._server.receive(one.advertise())
        keys = self._server.close_step()
        for client in self._turns.clients_at(ProtocolStep.SHARE):
            self._server.receive(self._clients[client].share(keys[client]))
        forwarded = self._server.close_step()
        for client in self._turns.clients_at(ProtocolStep.UPLOAD):
            self._clients[client].store_shares(forwarded[client])


class MaskedSum:
    """Pairwise and self masks in Z_{2^b}, over the graph of `ProtocolSum` and with its thresholds and dropouts.

    A shortcut: mask seeds are derived from one secret of the session, where the protocol agrees on keys and shares
    secrets. So no message is made, and the holder of the secret can unmask every client. The masks are real, the
    running sum holds no unmasked row, and leftover masks of dropped clients are removed. The mask of two clients
    whose rows are in the same `add` is expanded once. Arguments and errors are those of `ProtocolSum`.
    """

    def __init__(self, agreement: Agreement, *, dropouts: Mapping[int, ProtocolStep]) -> None:
        self._agreement = agreement
        self._turns = StepPlan(agreement, dropouts)
        self._secret = secrets.token_bytes(32)
        self._total = np.zeros(agreement.size, word_type(agreement.bits))
        self._survivors: set[int] = set()
        self._aborted: SecureSumAborted | None = None
        self._sharers = set(self._turns.clients_at(ProtocolStep.SHARE))
        try:
            for step in (ProtocolStep.ADVERTISE, ProtocolStep.SHARE):
                alive = set(self._turns.clients_at(step))
                agreement.require_alive(step, alive, alive)
        except SecureSumAborted as aborted:
            self._aborted = aborted

    def add(self, clients: NDArray[np.int64], rows: NDArray[np.uint32]) -> None:
        """Mask and add rows [c, d] of the clients at once; rows of dropped or late clients are ignored."""
        taken = [(client, row) for client, row in self._turns.accept(clients, rows) if not self._turns.is_late(client)]
        if not taken or self._aborted is not None:
            return
        words: Words = np.array([row for _, row in taken], dtype=self._total.dtype)
        apply_masks(words, self._masks([client for client, _ in taken]))
        self._total += words.sum(axis=0, dtype=words.dtype)
        self._survivors.update(client for client, _ in taken)

    def close(self) -> ModularTotal:
        """Return the sum of rows that arrived in time. Raise SecureSumAborted if a step had too few clients left."""
        if self._aborted is not None:
            raise self._aborted
        replied = self._survivors & set(self._turns.clients_at(ProtocolStep.UNMASK))
        owners = {client for client in self._sharers if client in self._survivors or self._surviving_neighbours(client)}
        self._agreement.require_alive(ProtocolStep.UPLOAD, self._survivors, owners)
        self._agreement.require_connected(self._survivors)
        self._agreement.require_alive(ProtocolStep.UNMASK, replied, owners)
        masks = [SeededMask(self._own_seed(client), minus=0) for client in sorted(self._survivors)]
        for gone in sorted(self._sharers - self._survivors):
            for near in self._surviving_neighbours(gone):
                masks.append(SeededMask(self._pair_seed(near, gone), **_mask_sign(near, gone, 0, taken_out=True)))
        apply_masks(self._total[None], masks)
        included = np.array(sorted(self._survivors), dtype=np.int64)
        return ModularTotal(total=reduce_modulo(self._total, self._agreement.bits), included_clients=included)

    def _masks(self, clients: list[int]) -> list[SeededMask]:
        """Return the masks of these clients' rows: the own mask of each client, and one for every pair with a client
        among them."""
        place = {client: row for row, client in enumerate(clients)}
        masks = [SeededMask(self._own_seed(client), plus=row) for client, row in place.items()]
        for client, row in place.items():
            for near in self._agreement.graph.neighbours(client):
                if near not in self._sharers:
                    continue
                if near not in place:
                    masks.append(SeededMask(self._pair_seed(client, near), **_mask_sign(client, near, row)))
                elif client < near:
                    masks.append(SeededMask(self._pair_seed(client, near), plus=row, minus=place[near]))
        return masks

    def _surviving_neighbours(self, client: int) -> list[int]:
        return [near for near in self._agreement.graph.neighbours(client) if near in self._survivors]

    def _own_seed(self, client: int) -> bytes:
        return self._derive_seed(b"own", client, client)

    def _pair_seed(self, one: int, two: int) -> bytes:
        return self._derive_seed(b"pair", min(one, two), max(one, two))

    def _derive_seed(self, purpose: bytes, one: int, two: int) -> bytes:
        return hashlib.blake2b(pack_ids(one, two), digest_size=32, key=self._secret, person=purpose).digest()


def _mask_sign(client: int, near: int, row: int, *, taken_out: bool = False) -> dict[str, int]:
    """Return the sign of a pair's mask: the lower id adds it, the higher id subtracts it; reversed if `taken_out`."""
    return {"plus": row} if (client < near) != taken_out else {"minus": row}
