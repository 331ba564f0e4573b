"""The server of the secure sum of Bonawitz et al. 2017, whose only input is the bytes that clients send."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfed.aggregation.cryptography import SeededMask, apply_masks, combine_shares, mask_seed, reduce_modulo
from dpfed.aggregation.messages import (
    Agreement,
    MessageKind,
    ModularTotal,
    ProtocolStep,
    Reveal,
    party_of,
    read_table,
    write_table,
)
from dpfed.compress.fixed_point import packed_bytes, unpack_row, word_type
from dpfed.errors import WireError


class Server:
    """Server of one round: `receive` the messages of a step, `close_step` for the answers, and after three steps
    `close`.

    Of uploads only the running sum is kept. Secrets of clients and the total exist only within `close`, after the last
    share has arrived. A message that is malformed, out of turn or late is refused (WireError) and changes nothing.
    """

    def __init__(self, agreement: Agreement) -> None:
        self.step: ProtocolStep | None = ProtocolStep.ADVERTISE
        self._agreement = agreement
        self._keys: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._sharers: frozenset[int] = frozenset()
        self._survivors: set[int] = set()
        self._replied: set[int] = set()
        self._shares: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self._total = np.zeros(agreement.size, word_type(agreement.bits))

    def receive(self, message: bytes) -> None:
        """Store a client's message of this step. Raise WireError, and change nothing, for any other message."""
        if self.step is None:
            raise WireError("this secure sum is over; refused.")
        expected = MessageKind[self.step.name]
        receivers = {
            MessageKind.ADVERTISE: self._receive_keys,
            MessageKind.SHARE: self._receive_shares,
            MessageKind.UPLOAD: self._receive_upload,
            MessageKind.UNMASK: self._receive_unmask,
        }
        if message[4:5] in [bytes([kind]) for kind in receivers if kind < expected]:
            raise WireError(f"a {MessageKind(message[4]).name} message arrived after the close of its step; refused.")
        receivers[expected](party_of(message, expected, self._agreement.session), message)

    def close_step(self) -> dict[int, bytes]:
        """End the step and return the answers to the remaining clients. Raise SecureSumAborted if too few remain."""
        if self.step is ProtocolStep.ADVERTISE:
            return self._close_advertise()
        if self.step is ProtocolStep.SHARE:
            return self._close_share()
        if self.step is ProtocolStep.UPLOAD:
            return self._close_upload()
        raise WireError(f"step {self.step} has no answer; `close` gives the total.")

    def close(self) -> ModularTotal:
        """Return the total, after the last replies. Raise SecureSumAborted if a mask cannot be removed."""
        if self.step is not ProtocolStep.UNMASK:
            raise WireError(f"closed at step {self.step}: a total needs all four steps, once.")
        self.step = None
        self._agreement.require_alive(ProtocolStep.UNMASK, self._replied, self._mask_owners())
        masks = [mask for owner in self._mask_owners() for mask in self._masks_to_remove(owner)]
        apply_masks(self._total[None], masks)
        included = np.array(sorted(self._survivors), dtype=np.int64)
        return ModularTotal(total=reduce_modulo(self._total, self._agreement.bits), included_clients=included)

    def _receive_keys(self, sender: int, message: bytes) -> None:
        rows = read_table(message, MessageKind.ADVERTISE, self._agreement.session, most=1)
        if rows.keys() != {sender} or sender not in self._agreement.graph.circle or sender in self._keys:
            raise WireError(f"keys from client {sender}: unknown, for another client, or sent twice; refused.")
        self._keys[sender] = bytes(rows[sender])

    def _close_advertise(self) -> dict[int, bytes]:
        self._agreement.require_alive(ProtocolStep.ADVERTISE, self._keys, self._keys)
        self.step = ProtocolStep.SHARE
        return self._answers(
            MessageKind.KEYS,
            {client: {near: self._keys[near] for near in self._peers(client, self._keys)} for client in self._keys},
        )

    def _receive_shares(self, sender: int, message: bytes) -> None:
        rows = read_table(message, MessageKind.SHARE, self._agreement.session, most=len(self._keys))
        if sender not in self._keys or sender in self._sealed or rows.keys() != set(self._peers(sender, self._keys)):
            raise WireError(
                f"shares from client {sender}: unknown, sent twice, or not for all its neighbours; refused."
            )
        self._sealed[sender] = {receiver: bytes(content) for receiver, content in rows.items()}

    def _close_share(self) -> dict[int, bytes]:
        self._sharers = frozenset(self._sealed)
        self._agreement.require_alive(ProtocolStep.SHARE, self._sharers, self._sharers)
        self.step = ProtocolStep.UPLOAD
        sealed, self._sealed = self._sealed, {}
        return self._answers(
            MessageKind.FORWARD,
            {one: {near: sealed[near][one] for near in self._peers(one, self._sharers)} for one in self._sharers},
        )

    def _receive_upload(self, sender: int, message: bytes) -> None:
        size, bits = self._agreement.size, self._agreement.bits
        rows = read_table(message, MessageKind.UPLOAD, self._agreement.session, most=1, width=packed_bytes(size, bits))
        if rows.keys() != {sender} or sender not in self._sharers or sender in self._survivors:
            raise WireError(f"a row from client {sender}: not of this sum, for another client, or sent twice; refused.")
        self._total += unpack_row(rows[sender], size, bits)
        self._survivors.add(sender)

    def _close_upload(self) -> dict[int, bytes]:
        self._agreement.require_alive(ProtocolStep.UPLOAD, self._survivors, self._mask_owners())
        self._agreement.require_connected(self._survivors)
        self.step = ProtocolStep.UNMASK
        asked = {client: bytes([self._requested_secret(client)]) for client in self._sharers}
        return self._answers(MessageKind.REQUEST, dict.fromkeys(self._survivors, asked))

    def _receive_unmask(self, sender: int, message: bytes) -> None:
        rows = read_table(message, MessageKind.UNMASK, self._agreement.session, most=len(self._sharers))
        if sender not in self._survivors or sender in self._replied or rows.keys() != self._secrets_asked_of(sender):
            raise WireError(f"replies from client {sender}: unknown, sent twice, or not of its neighbours; refused.")
        if any(content[0] != self._requested_secret(owner) for owner, content in rows.items()):
            raise WireError(f"client {sender} reveals a secret that was not asked for; refused.")
        self._replied.add(sender)
        for owner, content in rows.items():
            self._shares[owner][sender] = bytes(content[1:])

    def _secrets_asked_of(self, client: int) -> set[int]:
        return {*self._peers(client, self._sharers), client}

    def _requested_secret(self, client: int) -> Reveal:
        return Reveal.OWN_MASK if client in self._survivors else Reveal.MASK_KEY

    def _mask_owners(self) -> list[int]:
        """Return the clients whose masks are in the sum: survivors, and dropped clients with a surviving neighbour."""
        return sorted(
            client for client in self._sharers if client in self._survivors or self._peers(client, self._survivors)
        )

    def _masks_to_remove(self, owner: int) -> list[SeededMask]:
        needed = self._agreement.shares_needed(owner)
        shares = self._shares[owner]
        secret = combine_shares({holder: shares[holder] for holder in sorted(shares)[:needed]})
        if owner in self._survivors:
            return [SeededMask(secret, minus=0)]
        key = X25519PrivateKey.from_private_bytes(secret)
        if key.public_key().public_bytes_raw() != self._keys[owner][32:]:
            raise WireError(f"the shares of client {owner}'s mask key give another key; a client sent a wrong share.")
        seeds = {
            near: mask_seed(key, self._keys[near][32:], self._agreement.session, owner, near)
            for near in self._peers(owner, self._survivors)
        }
        return [SeededMask(seed, minus=0) if near < owner else SeededMask(seed, plus=0) for near, seed in seeds.items()]

    def _peers(self, client: int, among: dict[int, bytes] | frozenset[int] | set[int]) -> list[int]:
        return [near for near in self._agreement.graph.neighbours(client) if near in among]

    def _answers(self, kind: MessageKind, rows: dict[int, dict[int, bytes]]) -> dict[int, bytes]:
        return {client: write_table(kind, self._agreement.session, client, table) for client, table in rows.items()}
