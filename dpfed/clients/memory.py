"""How many clients are in memory at a time."""

from __future__ import annotations

import os

import torch

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
