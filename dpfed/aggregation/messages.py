"""Byte format of the messages of a secure sum.

Every message is a table: client ids in rising order, each with content of the fixed width of the message's kind.

    magic "dps1" | kind 1 byte | session 16 bytes | party 8 bytes | rows 4 bytes | rows x (id 8 bytes, content)

The party is the sending client, or the client to whom the server sends. Integers are little-endian. Ids rise strictly,
so a message cannot hold two entries for a client: neither two keys nor shares of both secrets of a client.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum

from dpfed.aggregation.cryptography import SHARE_BYTES
from dpfed.errors import WireError

_HEADER = struct.Struct("<4sB16sQI")
_ID = struct.Struct("<Q")
_MAGIC = b"dps1"
KEY_BYTES = 32
TAG_BYTES = 16


class MessageKind(IntEnum):
    """Kinds of messages. Clients send ADVERTISE, SHARE, UPLOAD, UNMASK; the server answers the first three."""

    ADVERTISE = 0
    KEYS = 1
    SHARE = 2
    FORWARD = 3
    UPLOAD = 4
    REQUEST = 5
    UNMASK = 6


class Reveal(IntEnum):
    """Secret of a client that a share belongs to: its own mask if it survived, its mask key if it dropped out."""

    OWN_MASK = 0
    MASK_KEY = 1


# Contents by kind: two public keys; ids of sender and receiver with an encrypted share of each secret; the kind of the
# requested secret; the kind of the revealed secret with its share.
WIDTHS = {
    MessageKind.ADVERTISE: 2 * KEY_BYTES,
    MessageKind.KEYS: 2 * KEY_BYTES,
    MessageKind.SHARE: 2 * _ID.size + 2 * SHARE_BYTES + TAG_BYTES,
    MessageKind.FORWARD: 2 * _ID.size + 2 * SHARE_BYTES + TAG_BYTES,
    MessageKind.REQUEST: 1,
    MessageKind.UNMASK: 1 + SHARE_BYTES,
}


def write_table(kind: MessageKind, session: bytes, party: int, rows: Mapping[int, bytes]) -> bytes:
    """Return a message with these rows."""
    parts = [_HEADER.pack(_MAGIC, kind, session, party, len(rows))]
    for client in sorted(rows):
        parts += [_ID.pack(client), rows[client]]
    return b"".join(parts)


def party_of(message: bytes, kind: MessageKind, session: bytes) -> int:
    """Return the party of a message. Raise WireError unless the header is of this kind and session."""
    if len(message) < _HEADER.size:
        raise WireError(f"a message of {len(message)} bytes: the header alone has {_HEADER.size}.")
    magic, found, of, party, _ = _HEADER.unpack_from(message)
    if magic != _MAGIC or found != kind:
        raise WireError(f"a message that begins {bytes(message[:5])!r}: expected {kind.name} of a secure sum; drop it.")
    if of != session:
        raise WireError(f"a {kind.name} message of another round: replayed or misdirected; drop it.")
    return int(party)


def read_table(
    message: bytes, kind: MessageKind, session: bytes, *, most: int, width: int | None = None
) -> dict[int, memoryview]:
    """Return the rows by id, as views. Raise WireError unless there are at most `most` whole rows with rising ids.

    Memory is bounded by the message's length, which is checked before any row is read.
    """
    party_of(message, kind, session)
    *_, count = _HEADER.unpack_from(message)
    width = WIDTHS[kind] if width is None else width
    stride = _ID.size + width
    if count > most or len(message) != _HEADER.size + count * stride:
        raise WireError(
            f"a {kind.name} message of {len(message)} bytes claims {count} rows: must be at most {most} of {stride} "
            f"bytes after {_HEADER.size}; it is truncated or forged."
        )
    view = memoryview(message)[_HEADER.size :]
    rows: dict[int, memoryview] = {}
    before = -1
    for start in range(0, count * stride, stride):
        (client,) = _ID.unpack_from(view, start)
        if client <= before:
            raise WireError(f"a {kind.name} message names client {client} after {before}: ids must rise.")
        rows[client] = view[start + _ID.size : start + stride]
        before = client
    return rows


def sent_beside_row(neighbours: int) -> int:
    """Return the bytes that a client with `neighbours` neighbours sends in a round, without its packed row."""
    rows = {
        MessageKind.ADVERTISE: 1,
        MessageKind.SHARE: neighbours,
        MessageKind.UPLOAD: 1,
        MessageKind.UNMASK: neighbours + 1,
    }
    return sum(_HEADER.size + count * (_ID.size + WIDTHS.get(kind, 0)) for kind, count in rows.items())
