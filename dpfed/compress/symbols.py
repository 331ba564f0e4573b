"""Symbols as bytes: packed in bits, or entropy-coded, several symbols at once.

The coder is the asymmetric numeral system (Duda, arXiv:1311.2540) of `constriction` (Bamler, arXiv:2201.01741), of
order 0, with integer weights as the model. Its output is within about 64 bits of n H. Decoding is total: every input
decodes to some symbols, so bytes of an attacker cannot make it fail. Weights are integers below 2^53, exact in float64,
so encoder and decoder quantise them equally. Symbols that share a model are coded several at once, as one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError

Values = NDArray[Any]
"""Whole numbers or floats of any type."""

_FEW = 16  # alphabets up to this size are counted symbol by symbol: faster than numpy.bincount, which converts to int64
_TOTAL = 2.0**40
_AT_ONCE = 1 << 16


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Return n H: bits of n = Σ counts symbols, if they are coded with their own counts as the model."""
    present = counts[counts > 0].astype(np.float64)
    total = present.sum()
    return float(-(present * np.log2(present / total)).sum()) if len(present) else 0.0


def group_weights(counts: NDArray[np.int64], together: int) -> NDArray[np.float64]:
    """Return weights [m^together] of `together` symbols coded as one number, the first symbol the lowest digit.

    `together` is a power of two. A weight is the product of the symbols' relative frequencies in units of 2^-40,
    rounded down, at least one unit. A frequency is one division, and products have a fixed order: IEEE arithmetic
    rounds equally on all machines.
    """
    if together == 1:
        return np.maximum(counts, 1).astype(np.float64)
    weights: NDArray[np.float64] = counts / counts.sum()
    for _ in range(together.bit_length() - 1):
        weights = np.multiply.outer(weights, weights).reshape(-1)
    weights = np.maximum(np.floor(weights * _TOTAL), 1.0)
    return weights


def encode_symbols(symbols: Values, weights: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return symbols [n], each below len(weights), as 32-bit integers."""
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), _coder_model(weights))
    words: NDArray[np.uint32] = coder.get_compressed()
    return words


def decode_symbols(words: NDArray[np.uint32], weights: NDArray[np.float64], count: int) -> NDArray[np.uint16]:
    """Return the `count` symbols of `encode_symbols` with these weights. Raise WireError unless they use all of the
    input.

    Memory: two bytes per symbol and a fixed buffer.
    """
    if len(words) and not words[-1]:
        raise WireError("entropy-coded symbols: the last word is zero, which no encoder writes.")
    coder = constriction.stream.stack.AnsCoder(words)
    model = _coder_model(weights)
    symbols = np.empty(count, dtype=np.uint16)
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count)
        symbols[first:last] = coder.decode(model, last - first)
    if not coder.is_empty():
        raise WireError(f"entropy-coded symbols: {len(words)} integers hold more than the {count} symbols expected.")
    return symbols


def _coder_model(weights: NDArray[np.float64]) -> constriction.stream.model.Categorical:
    return constriction.stream.model.Categorical(weights, perfect=False)


_MOST_NUMBERS = 3**8  # a model of this many numbers fits a core's cache
_MOST_TOGETHER = 8


@dataclass(frozen=True, kw_only=True)
class SymbolGroups:
    """`per_number` symbols of low .. low + span - 1 as one number in base `span`, the first symbol the lowest digit.

    `per_number` is eight for span 2 or 3, four up to 9, two up to 81, else one.
    """

    low: int
    span: int

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> SymbolGroups:
        """Return groups for the symbols from the first to the last that occurs, with span at least two."""
        present = np.flatnonzero(counts)
        low = min(int(present[0]), len(counts) - 2)
        return cls(low=low, span=max(2, int(present[-1]) - low + 1))

    @property
    def symbol_range(self) -> slice:
        return slice(self.low, self.low + self.span)

    @property
    def per_number(self) -> int:
        together = 1
        while together < _MOST_TOGETHER and self.span ** (2 * together) <= _MOST_NUMBERS:
            together *= 2
        return together

    def join_symbols(self, symbols: Values, *, fill: int) -> Values:
        """Return numbers [n / together], rounded up, of symbols [n]; missing symbols are `fill`."""
        missing = np.full(-len(symbols) % self.per_number, fill, dtype=symbols.dtype)
        numbers: Values = np.concatenate([symbols, missing]) - symbols.dtype.type(self.low)
        if self.span == 2:
            return np.packbits(numbers, bitorder="little")
        bits, base = 8, self.span
        while bits < 8 * self.per_number:  # join two neighbours: first + 2^bits second
            words = np.ascontiguousarray(numbers, dtype=f"<u{bits // 8}").view(f"<u{bits // 4}")
            numbers = words - (words >> bits) * ((1 << bits) - base)
            bits, base = 2 * bits, base * base
        return numbers

    def split_numbers(self, numbers: NDArray[np.uint16], count: int, *, fill: int) -> NDArray[np.uint16]:
        """Return the `count` symbols of `join_symbols`; raise WireError unless all further symbols are `fill`."""
        digits = digits_of(self.low, self.span, self.per_number)
        symbols: NDArray[np.uint16] = np.take(digits, numbers, axis=0).reshape(-1)
        if (symbols[count:] != fill).any():
            raise WireError(f"{count} symbols: the padding of the last group of {self.per_number} is wrong.")
        return symbols[:count]


@lru_cache(maxsize=8)
def digits_of(low: int, base: int, count: int) -> NDArray[np.uint16]:
    """Return the table from a number to low plus each of its `count` digits, the lowest first, [base^count, count]."""
    digits = np.arange(base**count)[:, None] // base ** np.arange(count) % base
    return (digits + low).astype(np.uint16)


def symbol_counts(values: Values, alphabet: int) -> NDArray[np.int64]:
    """Return the number of occurrences of each symbol of 0 .. alphabet - 1; int64 [alphabet]."""
    counts = np.zeros(alphabet, dtype=np.int64)
    if not len(values):
        return counts
    low, high = int(values.min()), int(values.max())
    if high - low >= _FEW:
        return np.bincount(values, minlength=alphabet).astype(np.int64)
    for symbol in range(low, high):
        counts[symbol] = np.count_nonzero(values == symbol)
    counts[high] = len(values) - counts.sum()
    return counts


def packed_bytes(count: int, bits: int) -> int:
    """Return the number of bytes that hold `count` numbers of `bits` bits each."""
    return (count * bits + 7) // 8


def pack_bits(values: Values, bits: int) -> bytes:
    """Return numbers [n] below 2^bits as bytes, the lowest bit first."""
    planes = np.empty((len(values), bits), dtype=np.uint8)
    for place in range(bits):
        planes[:, place] = (values >> place) & 1
    return np.packbits(planes, bitorder="little").tobytes()


def unpack_bits(content: bytes, bits: int, count: int) -> NDArray[np.int64]:
    """Return the numbers [count] of `pack_bits`; raise WireError unless the last byte is padded with zeros."""
    planes = np.unpackbits(np.frombuffer(content, dtype=np.uint8), bitorder="little")
    if planes[count * bits :].any():
        raise WireError(f"{count} numbers of {bits} bits: the padding bits of the last byte are not zero.")
    values = np.zeros(count, dtype=np.int64)
    for place, plane in enumerate(planes[: count * bits].reshape(count, bits).T):
        values |= plane.astype(np.int64) << place
    return values
