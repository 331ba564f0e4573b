"""Rows of Z_{2^b} in b bits a coordinate: the lower half of the words whole, then the upper half likewise, down to
single bits, which go plane by plane."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError


def word_type(bits: int) -> np.dtype[Any]:
    """The narrowest unsigned integer of at least b bits: 8, 16 or 32."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def packed_bytes(size: int, bits: int) -> int:
    """Length of a packed row of `size` coordinates."""
    return bits // 8 * size + bits % 8 * -(-size // 8)


def pack(words: NDArray[Any], bits: int) -> bytes:
    """Words [d] of the ring, modulo 2^b."""
    return b"".join(_parts(words, bits))


def unpack(content: memoryview, size: int, bits: int) -> NDArray[Any]:
    """Words [d] that were packed. WireError for any other length."""
    if len(content) != packed_bytes(size, bits):
        raise WireError(
            f"{len(content)} bytes for {size} coordinates of {bits} bits: must be {packed_bytes(size, bits)}."
        )
    return _words(content, size, bits)


def _parts(words: NDArray[Any], bits: int) -> list[bytes]:
    word = word_type(bits)
    words = words.astype(word, copy=False)
    if bits == 8 * word.itemsize:
        return [words.astype(word.newbyteorder("<"), copy=False).tobytes()]
    if word.itemsize == 1:
        return [np.packbits(words & np.uint8(1 << plane)).tobytes() for plane in range(bits)]
    half = 4 * word.itemsize
    return _parts(words, half) + _parts(words >> word.type(half), bits - half)


def _words(content: memoryview, size: int, bits: int) -> NDArray[Any]:
    word = word_type(bits)
    if bits == 8 * word.itemsize:
        return np.frombuffer(content, word.newbyteorder("<"), size).astype(word, copy=False)
    if word.itemsize == 1:
        words = np.zeros(size, np.uint8)
        for plane, its_bits in enumerate(np.frombuffer(content, np.uint8).reshape(bits, -1)):
            words |= np.unpackbits(its_bits, count=size) << np.uint8(plane)
        return words
    half = 4 * word.itemsize
    words = _words(content[packed_bytes(size, half) :], size, bits - half).astype(word)
    words <<= word.type(half)
    words |= _words(content[: packed_bytes(size, half)], size, half)
    return words
