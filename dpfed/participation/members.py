"""Members of a cohort as one string for diagnostics.jsonl, which only the operator may read.

The string holds the gaps between sorted ids, all with the bytes of the widest gap: 10,000 of 10^6 clients are 27 kB.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALL_CLIENTS = "all"
"""String for a cohort of every client exactly once."""

_MOST_AT_ONCE = 1 << 24

_WIDTHS: dict[str, np.dtype[Any]] = {
    "1": np.dtype("<u1"),
    "2": np.dtype("<u2"),
    "4": np.dtype("<u4"),
    "8": np.dtype("<u8"),
}


def members_text(ids: NDArray[np.int64], clients: int) -> str:
    """Return the string of a cohort's ids, repeats included, for clients 0 .. clients - 1."""
    ordered = np.sort(ids)
    if len(ordered) == clients and np.array_equal(ordered, np.arange(clients)):
        return ALL_CLIENTS
    gaps = np.diff(ordered, prepend=0)
    widest = int(gaps.max(initial=0))
    width = next(width for width, kind in _WIDTHS.items() if widest <= np.iinfo(kind).max)
    return f"{width}:{base64.b64encode(gaps.astype(_WIDTHS[width]).tobytes()).decode()}"


def parse_members(text: str, clients: int) -> NDArray[np.int64]:
    """Return the sorted ids from a string of `members_text`; raise ValueError for others. Memory: in proportion to the
    text."""
    if text == ALL_CLIENTS:
        if clients > _MOST_AT_ONCE:
            raise ValueError(f"members: 'all' of {clients} clients: at most {_MOST_AT_ONCE} can be read at a time.")
        return np.arange(clients)
    width, _, content = text.partition(":")
    if width not in _WIDTHS:
        raise ValueError("members: must begin with the width of a gap, 1, 2, 4 or 8, or be 'all'.")
    try:
        gaps = np.frombuffer(base64.b64decode(content, validate=True), dtype=_WIDTHS[width])
    except (binascii.Error, ValueError):
        raise ValueError("members: the gaps must be base64 of integers of the stated width.") from None
    if (len(gaps) and int(gaps.max()) > clients) or float(gaps.sum(dtype=np.float64)) > clients:
        raise ValueError(f"members: name clients beyond the {clients} of the run.")
    return np.cumsum(gaps.astype(np.int64))
