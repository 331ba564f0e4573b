"""Graph and cryptography of a secure sum.

Graph of the clients that share masks and hold shares of each other's secrets, and its risk: probabilities that a
sum is exposed, or cannot be computed.

Cryptography of a secure sum: keys, shares of secrets, and masks.

Keys that two clients agree on, unknown to third parties: X25519, then HKDF-SHA256 bound to the round and the two ids.
Secrets of 32 bytes are shared t of n (Shamir 1979) over the integers modulo p = 2^521 - 1. Seeds are expanded into
masks by AES-256 in counter mode, uniform in Z_{2^b}.
"""

from __future__ import annotations

import math
import os
import secrets
import struct
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from dpfed.errors import ConfigError, WireError
from dpfed.seeds import Seeds


@dataclass(frozen=True)
class Graph:
    """Clients in a circle; `neighbours_per_side` clients before a client and as many after it are its neighbours.

    `random_circle` places every client at random, which gives the k-regular graph of Bell, Bonawitz, Gascon, Lepoint,
    Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", 2020. If they cover the circle,
    all clients are neighbours: Bonawitz et al. 2017.
    """

    circle: tuple[int, ...]
    neighbours_per_side: int

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Return the client's neighbours, sorted, without the client itself."""
        return self._all_neighbours[client]

    def neighbourhood(self, client: int) -> tuple[int, ...]:
        """Return the client and its neighbours, sorted: the holders of shares of its secrets."""
        return tuple(sorted((client, *self.neighbours(client))))

    def is_connected(self, survivors: Collection[int]) -> bool:
        """Return True if masks connect all survivors into one sum; otherwise the sums of separate parts would be
        visible.

        A circle with missing clients is disconnected exactly if `neighbours_per_side` clients in a row are missing at
        two or more places.
        """
        places = np.flatnonzero(np.isin(np.array(self.circle), np.array(list(survivors))))
        gaps = np.diff(places, append=places[:1] + len(self.circle))
        return int((gaps > self.neighbours_per_side).sum()) <= 1

    @cached_property
    def _all_neighbours(self) -> dict[int, tuple[int, ...]]:
        count = len(self.circle)
        steps = [step for step in range(-self.neighbours_per_side, self.neighbours_per_side + 1) if step]
        return {
            client: tuple(sorted({self.circle[(place + step) % count] for step in steps} - {client}))
            for place, client in enumerate(self.circle)
        }


def complete_graph(clients: NDArray[np.int64]) -> Graph:
    """Return the graph in which every two clients are neighbours."""
    return Graph(tuple(sorted(map(int, clients))), len(clients) // 2)


def random_circle(clients: NDArray[np.int64], neighbours: int, seed: int) -> Graph:
    """Return a random k-regular graph with k = `neighbours`, a function of the set of clients and the seed.

    A client's position follows from a key of (seed, its id), so one client removed leaves the order of all others. The
    seed is public, and must be chosen independently of which clients are corrupt. Complete if k >= n - 1.
    Raises ConfigError for an odd k, and for a k below log2(n), where random graphs are often disconnected.
    `default_neighbours` is 3 log2(n).
    """
    refuse_few_neighbours(len(clients), neighbours)
    if neighbours >= len(clients) - 1:
        return complete_graph(clients)
    ordered = np.sort(clients)
    keys = Seeds(root=seed).keys("secagg.graph", 0, ordered, ())
    return Graph(tuple(map(int, ordered[np.argsort(keys, kind="stable")])), neighbours // 2)


def refuse_few_neighbours(clients: int, neighbours: int) -> None:
    """Raise ConfigError for a number of neighbours that is odd or too small for the clients."""
    if neighbours < 2 or neighbours % 2:
        raise ConfigError(
            f"neighbours={neighbours}: must be an even number of at least 2 (half of them on either side of a circle). "
            f"For {clients} clients use {default_neighbours(clients)}, or 0 for all."
        )
    if neighbours < min(clients - 1, math.log2(max(clients, 2))):
        raise ConfigError(
            f"neighbours={neighbours} of {clients} clients: below log2({clients}) = {math.log2(clients):.1f} the graph "
            f"is often disconnected, and the sums of its parts visible. Use {default_neighbours(clients)} or more."
        )


def default_neighbours(clients: int) -> int:
    """Return 3 log2(n), rounded up to an even number: 20 for a hundred clients, 30 for a thousand."""
    return 2 * math.ceil(1.5 * math.log2(max(clients, 2)))


def shares_needed(group: int, threshold: float) -> int:
    """Return the number of needed shares in a group of this size: always more than half."""
    return max(math.ceil(threshold * group - 1e-9), group // 2 + 1)


# Integers of the ring have the narrowest type with at least b bits. Their overflow reduces modulo 2^8, 2^16 or 2^32,
# which 2^b divides; the reduction modulo 2^b is done once, on the total.
Words = NDArray[np.unsignedinteger]

_CHUNK_BYTES = 1 << 18  # small enough for a core's cache, and large enough to gain from two threads
_ZEROS = memoryview(bytes(_CHUNK_BYTES))
_BLOCK = 16
_NONCE = bytes(12)  # a key encrypts one message only: it belongs to one round, one sender and one receiver
PRIME = (1 << 521) - 1
SECRET_BYTES = 32
SHARE_BYTES = 66
THREADS = min(os.cpu_count() or 1, 4)  # AES and numpy release Python's lock while they compute


def reduce_modulo(words: Words, bits: int) -> NDArray[np.uint32]:
    """Return integers of the ring modulo 2^b."""
    return words.astype(np.uint32) & np.uint32((1 << bits) - 1)


class MaskStream:
    """Integers of a mask from a 32-byte seed, read from a given position on. A seed must never mask two inputs.

    A key is used for one stream only, so the counter starts at zero. Integers are uniform on their whole range, hence
    uniform modulo 2^b. Indistinguishable from uniform if AES-256 is a pseudorandom permutation: bias at most
    blocks^2 / 2^129.
    """

    def __init__(self, seed: bytes, word: np.dtype[np.unsignedinteger], *, start: int = 0) -> None:
        """Start the stream at word `start`, a multiple of 16."""
        if len(seed) != 32 or start * word.itemsize % _BLOCK:
            raise ValueError(f"a seed of {len(seed)} bytes from word {start}: must be 32 bytes, from a multiple of 16.")
        counter = (start * word.itemsize // _BLOCK).to_bytes(_BLOCK, "big")
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()

    def fill_buffer(self, buffer: Words) -> None:
        """Fill the buffer (of at most 2^18 bytes) with the next bytes of the stream."""
        self._cipher.update_into(_ZEROS[: buffer.nbytes], buffer.view(np.uint8).data)


class SeededMask(NamedTuple):
    """Seed of a mask that is added to row `plus` and subtracted from row `minus`."""

    seed: bytes
    plus: int | None = None
    minus: int | None = None


def apply_masks(rows: Words, masks: Sequence[SeededMask]) -> None:
    """Apply the masks to rows [c, d] in place, modulo the word size; every seed is expanded once."""
    columns = rows.shape[1]
    if columns * rows.itemsize <= _CHUNK_BYTES:
        return _apply_from(rows, masks, 0)
    part = -(-columns // THREADS // _BLOCK) * _BLOCK
    starts = range(0, columns, part)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda start: _apply_from(rows[:, start : start + part], masks, start), starts))
    return None


def _apply_from(rows: Words, masks: Sequence[SeededMask], start: int) -> None:
    streams = [MaskStream(mask.seed, rows.dtype, start=start) for mask in masks]
    size = _CHUNK_BYTES // rows.itemsize
    buffer = np.empty(min(size, rows.shape[1]), rows.dtype)
    for first in range(0, rows.shape[1], size):
        part = rows[:, first : first + size]
        words = buffer[: part.shape[1]]
        for stream, (_, plus, minus) in zip(streams, masks, strict=True):
            stream.fill_buffer(words)
            if plus is not None:
                part[plus] += words
            if minus is not None:
                part[minus] -= words


def pack_ids(first: int, second: int) -> bytes:
    """Return two ids as 16 bytes, in the given order."""
    return struct.pack("<QQ", first, second)


def exchange_keys(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the shared secret of two clients from either's private key. Raise WireError for an invalid public key."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise WireError("a public key of 32 bytes that no private key belongs to; drop its sender.") from None


def mask_seed(own: X25519PrivateKey, other: bytes, session: bytes, one: int, two: int) -> bytes:
    """Return the 32-byte seed of the mask shared by clients one and two, equal from either client's key."""
    return _derive_key(exchange_keys(own, other), b"mask", session, pack_ids(min(one, two), max(one, two)))


def encrypt(plain: bytes, shared: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """Return `plain` under AES-256-GCM with a key of this direction; round and direction are associated data."""
    ends = pack_ids(sender, receiver)
    return AESGCM(_derive_key(shared, b"share", session, ends)).encrypt(_NONCE, plain, session + ends)


def decrypt(sealed: bytes, shared: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """Return the plain text of `encrypt`. Raise WireError if `sealed` was changed, or is of another round, pair or
    key."""
    ends = pack_ids(sender, receiver)
    try:
        return AESGCM(_derive_key(shared, b"share", session, ends)).decrypt(_NONCE, sealed, session + ends)
    except InvalidTag:
        raise WireError(
            f"shares from client {sender} to {receiver} do not open: damaged, or not of this round or key."
        ) from None


def _derive_key(shared: bytes, purpose: bytes, session: bytes, ends: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=session, info=b"dpfed secure sum 1 " + purpose + ends).derive(
        shared
    )


def split_secret(secret: bytes, needed: int, holders: Sequence[int]) -> dict[int, bytes]:
    """Return a share for each holder: the value at id + 1 of a uniformly random polynomial of degree `needed` - 1.

    Any `needed` of the shares give the secret; fewer are jointly uniform and reveal nothing of it.
    """
    if len(secret) != SECRET_BYTES or not 1 <= needed <= len(set(holders)) == len(holders) or min(holders) < 0:
        raise ValueError(f"{len(secret)} bytes, {needed} of the holders {holders}: must be 32 bytes and enough holders")
    coefficients = [secrets.randbelow(PRIME) for _ in range(needed - 1)]
    return {holder: _polynomial_value(coefficients, int.from_bytes(secret), holder + 1) for holder in holders}


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from exactly the needed number of shares. Raise WireError unless they belong to one secret.

    Wrong shares pass unnoticed with negligible probability: 2^256 of the 2^521 values that they could give are secrets.
    """
    values = {holder: int.from_bytes(share) for holder, share in shares.items()}
    if any(len(share) != SHARE_BYTES for share in shares.values()) or any(value >= PRIME for value in values.values()):
        raise WireError(f"a share of a secret is not a number below 2^521 - 1 in {SHARE_BYTES} bytes.")
    weights = weights_at_zero(tuple(values))
    secret = sum(weight * value for weight, value in zip(weights, values.values(), strict=True)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise WireError(f"the shares of clients {sorted(shares)} are not of one secret; a client sent a wrong share.")
    return secret.to_bytes(SECRET_BYTES)


@lru_cache(maxsize=1024)
def weights_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange weights: the value at zero is the sum of weight times value at id + 1. Public, so cached."""
    weights = []
    for one in holders:
        above = below = 1
        for other in holders:
            if other != one:
                above = above * (other + 1) % PRIME
                below = below * (other - one) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


def _polynomial_value(coefficients: Sequence[int], constant: int, at: int) -> bytes:
    value = 0
    for coefficient in coefficients:
        value = (value + coefficient) * at % PRIME
    return ((value + constant) % PRIME).to_bytes(SHARE_BYTES)
