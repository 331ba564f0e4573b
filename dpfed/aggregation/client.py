"""A client of the secure sum of Bonawitz et al. 2017, which exchanges bytes with the server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from dpfed.aggregation.cryptography import (
    SHARE_BYTES,
    SeededMask,
    apply_masks,
    decrypt,
    encrypt,
    exchange_keys,
    mask_seed,
    pack_ids,
    split_secret,
)
from dpfed.aggregation.messages import Agreement, MessageKind, ProtocolStep, Reveal, party_of, read_table, write_table
from dpfed.compress.fixed_point import pack_row, word_type
from dpfed.errors import WireError


class Client:
    """One client in one round, with keys made for this round only.

    Its methods `advertise`, `share`, `store_shares`, `upload`, `unmask` are called once each, in this order. Raises
    WireError for messages that are malformed or not of this round. Raises SecureSumAborted if too few clients remain
    for the threshold, or for the agreement's `least` rows in the sum. Counted are the clients named in a message, with
    keys and shares as far as this client receives them, and the clients to be unmasked.
    """

    def __init__(self, agreement: Agreement, client: int) -> None:
        self.client = client
        self._agreement, self._session = agreement, agreement.session
        self._near = frozenset(agreement.graph.neighbours(client))
        self._cipher_key, self._mask_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own_seed = secrets.token_bytes(32)
        self._keys: dict[int, bytes] = {}
        self._channels: dict[int, bytes] = {}
        self._shares: dict[int, bytes] = {}
        self._next = "advertise"

    def to_bytes(self) -> bytes:
        """Return the client's state, secrets included, to continue in another process with `from_bytes`; keep it
        secret."""
        keys = [key.private_bytes_raw().hex() for key in (self._cipher_key, self._mask_key)]
        tables = [
            {str(near): content.hex() for near, content in table.items()}
            for table in (self._keys, self._channels, self._shares)
        ]
        return json.dumps([self._next, self._own_seed.hex(), keys, tables]).encode()

    @classmethod
    def from_bytes(cls, agreement: Agreement, client: int, memory: bytes) -> Client:
        """Return the client whose `to_bytes` gave `memory`, under the same agreement."""
        one = cls(agreement, client)
        one._next, own_seed, keys, tables = json.loads(memory)
        one._own_seed = bytes.fromhex(own_seed)
        one._cipher_key, one._mask_key = (X25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in keys)
        one._keys, one._channels, one._shares = (
            {int(near): bytes.fromhex(content) for near, content in table.items()} for table in tables
        )
        return one

    def advertise(self) -> bytes:
        """Step 0: return two public keys, one for encryption and one for masks."""
        self._agreement.require_all(ProtocolStep.ADVERTISE, self._agreement.graph.circle)
        self._advance_step("advertise", "share")
        return self._write_message(MessageKind.ADVERTISE, {self.client: self._public_keys()})

    def share(self, message: bytes) -> bytes:
        """Step 1: from the neighbours' keys, return for each neighbour an encrypted share of both of this client's
        secrets."""
        self._advance_step("share", "store_shares")
        self._keys = {near: bytes(keys) for near, keys in self._read_from_neighbours(message, MessageKind.KEYS).items()}
        every = [key for keys in (*self._keys.values(), self._public_keys()) for key in (keys[:32], keys[32:])]
        if len(set(every)) < len(every):
            raise WireError(f"client {self.client}: two of the public keys are equal; the server or a client lies.")
        self._require_neighbours(ProtocolStep.ADVERTISE, self._keys)
        shares = self._split_secrets()
        self._shares[self.client] = shares.pop(self.client)
        self._channels = {near: exchange_keys(self._cipher_key, keys[:32]) for near, keys in self._keys.items()}
        ends = {near: pack_ids(self.client, near) for near in shares}
        sealed = {
            near: encrypt(ends[near] + pair, self._channels[near], self._session, self.client, near)
            for near, pair in shares.items()
        }
        return self._write_message(MessageKind.SHARE, sealed)

    def store_shares(self, message: bytes) -> None:
        """Start of step 2: store the shares of the neighbours that remain. All other clients are out of this round."""
        self._advance_step("store_shares", "upload")
        for near, sealed in self._read_from_neighbours(message, MessageKind.FORWARD).items():
            if near not in self._keys:
                raise WireError(f"client {self.client}: shares of client {near}, which has sent no keys; drop them.")
            plain = decrypt(bytes(sealed), self._channels[near], self._session, near, self.client)
            if plain[:16] != pack_ids(near, self.client):
                raise WireError(f"client {self.client}: shares of client {near} were meant for another client.")
            self._shares[near] = plain[16:]
        self._require_neighbours(ProtocolStep.SHARE, self._shares)

    def upload(self, row: NDArray[np.uint32]) -> bytes:
        """Step 2: return row [d] modulo 2^b, under this client's own mask and the masks shared with its neighbours."""
        self._advance_step("upload", "unmask")
        words = row.astype(word_type(self._agreement.bits))
        apply_masks(words[None], self._masks())
        return self._write_message(MessageKind.UPLOAD, {self.client: pack_row(words, self._agreement.bits)})

    def unmask(self, message: bytes) -> bytes:
        """Step 3: return one share for every neighbour: of its own mask if its row is in the sum, else of its mask key.

        Called once a round: a second request could ask for the other secret of a neighbour, and both would unmask its
        row.
        """
        self._advance_step("unmask", "nothing")
        rows = self._read_own_table(message, MessageKind.REQUEST, most=len(self._agreement.graph.circle))
        asked = {client: _requested_secret(content) for client, content in rows.items()}
        survivors = {client for client, reveal in asked.items() if reveal is Reveal.OWN_MASK}
        if self.client not in survivors or not set(asked) <= set(self._agreement.graph.circle):
            raise WireError(f"client {self.client}: asked to unmask a sum without it, or of unknown clients; refused.")
        self._require_neighbours(ProtocolStep.UPLOAD, survivors & self._shares.keys())
        self._agreement.require_all(ProtocolStep.UPLOAD, survivors)
        self._agreement.require_connected(survivors)
        replies = {
            owner: bytes([reveal]) + _share_of_pair(self._shares[owner], reveal)
            for owner, reveal in asked.items()
            if owner in self._shares
        }
        return self._write_message(MessageKind.UNMASK, replies)

    def _masks(self) -> list[SeededMask]:
        masks = [SeededMask(self._own_seed, plus=0)]
        for near in self._shares.keys() - {self.client}:
            seed = mask_seed(self._mask_key, self._keys[near][32:], self._session, self.client, near)
            masks.append(SeededMask(seed, plus=0) if self.client < near else SeededMask(seed, minus=0))
        return masks

    def _split_secrets(self) -> dict[int, bytes]:
        needed, holders = self._agreement.shares_needed(self.client), sorted({*self._keys, self.client})
        of_mask = split_secret(self._own_seed, needed, holders)
        of_key = split_secret(self._mask_key.private_bytes_raw(), needed, holders)
        return {holder: of_mask[holder] + of_key[holder] for holder in holders}

    def _public_keys(self) -> bytes:
        return self._cipher_key.public_key().public_bytes_raw() + self._mask_key.public_key().public_bytes_raw()

    def _require_neighbours(self, step: ProtocolStep, near: Iterable[int]) -> None:
        """Raise SecureSumAborted unless enough neighbours remain; check all clients if all are neighbours."""
        alive = {*near, self.client}
        self._agreement.require_neighbourhood(step, alive, self.client)
        if len(self._near) + 1 == len(self._agreement.graph.circle):
            self._agreement.require_all(step, alive)

    def _read_from_neighbours(self, message: bytes, kind: MessageKind) -> dict[int, memoryview]:
        rows = self._read_own_table(message, kind, most=len(self._near))
        if not rows.keys() <= self._near:
            raise WireError(f"client {self.client}: {kind.name} of clients that are not its neighbours.")
        return rows

    def _read_own_table(self, message: bytes, kind: MessageKind, *, most: int) -> dict[int, memoryview]:
        rows = read_table(message, kind, self._session, most=most)
        if party_of(message, kind, self._session) != self.client:
            raise WireError(f"client {self.client}: a {kind.name} message for another client.")
        return rows

    def _write_message(self, kind: MessageKind, rows: dict[int, bytes]) -> bytes:
        return write_table(kind, self._session, self.client, rows)

    def _advance_step(self, called: str, following: str) -> None:
        if self._next != called:
            raise WireError(f"client {self.client}: asked to {called}, but the next step is {self._next}; refused.")
        self._next = following


def _requested_secret(content: memoryview) -> Reveal:
    if content[0] not in (Reveal.OWN_MASK, Reveal.MASK_KEY):
        raise WireError(f"asked for secret {content[0]}: must be 0, the own mask, or 1, the mask key.")
    return Reveal(content[0])


def _share_of_pair(pair: bytes, reveal: Reveal) -> bytes:
    return pair[:SHARE_BYTES] if reveal is Reveal.OWN_MASK else pair[SHARE_BYTES:]
