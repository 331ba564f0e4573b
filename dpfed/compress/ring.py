"""Ring Z_{2^b} of masked uploads. Sums of 32-bit integers wrap around; they are reduced modulo 2^b at the end only.

Rows are packed in b bits per coordinate. The lower half of an integer's bits is written first, whole or split again,
then the upper half. Single bits are written as bit planes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import WireError


def to_ring(integers: Tensor, bits: int) -> NDArray[np.uint32]:
    """Return whole numbers [...] modulo 2^bits, bits <= 32. Floats must be whole."""
    words = integers.detach().to("cpu", torch.int64).numpy()
    return (words & ((1 << bits) - 1)).astype(np.uint32)


def centre_residues(total: Tensor, bits: int) -> Tensor:
    """Return residues [...] (or a sum not yet reduced) as int64 in [-2^(bits-1), 2^(bits-1))."""
    half = 1 << (bits - 1)
    return ((total.to(torch.int64) + half) & ((1 << bits) - 1)) - half


def ring_to_bytes(rows: Tensor, bits: int) -> list[bytes]:
    """Return a message for each row [c, k] of whole numbers."""
    return [pack_row(row, bits) for row in to_ring(rows, bits)]


def ring_from_bytes(messages: Sequence[bytes], *, size: int, bits: int) -> Tensor:
    """Return residues in [0, 2^bits), int64 [c, size]. Raise WireError for a message of another length; any message of
    the right length is a row."""
    rows = np.empty((len(messages), size), dtype=np.int64)
    for row, message in zip(rows, messages, strict=True):
        row[:] = unpack_row(memoryview(message), size, bits)
    return torch.from_numpy(rows)


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest unsigned integer of at least b bits: 8, 16 or 32."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def packed_bytes(size: int, bits: int) -> int:
    """Return the length in bytes of a packed row of `size` coordinates."""
    return bits // 8 * size + bits % 8 * -(-size // 8)


def pack_row(words: NDArray[np.unsignedinteger], bits: int) -> bytes:
    """Return integers [d] of the ring, modulo 2^b, as bytes."""
    return b"".join(_packed_parts(words, bits))


def unpack_row(content: memoryview, size: int, bits: int) -> NDArray[np.unsignedinteger]:
    """Return the integers [d] of `pack_row`. Raise WireError for any other length."""
    if len(content) != packed_bytes(size, bits):
        raise WireError(
            f"{len(content)} bytes for {size} coordinates of {bits} bits: must be {packed_bytes(size, bits)}."
        )
    return _unpacked_words(content, size, bits)


def _packed_parts(words: NDArray[np.unsignedinteger], bits: int) -> list[bytes]:
    word = word_type(bits)
    words = words.astype(word, copy=False)
    if bits == 8 * word.itemsize:
        return [words.astype(word.newbyteorder("<"), copy=False).tobytes()]
    if word.itemsize == 1:
        return [np.packbits(words & np.uint8(1 << plane)).tobytes() for plane in range(bits)]
    half = 4 * word.itemsize
    return _packed_parts(words, half) + _packed_parts(words >> word.type(half), bits - half)


def _unpacked_words(content: memoryview, size: int, bits: int) -> NDArray[np.unsignedinteger]:
    word = word_type(bits)
    if bits == 8 * word.itemsize:
        return np.frombuffer(content, word.newbyteorder("<"), size).astype(word, copy=False)
    if word.itemsize == 1:
        words = np.zeros(size, np.uint8)
        for plane, its_bits in enumerate(np.frombuffer(content, np.uint8).reshape(bits, -1)):
            words |= np.unpackbits(its_bits, count=size) << np.uint8(plane)
        return words
    half = 4 * word.itemsize
    words = _unpacked_words(content[packed_bytes(size, half) :], size, bits - half).astype(word)
    words <<= word.type(half)
    words |= _unpacked_words(content[: packed_bytes(size, half)], size, half)
    return words
