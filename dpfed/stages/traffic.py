"""Bytes of uploads that a simulation only counts: on a GPU by other processes, while the next clients train.

Symbols are packed on the device, in one, two or four bits if they fit, so that no more than the uncoded bytes of the
uploads is copied. Entropy coding holds Python's lock, so that threads would stop the training.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fields import Floats, SymbolField
from dpfed.compress.payload import Payloads

Traffic = tuple[int, int | None]
"""Bytes of uploads, and their bits by FedPM's measure if they are masks."""

_PROCESSES = 8


def counting_processes() -> Executor:
    """Return the processes that count, which end after five idle minutes."""
    workers: Executor = get_reusable_executor(max_workers=min(_PROCESSES, cpu_count()), timeout=300)
    return workers


def count_beside(count: Callable[..., Traffic], packed: NDArray[Any], *given: Any) -> list[Future[Traffic]]:
    """Return the results of count(rows, *given) for a part of the packed rows [c, ...] in each process."""
    workers = counting_processes()
    parts = np.array_split(packed, min(len(packed), _PROCESSES))
    return [workers.submit(count, part, *given) for part in parts]


def count_payloads_beside(payloads: Payloads) -> tuple[int, list[Future[Traffic]]]:
    """Return the bytes of the fields whose length is fixed, with headers, and the counts of all other fields."""
    if not len(payloads):
        return 0, []
    fixed, counts = payloads.header_bytes, list[Future[Traffic]]()
    for name, part in payloads.scheme.layout(payloads.dimension).items():
        if isinstance(part, Floats):
            fixed += part.most_bytes
            continue
        bits = (part.alphabet - 1).bit_length() if isinstance(part, SymbolField) else None
        counts += count_beside(coded_bytes, pack_rows(payloads.fields[name], bits), part, bits)
    return fixed * len(payloads), counts


def coded_bytes(packed: NDArray[Any], part: Any, bits: int | None) -> Traffic:
    """Return the bytes of a field of these packed rows."""
    rows = unpack_rows(packed, bits, part.count)
    return sum(len(part.write(row.astype(part.dtype, copy=False)).content) for row in rows), None


def _per_byte(bits: int | None) -> int:
    """Return the number of entries in a byte, 1 if they are not packed."""
    return 8 // next((size for size in (1, 2, 4) if bits is not None and bits <= size), 8)


def pack_rows(rows: Tensor, bits: int | None) -> NDArray[Any]:
    """Return rows [c, n] on the CPU; whole numbers of at most eight bits are packed on their device before."""
    together, packed = _per_byte(bits), rows if bits is None or bits > 8 else rows.to(torch.uint8)
    if together > 1:
        filled = torch.nn.functional.pad(packed, (0, -rows.shape[1] % together))
        packed = filled[:, ::together].clone()
        for place in range(1, together):
            packed |= filled[:, place::together] << (8 // together * place)
    return packed.cpu().numpy()


def unpack_rows(packed: NDArray[Any], bits: int | None, count: int) -> NDArray[Any]:
    """Return the rows [c, count] of `pack_rows`."""
    together = _per_byte(bits)
    if together == 1:
        return packed
    size = 8 // together
    shifts = np.arange(0, 8, size, dtype=np.uint8)
    rows: NDArray[Any] = packed[:, :, None] >> shifts & np.uint8((1 << size) - 1)
    return rows.reshape(len(packed), -1)[:, :count]
