"""Place of a finding in the audited code, and the next step for its author."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[2])
_LIBRARIES = (_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<")
FIRST_FRAME = "_run_and_store"
"""Function of `dpfed.audit.replays.audit` that calls the code under audit."""

_STEPS = (
    ("its input moves", "Clip each client's row to the declared sensitivity before the sum."),
    (
        "its noise differs",
        "Draw noise of a declared scale, from a generator that no data and no number of clients sets.",
    ),
    ("noise is short", "Add noise of the stated standard deviation to every coordinate."),
    ("noise of consecutive calls", "Draw fresh noise in every call, or state the standard deviation of its sum."),
    ("adds no noise", "Return the argument plus noise in every coordinate."),
    ("is beyond its bound", "Clip each row before it enters the sum."),
    ("is not the sum", "Add each clipped row once, with equal weight, and nothing else."),
    ("do not add up", "Add each clipped row once, with equal weight, and nothing else."),
    ("were changed", "Compute each row from its own client or record alone."),
    ("has shape", "Choose shapes from public values only."),
    ("raises", "Handle every client's data without an error."),
    ("has a client twice", "Draw each client at most once a round."),
    ("is in the", "Decide from public values and noisy outputs only what is computed and who takes part."),
    ("differs", "Compute it from noisy outputs and declared constants only, not from data or their number."),
)


def next_step(words: str, value: str) -> str:
    """Return one sentence about what to change; `words` describe the difference of the value."""
    if value.startswith("file "):
        return "Write only noisy outputs and public values to the folder, and no times."
    if value.startswith(("expected batch size", "sampling rate", "number of steps")):
        return "Declare it as a constant, not as a function of the number of records."
    return next((step for start, step in _STEPS if start in words), "")


def call_site() -> str:
    """Return the innermost line of the code under audit that is now executed, as "file.py:12 in train"."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != FIRST_FRAME:
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARIES):
            return f"{Path(path).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def traceback_of_call(error: BaseException) -> str:
    """Return the traceback of an error, from the first line of the code under audit on."""
    frames = traceback.extract_tb(error.__traceback__)
    start = next((at for at, one in enumerate(frames) if not one.filename.startswith(_PACKAGE)), 0)
    lines = traceback.format_list(frames[start:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()
