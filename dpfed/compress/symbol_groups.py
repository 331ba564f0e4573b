"""Several symbols as one number, so that an entropy coder with the same model for all takes them at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError

_MOST_NUMBERS = 3**8  # their model stays in a core's cache
_MOST_TOGETHER = 8


@dataclass(frozen=True, kw_only=True)
class SymbolGroups:
    """`together` symbols of low .. low + span - 1 as one number in base `span`, the first symbol the lowest digit.

    Eight together where there are two or three of them, four up to nine, two up to 81, else one.
    """

    low: int
    span: int

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> SymbolGroups:
        """Of the symbols from the first to the last that occurs, at least two."""
        present = np.flatnonzero(counts)
        low = min(int(present[0]), len(counts) - 2)
        return cls(low=low, span=max(2, int(present[-1]) - low + 1))

    @property
    def held(self) -> slice:
        return slice(self.low, self.low + self.span)

    @property
    def together(self) -> int:
        together = 1
        while together < _MOST_TOGETHER and self.span ** (2 * together) <= _MOST_NUMBERS:
            together *= 2
        return together

    def join(self, symbols: NDArray[Any], *, fill: int) -> NDArray[Any]:
        """Symbols [n] to numbers [n / together], rounded up: what is missing is `fill`."""
        missing = np.full(-len(symbols) % self.together, fill, dtype=symbols.dtype)
        numbers: NDArray[Any] = np.concatenate([symbols, missing]) - symbols.dtype.type(self.low)
        if self.span == 2:
            return np.packbits(numbers, bitorder="little")
        bits, base = 8, self.span
        while bits < 8 * self.together:  # two neighbours as one word: first + 2^bits second
            words = np.ascontiguousarray(numbers, dtype=f"<u{bits // 8}").view(f"<u{bits // 4}")
            numbers = words - (words >> bits) * ((1 << bits) - base)
            bits, base = 2 * bits, base * base
        return numbers

    def split(self, numbers: NDArray[np.uint16], count: int, *, fill: int) -> NDArray[np.uint16]:
        """The `count` symbols of `join`; WireError unless what is too many of them is `fill`."""
        symbols: NDArray[np.uint16] = np.take(_digits(self.low, self.span, self.together), numbers, axis=0).reshape(-1)
        if (symbols[count:] != fill).any():
            raise WireError(f"{count} symbols: those that fill up the last group of {self.together} are not fill.")
        return symbols[:count]


@lru_cache(maxsize=8)
def _digits(low: int, base: int, count: int) -> NDArray[np.uint16]:
    """Number -> low plus each of its `count` digits, the lowest first, [base^count, count]."""
    digits = np.arange(base**count)[:, None] // base ** np.arange(count) % base
    return (digits + low).astype(np.uint16)
