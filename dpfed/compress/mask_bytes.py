"""Masks as bytes, range-coded with probabilities that encoder and decoder both have.

The length of a coded mask is its cross-entropy with these probabilities: below 1 bit per entry unless they are 1/2.
Entries of similar probability are coded together, eight to a symbol, with their mean probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import constriction
import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError

PROBABILITY_STEPS = 4096
"""Probabilities are rounded to multiples of 1/4096 before coding, so that the model is equal on every machine."""

_GROUP = 8
_MEAN_STEPS = 1 << 16
_WEIGHT_BITS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskCoder:
    """Encoder and decoder of masks [n] whose entries are 1 with `probabilities` [n]; an instance is for many masks.

    Probabilities p are grouped by isqrt(2 · 4096 p), or that of 1 - p above 1/2, into 129 contexts. Coding with a
    context's mean probability takes at most 1e-4 bits per entry more than with the exact ones. The entries of a context
    form symbols of eight, in order; the remaining entries are coded one by one with their own probability. The model is
    in integers throughout, so encoder and decoder have equal models.
    """

    probabilities: NDArray[np.float32]

    def encode(self, mask: NDArray[np.bool_]) -> bytes:
        """Return the bytes of a mask. Any mask can be coded; a mask likely under the probabilities is shorter.

        The size is about the cross-entropy in bits, plus at most 64 bits and 1e-4 bits per entry.
        """
        entries = mask.view(np.uint8) if mask.dtype == np.bool_ else mask.astype(np.uint8)
        symbols = np.packbits(entries[self._grouped_entries], bitorder="little").astype(np.int32)
        encoder = constriction.stream.queue.RangeEncoder()
        for first, last, model in self._models:
            encoder.encode(symbols[first:last], model)
        if len(self._singles):
            encoder.encode(
                entries[self._singles].astype(np.int32), _bit_model(), self._steps[self._singles] / PROBABILITY_STEPS
            )
        words: bytes = encoder.get_compressed().astype("<u4").tobytes()
        return words

    def decode(self, content: bytes) -> NDArray[np.bool_]:
        """Return the mask [n] of `encode` with the same probabilities.

        Bytes may come from an attacker: any bytes of a multiple of four decode to some mask, in memory bounded by n.
        Raises WireError for another length, for more bytes than any mask needs, and for bytes left over.
        """
        count = len(self.probabilities)
        if len(content) % 4 or len(content) > 4 * (count * 13 // 32 + 3):
            raise WireError(
                f"a mask of {len(content)} bytes: must be a multiple of 4 and at most what {count} entries can need. "
                "The upload is damaged or forged; drop it."
            )
        decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(content, dtype="<u4").astype(np.uint32))
        symbols = np.empty(len(self._grouped_entries) // _GROUP, dtype=np.uint8)
        mask = np.empty(count, dtype=np.uint8)
        try:
            for first, last, model in self._models:
                symbols[first:last] = decoder.decode(model, last - first)
            if len(self._singles):
                mask[self._singles] = decoder.decode(_bit_model(), self._steps[self._singles] / PROBABILITY_STEPS)
        except (AssertionError, ValueError) as error:
            raise WireError(f"a mask of {len(content)} bytes: not a coded mask ({error}). Drop it.") from None
        if not decoder.maybe_exhausted():
            raise WireError(f"a mask of {len(content)} bytes: more than its {count} entries need. Drop it.")
        mask[self._grouped_entries] = np.unpackbits(symbols, bitorder="little")
        return mask.view(np.bool_)

    @cached_property
    def _steps(self) -> NDArray[np.uint16]:
        steps = np.rint(self.probabilities.astype(np.float64) * PROBABILITY_STEPS)
        return np.clip(steps, 1, PROBABILITY_STEPS - 1).astype(np.uint16)

    @cached_property
    def _context_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The entries ordered by context, and the start of each context in this order, with the end."""
        contexts = _CONTEXTS[self._steps]
        starts = np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=int(_CONTEXTS.max()) + 1))])
        return np.argsort(contexts, kind="stable"), starts

    @cached_property
    def _grouped_entries(self) -> NDArray[np.int64]:
        """The entries that are coded eight at a time, in order."""
        order, starts = self._context_order
        return np.concatenate([order[a : b - (b - a) % _GROUP] for a, b in pairwise(starts)])

    @cached_property
    def _singles(self) -> NDArray[np.int64]:
        order, starts = self._context_order
        return np.concatenate([order[b - (b - a) % _GROUP : b] for a, b in pairwise(starts)])

    @cached_property
    def _models(self) -> list[tuple[int, int, constriction.stream.model.Categorical]]:
        """For every context, the (first, end) of its symbols and their model."""
        order, starts = self._context_order
        models, first = [], 0
        for a, b in pairwise(starts.tolist()):
            last = first + (b - a) // _GROUP
            if last > first:
                total = int(self._steps[order[a:b]].sum(dtype=np.int64))
                models.append((first, last, _byte_model(total * _MEAN_STEPS // (PROBABILITY_STEPS * (b - a)))))
            first = last
        return models


def mask_to_bytes(mask: NDArray[np.bool_], probabilities: NDArray[np.float32]) -> bytes:
    """Return `MaskCoder.encode` of one mask."""
    return MaskCoder(probabilities=probabilities).encode(mask)


def mask_from_bytes(content: bytes, probabilities: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return `MaskCoder.decode` of one mask."""
    return MaskCoder(probabilities=probabilities).decode(content)


def _bit_model() -> constriction.stream.model.Bernoulli:
    return constriction.stream.model.Bernoulli(perfect=False)


def _byte_model(ones: int) -> constriction.stream.model.Categorical:
    """Return the model of a byte of eight Bernoulli samples with mean ones / 65,536; weights in whole numbers."""
    shift = 16 * _GROUP - _WEIGHT_BITS
    by_ones = [max(1, ones**k * (_MEAN_STEPS - ones) ** (_GROUP - k) >> shift) for k in range(_GROUP + 1)]
    weights = np.array([by_ones[byte.bit_count()] for byte in range(1 << _GROUP)], dtype=np.float64)
    return constriction.stream.model.Categorical(weights, perfect=False)


def _context_of_steps(steps: int) -> int:
    below = min(steps, PROBABILITY_STEPS - steps)
    place = math.isqrt(2 * below)
    return place if steps == below else 2 * math.isqrt(PROBABILITY_STEPS) - place


_CONTEXTS = np.array([_context_of_steps(steps) for steps in range(PROBABILITY_STEPS + 1)], dtype=np.uint8)
