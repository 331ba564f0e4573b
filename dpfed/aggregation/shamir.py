"""t-of-n secret sharing (Shamir 1979) of 32-byte secrets over the integers modulo p = 2^521 - 1."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from dpfed.errors import WireError

PRIME = (1 << 521) - 1
SECRET_BYTES = 32
SHARE_BYTES = 66


def split(secret: bytes, needed: int, holders: Sequence[int]) -> dict[int, bytes]:
    """A share for each holder: the value at id + 1 of a uniformly random polynomial of degree `needed` - 1.

    Any `needed` of them give the secret; fewer are jointly uniform and say nothing about it.
    """
    if len(secret) != SECRET_BYTES or not 1 <= needed <= len(set(holders)) == len(holders) or min(holders) < 0:
        raise ValueError(f"{len(secret)} bytes, {needed} of the holders {holders}: 32 bytes, and as many holders")
    coefficients = [secrets.randbelow(PRIME) for _ in range(needed - 1)]
    return {holder: _value(coefficients, int.from_bytes(secret), holder + 1) for holder in holders}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from exactly as many shares as are needed. WireError where they are not of one such secret.

    Wrong shares go unnoticed only by luck: 2^256 of the 2^521 values that they could give are secrets.
    """
    values = {holder: int.from_bytes(share) for holder, share in shares.items()}
    if any(len(share) != SHARE_BYTES for share in shares.values()) or any(value >= PRIME for value in values.values()):
        raise WireError(f"a share of a secret is not a number below 2^521 - 1 in {SHARE_BYTES} bytes.")
    weights = weights_at_zero(tuple(values))
    secret = sum(weight * value for weight, value in zip(weights, values.values(), strict=True)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise WireError(f"the shares of clients {sorted(shares)} are not of one secret; somebody sent a wrong one.")
    return secret.to_bytes(SECRET_BYTES)


@lru_cache(maxsize=1024)
def weights_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange: the value at zero is the sum of weight times value at id + 1. Public, so it may be kept."""
    weights = []
    for one in holders:
        above = below = 1
        for other in holders:
            if other != one:
                above = above * (other + 1) % PRIME
                below = below * (other - one) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


def _value(coefficients: Sequence[int], constant: int, at: int) -> bytes:
    value = 0
    for coefficient in coefficients:
        value = (value + coefficient) * at % PRIME
    return ((value + constant) % PRIME).to_bytes(SHARE_BYTES)
