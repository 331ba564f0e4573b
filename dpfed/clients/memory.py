"""How many clients are in memory at a time, and what happens when that was too many."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from dpfed.errors import TrainingFailed

_CACHED = 20_000_000
"""Bytes of a chunk on a CPU that stay near its cores: larger chunks are slower (benchmarks/README.md)."""
_MOST = {"cpu": 100, "cuda": 1000}
_SHARE = {"cpu": 4, "cuda": 2}


def default_budget(device: torch.device) -> int:
    """Bytes: a quarter of the machine's main memory, or half of what is free on a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // _SHARE["cuda"]
    if not hasattr(os, "sysconf"):
        return 1 << 30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE["cpu"]


def chunk_within(budget: int, each: int, device: torch.device) -> int:
    """Clients of `each` bytes that are trained side by side in `budget` bytes; at least one."""
    fast = max(_CACHED // each, 10) if device.type == "cpu" else _MOST["cuda"]
    return max(1, min(budget // each, fast, _MOST.get(device.type, 100)))


class Chunk:
    """So many clients at a time; half as many from then on whenever memory runs out."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def go_through(self, count: int, train: Callable[[int, int], None]) -> None:
        """Call train(start, stop) over 0 .. count, again with fewer where it ran out of memory.

        Raises TrainingFailed where one client alone is too many. On Linux a process that takes more main memory than
        there is may be killed without a word: a smaller `local.memory` helps there.
        """
        start = 0
        while start < count:
            stop = min(start + self.clients, count)
            said = _fails(train, start, stop)
            if said is None:
                start = stop
            else:
                self._halve(stop - start, said)

    def _halve(self, tried: int, said: str) -> None:
        if tried == 1:
            raise TrainingFailed(
                f"local training: not even one client fits into memory ({said}). Choose a smaller local.batch_size or "
                "model, or a device with more memory."
            )
        self.clients = tried // 2
        warnings.warn(
            f"local training: no memory for {tried} clients at a time ({said}); going on with {self.clients}. Set "
            "local.chunk or local.memory to start so.",
            RuntimeWarning,
            stacklevel=2,
        )


def _fails(train: Callable[[int, int], None], start: int, stop: int) -> str | None:
    """What was said when memory ran out, if it did. The failed attempt's tensors are free on return."""
    try:
        train(start, stop)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        said = str(error).strip().splitlines()
        return said[0][:200] if said else type(error).__name__
    return None


def room_for_moves(clients: int, size: int, device: torch.device) -> Tensor:
    """[clients, size], not yet filled. Raises TrainingFailed where there is no memory for it."""
    try:
        return torch.empty(clients, size, device=device)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingFailed(
            f"local training: the moves of {clients} clients, {size:,} numbers each, do not fit into memory. Choose a "
            "smaller run.group."
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Whether a tensor found no room: on a GPU, in torch's CPU allocator, or in Python itself."""
    words = ("can't allocate memory", "not enough memory")  # Linux and macOS; Windows
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in words)
