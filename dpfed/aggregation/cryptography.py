"""Seeds grow into masks: AES-256 in counter mode, uniform in Z_{2^b}."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

# Words of the ring are the narrowest that hold b bits; their overflow is the reduction modulo 2^8, 2^16 or 2^32, and
# 2^b divides that: the rest of the reduction waits for the end.
Words = NDArray[Any]

_CHUNK_BYTES = 1 << 18  # stays in a core's cache, and is long enough for two threads to pay
_ZEROS = memoryview(bytes(_CHUNK_BYTES))
_BLOCK = 16
THREADS = min(os.cpu_count() or 1, 4)  # AES and numpy let go of Python's lock while they work


class MaskStream:
    """The mask that a 32-byte seed stands for, read from a word on. The same seed must never mask two inputs.

    A key is used for one stream only, so the counter starts at zero. Words are uniform on their whole range, hence
    uniform modulo 2^b. Indistinguishable from uniform if AES-256 is a pseudorandom permutation: bias at most
    blocks^2 / 2^129.
    """

    def __init__(self, seed: bytes, word: np.dtype[Any], *, start: int = 0) -> None:
        """`start`: the first word, a multiple of 16."""
        if len(seed) != 32 or start * word.itemsize % _BLOCK:
            raise ValueError(f"a seed of {len(seed)} bytes from word {start}: must be 32 bytes, from a whole block.")
        counter = (start * word.itemsize // _BLOCK).to_bytes(_BLOCK, "big")
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()

    def into(self, buffer: Words) -> None:
        """Fill the buffer (of at most 2^18 bytes) with the next words."""
        self._cipher.update_into(_ZEROS[: buffer.nbytes], buffer.view(np.uint8).data)


class SeededMask(NamedTuple):
    """A seed whose mask is added to row `plus` and taken away from row `minus`."""

    seed: bytes
    plus: int | None = None
    minus: int | None = None


def apply_masks(rows: Words, masks: Sequence[SeededMask]) -> None:
    """Put the masks on rows [c, d], in place, modulo the word; every seed is expanded once."""
    columns = rows.shape[1]
    if columns * rows.itemsize <= _CHUNK_BYTES:
        return _apply(rows, masks, 0)
    part = -(-columns // THREADS // _BLOCK) * _BLOCK
    starts = range(0, columns, part)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda start: _apply(rows[:, start : start + part], masks, start), starts))
    return None


def _apply(rows: Words, masks: Sequence[SeededMask], start: int) -> None:
    streams = [MaskStream(mask.seed, rows.dtype, start=start) for mask in masks]
    size = _CHUNK_BYTES // rows.itemsize
    buffer = np.empty(min(size, rows.shape[1]), rows.dtype)
    for first in range(0, rows.shape[1], size):
        part = rows[:, first : first + size]
        words = buffer[: part.shape[1]]
        for stream, (_, plus, minus) in zip(streams, masks, strict=True):
            stream.into(words)
            if plus is not None:
                part[plus] += words
            if minus is not None:
                part[minus] -= words
