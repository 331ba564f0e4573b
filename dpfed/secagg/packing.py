"""Rows of Z_{2^b} in b bits a coordinate: whole bytes first, then the bits that are left, plane by plane."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError
from dpfed.secagg.masks import word_type


def packed_bytes(size: int, bits: int) -> int:
    """Length of a packed row of `size` coordinates."""
    return bits // 8 * size + bits % 8 * -(-size // 8)


def pack(words: NDArray[Any], bits: int) -> bytes:
    """Words [d] of the ring, modulo 2^b."""
    columns = _columns(words)
    whole, rest = divmod(bits, 8)
    if whole == words.itemsize:
        return _little(words).tobytes()
    parts = [np.ascontiguousarray(columns[:, place]) for place in range(whole)]
    if rest:
        last = np.ascontiguousarray(columns[:, whole])
        parts += [np.packbits(last & np.uint8(1 << plane)) for plane in range(rest)]
    return b"".join(part.tobytes() for part in parts)


def unpack(content: memoryview, size: int, bits: int) -> NDArray[Any]:
    """Words [d] that were packed. WireError for any other length."""
    if len(content) != packed_bytes(size, bits):
        raise WireError(
            f"{len(content)} bytes for {size} coordinates of {bits} bits: must be {packed_bytes(size, bits)}."
        )
    whole, rest = divmod(bits, 8)
    word = word_type(bits)
    if whole == word.itemsize:
        return np.frombuffer(content, word.newbyteorder("<")).astype(word, copy=False)
    words = np.zeros(size, word.newbyteorder("<"))
    columns = words.view(np.uint8).reshape(size, word.itemsize)
    packed = np.frombuffer(content, np.uint8)
    for place in range(whole):
        columns[:, place] = packed[place * size : (place + 1) * size]
    if rest:
        last = np.zeros(size, np.uint8)
        for plane, its_bits in enumerate(packed[whole * size :].reshape(rest, -1)):
            last |= np.unpackbits(its_bits, count=size) << np.uint8(plane)
        columns[:, whole] = last
    return words.astype(word, copy=False)


def _columns(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes [d, width], the lowest first."""
    return _little(words).view(np.uint8).reshape(len(words), words.itemsize)


def _little(words: NDArray[Any]) -> NDArray[Any]:
    return words.astype(words.dtype.newbyteorder("<"), copy=False)
