"""Results that do not depend on the number of threads: by one thread, or by sums in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def one_thread() -> Iterator[int]:
    """Set torch to one CPU thread, yield the previous number, and restore it at the end. Holds for the whole process.

    Local batches are too small to divide among cores. Dividing them gains little and makes the bits depend on the
    number of cores. On busy cores dividing is a hundred times as slow, as OpenMP's threads spin while they wait.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


_RUN = 64


def row_sums(rows: Tensor) -> Tensor:
    """Return the sums [c] of rows [c, n], float64: runs of 64 are summed in float32, their sums in float64.

    This is a few times as fast as float64 throughout. Relative to the sum of magnitudes, the error is below 64 · 2^-24.
    """
    whole = rows.shape[1] // _RUN * _RUN
    runs = rows[:, :whole].reshape(len(rows), whole // _RUN, _RUN).sum(dim=2).sum(dim=1, dtype=torch.float64)
    return runs if whole == rows.shape[1] else runs + rows[:, whole:].sum(dim=1, dtype=torch.float64)
