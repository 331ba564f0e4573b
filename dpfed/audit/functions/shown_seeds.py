"""Whether a function shows the seed from which its noise follows: whoever reads it takes the noise off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfed.audit.functions.learnt_scores import seeds_cancel

Floats = NDArray[np.float64]


def shows_the_seed(one: Floats, other: Floats, seeds: list[int]) -> bool:
    """one, other: tables of outputs of both worlds, from these seeds. A seed has 31 bits, so that no number of a
    function is it by chance in most of the calls."""
    drawn = np.asarray(seeds, dtype=np.float64)[:, None]
    columns = np.zeros(one.shape[1], dtype=bool)
    for form in (drawn, drawn.astype(np.float32).astype(np.float64)):
        columns |= (one == form).mean(axis=0) > 0.5
    if not columns.any() or one.shape != other.shape:
        return False
    rest = [np.where(columns, 0.0, table) for table in (one, other)]
    return bool(rest[0].var(axis=0).any()) and seeds_cancel(rest[0], rest[1])
