"""Terms, steps and messages of a secure sum.

Every message is a table: client ids in rising order, each with content of the fixed width of the message's kind.

    magic "dps1" | kind 1 byte | session 16 bytes | party 8 bytes | rows 4 bytes | rows x (id 8 bytes, content)

The party is the sending client, or the client to whom the server sends. Integers are little-endian. Ids rise strictly,
so a message cannot hold two entries for a client: neither two keys nor shares of both secrets of a client.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from accounting.cohorts import uniforms_of_ids
from dpfed.aggregation.cryptography import SHARE_BYTES, Graph, complete_graph, random_circle, shares_needed
from dpfed.errors import ConfigError, SecureSumAborted, WireError
from dpfed.randomness import Randomness


class ProtocolStep(StrEnum):
    """Step before which a client drops out, in the order of time; LATE: its row arrives after UPLOAD is closed.

    ADVERTISE and SHARE: the client is excluded from the start. UPLOAD: its masks are removed from the sum. UNMASK: its
    row stays in the sum. LATE: as UPLOAD, and its row stays hidden behind its own mask.
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    UPLOAD = "upload"
    LATE = "late"
    UNMASK = "unmask"

    @property
    def sends_row(self) -> bool:
        """True if the client still trains and sends its row, in time or late."""
        return self in (ProtocolStep.UNMASK, ProtocolStep.LATE)


@dataclass(frozen=True, kw_only=True)
class Dropouts:
    """Simulated dropouts: each client with `probability`, before `before_step` or a uniform step, or `lost` clients
    before each step.

    population: number of ids that may take part, canaries included; a secret value is drawn for every id
    lost:       number of clients that drop out before each step: those with the smallest values, earliest step first

    Claim: independent of the clients' data. Under `probability` a client's dropout depends on its own value only. Under
    `lost` one participant added or removed moves at most one other client into or out of the sum. Given the number of
    participants, the distribution does not depend on which clients take part; the account of missing noise shares rests
    on this.
    """

    randomness: Randomness
    population: int
    probability: float = 0.0
    before_step: ProtocolStep | None = None
    lost: Mapping[ProtocolStep, int] = field(default_factory=dict)

    def draw(self, participants: NDArray[np.int64], number: int) -> dict[int, ProtocolStep]:
        """Return the clients that drop out of this round, each with the step before which it does."""
        values = uniforms_of_ids(participants, self.population, self.randomness, "dropouts", number)
        if self.lost:
            steps = [step for step in ProtocolStep for _ in range(self.lost.get(step, 0))]
            unlucky = participants[np.argsort(values, kind="stable")]
            return {int(client): step for client, step in zip(unlucky, steps, strict=False)}
        choices = list(ProtocolStep) if self.before_step is None else [self.before_step]
        gone = values < self.probability
        which = np.minimum(values[gone] / self.probability * len(choices), len(choices) - 1).astype(np.int64)
        return {int(client): choices[step] for client, step in zip(participants[gone], which, strict=True)}


def most_missing(participants: int, probability: float) -> int:
    """Return the least D with P(more than D of the clients drop out) <= 0.001; clients drop out independently."""
    return int(binom.isf(1e-3, participants, probability)) if probability else 0


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

    def require_alive(self, step: ProtocolStep, alive: Collection[int], owners: Iterable[int]) -> None:
        """Raise SecureSumAborted if too few clients are alive after the step, or too few holders of shares of one of
        the `owners`."""
        self.require_all(step, alive)
        for owner in sorted(owners):
            self.require_neighbourhood(step, alive, owner)

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
