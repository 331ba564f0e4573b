"""Tensor operations of local training stay on one thread each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[int]:
    """Torch on one CPU thread inside; yields the number it had, and restores it. Holds for the whole process.

    Local batches are too small to divide among cores: dividing them gains little, makes the bits depend on the
    number of cores, and on busy cores costs a hundredfold, as OpenMP's threads spin while they wait.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
