"""Masks as bytes: range-coded with the probabilities that both sides know.

The cost of a mask is its cross-entropy with those probabilities, below 1 bit an entry wherever they are not 1/2.
"""

from __future__ import annotations

import constriction
import numpy as np
from numpy.typing import NDArray

from dpfed.errors import WireError

PROBABILITY_STEPS = 4096
"""Probabilities are rounded to multiples of 1/4096 before they meet the coder: the same model on every machine."""


def mask_to_bytes(mask: NDArray[np.bool_], probabilities: NDArray[np.float32]) -> bytes:
    """The bytes of a mask [n] whose entries are likely to be 1 with `probabilities` [n], as both sides hold them.

    Any mask can be coded whatever the probabilities; the better they fit, the shorter. About the cross-entropy in
    bits, plus at most 64.
    """
    encoder = constriction.stream.queue.RangeEncoder()
    encoder.encode(mask.astype(np.int32), constriction.stream.model.Bernoulli(perfect=False), _rounded(probabilities))
    words: bytes = encoder.get_compressed().astype("<u4").tobytes()
    return words


def mask_from_bytes(content: bytes, probabilities: NDArray[np.float32]) -> NDArray[np.bool_]:
    """The mask [n] of `mask_to_bytes` with the same probabilities.

    Bytes come from strangers: any bytes of a multiple of four decode to some mask, in memory bounded by n;
    WireError for another length, one that no mask needs, or words left over.
    """
    count = len(probabilities)
    if len(content) % 4 or len(content) > 4 * (count * 13 // 32 + 3):
        raise WireError(
            f"a mask of {len(content)} bytes: must be a multiple of 4 and at most what {count} entries can need. The "
            "upload is damaged or forged; drop it."
        )
    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(content, dtype="<u4").astype(np.uint32))
    try:
        entries = decoder.decode(constriction.stream.model.Bernoulli(perfect=False), _rounded(probabilities))
    except (AssertionError, ValueError) as error:
        raise WireError(f"a mask of {len(content)} bytes: not a coded mask ({error}). Drop it.") from None
    if not decoder.maybe_exhausted():
        raise WireError(f"a mask of {len(content)} bytes: more words than its {count} entries need. Drop it.")
    mask: NDArray[np.bool_] = np.asarray(entries, dtype=np.bool_)
    return mask


def _rounded(probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    steps = np.clip(np.rint(probabilities.astype(np.float64) * PROBABILITY_STEPS), 1, PROBABILITY_STEPS - 1)
    rounded: NDArray[np.float64] = steps / PROBABILITY_STEPS
    return rounded
