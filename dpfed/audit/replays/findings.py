"""Findings of a run of a replay audit: differences, the line of the audited code, the next step, and counts."""

from __future__ import annotations

import math
import sys
import sysconfig
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return ""


def traceback_of_call(error: BaseException) -> str:
    """Return the traceback of an error, from the first line of the code under audit on."""
    frames = traceback.extract_tb(error.__traceback__)
    start = next((at for at, one in enumerate(frames) if not one.filename.startswith(_PACKAGE)), 0)
    lines = traceback.format_list(frames[start:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


Key = tuple[int, str, int | tuple[int, int] | None, int]
"""Key of a value: (round from 0, or -1 outside rounds; name; client or (client, record); number of earlier uses)."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Value outside all mechanisms that depends on the changed data, or a bound that the code exceeds.

    value:   name of the value
    words:   description of the difference
    round:   number of the round, from 1; None outside rounds
    size:    size of the difference; None if it has none. allowed: largest allowed size; None if by is None
    made_by: network module or loss in which the difference arises ("in ...", "between ..."); "" if not explained
    where:   line of the audited code, "file.py:12 in train"; "" if unknown
    """

    value: str
    words: str
    round: int | None = None
    client: int | None = None
    record: int | None = None
    size: float | None = None
    allowed: float | None = None
    made_by: str = ""
    where: str = ""

    @property
    def is_finite(self) -> bool:
        """False if the difference is a NaN or an infinity."""
        return self.size is None or math.isfinite(self.size)

    @property
    def needs_two_runs(self) -> bool:
        """True if the difference is one between two runs; False for a fault that one run shows by itself."""
        return self.words.startswith(
            ("differ", "is in the", "its noise differs", "its input moves", "has shape", "raises")
        )

    @property
    def next_step(self) -> str:
        """Sentence about what to change in the audited code."""
        return next_step(self.words, self.value)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the difference."""
        return {
            "round": self.round,
            "client": self.client,
            "record": self.record,
            "value": self.value,
            "words": self.words,
            "moved": self.size if self.is_finite else None,
            "allowed": self.allowed,
            "where": self.where,
            "next_step": self.next_step,
        }

    @property
    def as_text(self) -> str:
        """Description for a reader: round, client, record, value and difference."""
        where = [] if self.round is None else [f"round {self.round}"]
        where += [] if self.client is None else [f"client {self.client}"]
        where += [] if self.record is None else [f"record {self.record}"]
        much = "" if self.size is None else f" by {self.size:.3g}"
        much += "" if self.allowed is None else f", at most {self.allowed:.3g} allowed"
        much += f"; it arises {self.made_by}" if self.made_by else ""
        much += f" ({self.where})" if self.where else ""
        return f"{', '.join(where)}{': ' if where else ''}{self.value}: {self.words}{much}"


@dataclass
class RunFindings:
    """Differences that a run of the audit found, and counts of compared values."""

    differences: list[Difference] = field(default_factory=list)
    values: int = 0
    rows: int = 0
    altered_values: int = 0
    """Number of values that the pair's change has altered: rows, inputs of mechanisms, values of changed clients."""
    mechanisms: int = 0
    largest_moved_bounds: float = 0.0
    """Largest move of a mechanism's input for each changed client, in multiples of the declared sensitivity."""
    largest_used_part: float = 0.0
    """Largest move of a mechanism's input, as a part of the allowed sensitivity."""
    rounds: int = 0
    present: list[list[int]] = field(default_factory=list)
    units: int = 0
    of_dataset: bool = False
    removal_is_neighbour: bool = True
    of_records: dict[int, int] = field(default_factory=dict)
    has_sizes: bool = False
    """True if the entries of the data are clients with samples."""
    units_are_records: bool = False
    fixed_size: str = ""
    """Reason why every round or batch has a fixed size, so that removal is no neighbour; "" if none was seen."""
    uncoupled: bool = False
    """True if the draws of the two runs differed in number."""
    certain: bool = True
    """False if the first difference may come from draws that differed in number."""
    skipped_files: list[str] = field(default_factory=list)
    declared_replacement: bool = False
    """True if the declared sensitivity of every mechanism covers a replaced client."""
    seconds: float = 0.0
    megabytes: int = 0
    error: str = ""
    refused: bool = False
    modules: tuple[str, ...] = ()
