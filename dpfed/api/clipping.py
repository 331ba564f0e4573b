"""A hint for the operator's terminal while a run goes on: is the clip norm far from what clients send?

It reads diagnostics.jsonl, which no epsilon covers, so it is said on a terminal only, never in a log or to a tracker.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FAR = 10.0
_TAIL = 1 << 16


def clipping_hint(folder: Path) -> str | None:
    """Words where the typical update of the last round is ten clip norms long or more, or a tenth or less."""
    last = _last_line(folder / "diagnostics.jsonl")
    typical, counted = last.get("typical_norm"), last.get("counted")
    if not isinstance(typical, float) or not counted:
        return None
    share = f"{last.get('clipped') or 0} of {counted} updates are clipped"
    if typical >= FAR:
        return f"{share}; a typical one is {typical:.3g} clip norms long (`dpfed diagnose {folder}`)"
    if typical <= 1 / FAR:
        return f"{share}; a typical one is {typical:.2g} of the clip norm (`dpfed diagnose {folder}`)"
    return None


def _last_line(file: Path) -> dict[str, Any]:
    """The last whole line; nothing where it cannot be read: a hint is no reason to stop."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL))
            found = json.loads(stream.read().rstrip(b"\n").rpartition(b"\n")[2])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
