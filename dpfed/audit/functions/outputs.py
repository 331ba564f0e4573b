"""What a function lets see, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import ConfigError

Floats = NDArray[np.float64]


def numbers_of(seen: Any) -> Floats:
    """All numbers of an output, in order [k]: arrays and tensors of any library and shape, numbers, text, bytes, and
    lists and dictionaries of these (by sorted keys). ConfigError for anything else."""
    parts = _parts(seen)
    return np.concatenate(parts) if parts else np.zeros(0)


def _parts(seen: Any) -> list[Floats]:
    if seen is None:
        return []
    if isinstance(seen, str):
        seen = seen.encode()
    if isinstance(seen, bytes | bytearray | memoryview):
        return [np.frombuffer(bytes(seen), dtype=np.uint8).astype(np.float64)]
    if isinstance(seen, Mapping):
        return [part for key in sorted(seen, key=str) for part in _parts(seen[key])]
    if isinstance(seen, list | tuple | set | frozenset):
        return [part for one in seen for part in _parts(one)]
    if hasattr(seen, "detach"):
        seen = seen.detach().cpu()
    try:
        found = np.asarray(seen)
        if np.iscomplexobj(found):
            found = np.stack([found.real, found.imag])
        return [found.astype(np.float64).ravel()]
    except (TypeError, ValueError):
        raise ConfigError(
            f"the function returned {type(seen).__name__}: must be arrays, tensors, numbers, text, bytes, or lists and "
            "dictionaries of these."
        ) from None


def table_of(rows: list[Floats]) -> Floats:
    """One row a trial [n, width + 2]: numbers, zeros where a trial has fewer, then how many there are and how many of
    them are not finite (which count as zeros)."""
    width = max((row.size for row in rows), default=0)
    table = np.zeros((len(rows), width + 2))
    for line, row in zip(table, rows, strict=True):
        finite = np.isfinite(row)
        line[: row.size] = np.where(finite, row, 0.0)
        line[-2:] = row.size, (~finite).sum()
    return table


def widened(table: Floats, width: int) -> Floats:
    """The same with columns for `width` numbers: cut, or filled with zeros."""
    kept = table[:, :-2][:, :width]
    filled = np.pad(kept, ((0, 0), (0, width - kept.shape[1])))
    return np.concatenate([filled, table[:, -2:]], axis=1)
