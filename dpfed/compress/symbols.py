"""Order-0 entropy coding: symbols to 32-bit words and back, with integer weights as the model.

The coder is the asymmetric numeral system (Duda, arXiv:1311.2540) of `constriction` (Bamler, arXiv:2201.01741). Its
output is within about 64 bits of n H, and decoding is total: any words decode to some symbols, so bytes from a
stranger cannot make it fail. Weights are integers below 2^53, exact in float64, so both sides quantise them alike.
"""

from __future__ import annotations

from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError

_TOTAL = 2.0**40
_AT_ONCE = 1 << 16


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """n H: the bits that n = Σ counts symbols cost when they are coded with their own counts as the model."""
    present = counts[counts > 0].astype(np.float64)
    total = present.sum()
    return float(-(present * np.log2(present / total)).sum()) if len(present) else 0.0


def group_weights(counts: NDArray[np.int64], together: int) -> NDArray[np.float64]:
    """Weights [m^together] of that many symbols coded as one, the first the lowest digit; a power of two of them.

    The product of the symbols' shares in units of 2^-40, rounded down, at least one unit. A share is one division, and
    the products have a fixed order: IEEE arithmetic rounds each alike everywhere.
    """
    if together == 1:
        return np.maximum(counts, 1).astype(np.float64)
    weights: NDArray[np.float64] = counts / counts.sum()
    for _ in range(together.bit_length() - 1):
        weights = np.multiply.outer(weights, weights).reshape(-1)
    weights = np.maximum(np.floor(weights * _TOTAL), 1.0)
    return weights


def encode(symbols: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Symbols [n], each below len(weights), to words."""
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), _model(weights))
    words: NDArray[np.uint32] = coder.get_compressed()
    return words


def decode(words: NDArray[np.uint32], weights: NDArray[np.float64], count: int) -> NDArray[np.uint16]:
    """The `count` symbols of `encode` with the same weights. WireError unless they use up the words exactly.

    Memory: two bytes a symbol and a fixed buffer.
    """
    if len(words) and not words[-1]:
        raise WireError("entropy-coded symbols: the last word is zero, which no encoder writes.")
    coder = constriction.stream.stack.AnsCoder(words)
    model = _model(weights)
    symbols = np.empty(count, dtype=np.uint16)
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count)
        symbols[first:last] = coder.decode(model, last - first)
    if not coder.is_empty():
        raise WireError(f"entropy-coded symbols: {len(words)} words hold more than the {count} symbols expected.")
    return symbols


def _model(weights: NDArray[np.float64]) -> constriction.stream.model.Categorical:
    return constriction.stream.model.Categorical(weights, perfect=False)
