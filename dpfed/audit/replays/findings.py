"""Values and files that a replay audit compares, and its findings.

Exempt are only files and keys by their exact place in a folder that this process has made as a run folder of dpfed: the
operator's files, which no epsilon covers, and keys of time, data fingerprint and hash chain.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_IMODE
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.replayed import Norm

OPERATORS = (
    "diagnostics.jsonl",
    "canaries.jsonl",
    "checkpoint.safetensors",
    "population.key",
    "schedule.key",
    "ledger.jsonl.head",
    "ledger.jsonl.lock",
    "lock",
    "own_code.json",
    "client_names.json",
)
"""Files of a run folder for the operator only, which no epsilon covers: not compared."""
MAY_DIFFER = (
    "summary.json: seconds",
    "summary.json: population, ledger_head",
    "ledger.jsonl: population, chain, binding",
    "report.html: seconds, ledger_head, path of the folder",
)
"""Closed list of keys of a run folder that may differ: time, the fingerprint of the data, the hash chain over both."""
_REPORTS = ("report.html", "curves.png")
"""Files of a run folder that are computed from its other files, and not written in every run of the audit."""
_TIME = re.compile(r'<div class="number">[^<]*</div>\s*<div>time</div>')
"""Card with the seconds of a run in report.html."""
_KEYS = {
    "summary.json": ("seconds", "population", "ledger_head"),
    "ledger.jsonl": ("population", "chain", "binding"),
}


@dataclass
class PublicFiles:
    """Values in a folder by file and place; names of the values of reports, and of the files that are not compared."""

    values: dict[str, object] = field(default_factory=dict)
    reports: set[str] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)


def public_files(folder: Path, run_folders: Sequence[Path] = ()) -> PublicFiles:
    """Return every public value of the folder: names, modes and targets of links of all entries, contents of files.

    run_folders: folders that dpfed has made in this run
    """
    found = PublicFiles()
    runs = {one.resolve() for one in run_folders}
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        name = str(path.relative_to(folder))
        of_run = path.parent.resolve() in runs
        if of_run and path.name in OPERATORS:
            found.skipped.append(name)
            continue
        if of_run and path.name in _REPORTS:
            found.reports |= {name, f"{name}, mode"}
        found.values[f"{name}, mode"] = oct(S_IMODE(path.lstat().st_mode))
        if path.is_symlink():
            found.values[name] = f"link to {path.readlink()}"
        elif path.is_dir():
            found.values[name] = "folder"
        elif path.is_file():
            found.values |= _values_of_file(path, name, of_run)
    return found


def _values_of_file(path: Path, name: str, of_run: bool) -> dict[str, object]:
    """Return the text of a file, or the digest of a binary file; of the files with exempt keys, the other values."""
    content = path.read_bytes()
    try:
        text = content.decode()
    except ValueError:
        return {name: hashlib.sha256(content).hexdigest()}
    if of_run and path.name == "report.html":
        return {name: _without_run_values(text, path.parent)}
    if not of_run or path.name not in _KEYS:
        return {name: text}
    exempt = _KEYS[path.name]
    if path.suffix == ".json":
        return dict(_flat_values(json.loads(text), name, exempt))
    lines = [(f"{name}, line {at}", json.loads(line)) for at, line in enumerate(text.splitlines(), start=1)]
    return {key: one for at, line in lines for key, one in _flat_values(line, at, exempt)}


def _without_run_values(text: str, folder: Path) -> str:
    """Return a report without the time, the hashes and the path of its run."""
    summary = json.loads((folder / "summary.json").read_text())
    values = [str(summary.get("ledger_head")), str(summary.get("population")), str(folder), str(folder.resolve())]
    for value in values:
        text = text.replace(value, "#")
    return _TIME.sub("#", text)


def _flat_values(value: object, name: str, but: Sequence[str]) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield f"{name}, keys", sorted(key for key in value if key not in but)
        for key, one in value.items():
            if key not in but:
                yield from _flat_values(one, f"{name}, {key}", but)
    elif isinstance(value, list):
        yield f"{name}, length", len(value)
        for place, one in enumerate(value):
            yield from _flat_values(one, f"{name}[{place}]", but)
    else:
        yield name, value


Array = NDArray[Any]
Floats = NDArray[np.float64]


def as_array(value: object) -> Array:
    """Return a number, an array or a tensor as an array; a sequence of these is concatenated."""
    if isinstance(value, list | tuple):
        parts = [as_array(one).reshape(-1) for one in value]
        return np.concatenate(parts) if parts else np.zeros(0)
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.atleast_1d(np.array(value))


def in_form_of(array: Array, value: Any) -> Any:
    """Return the entries of `array` as an object of the type, shape and dtype of `value`."""
    if isinstance(value, list | tuple):
        made, start = [], 0
        for one in value:
            size = as_array(one).size
            made.append(in_form_of(array[start : start + size], one))
            start += size
        return type(value)(made)
    if hasattr(value, "detach"):
        import torch

        return torch.from_numpy(array.reshape(tuple(value.shape))).to(value)
    if isinstance(value, np.ndarray):
        return array.reshape(value.shape).astype(value.dtype)
    return type(value)(array.reshape(-1)[0])


def digest(value: object) -> str:
    """Return a digest of the value; arrays are compared by their bits.

    Digests of different values are equal with probability 2^-128. SHA-256 is used since processors have instructions
    for it: rows of millions of numbers are hashed after every stage.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        found = hashlib.sha256(f"{value.dtype}{value.shape}".encode())
        whole = np.ascontiguousarray(value).reshape(-1)
        found.update(whole.tobytes() if value.dtype == object else whole.view(np.uint8).data)
        return "#" + found.hexdigest()[:32]
    if isinstance(value, list | tuple) and any(hasattr(one, "dtype") for one in value):
        return "#" + hashlib.sha256("".join(map(digest, value)).encode()).hexdigest()[:32]
    return repr(value)


def norm_of(moved: Floats, norm: Norm) -> float:
    """Return the norm of a difference; NaN if the difference has a NaN."""
    with np.errstate(all="ignore"):
        flat = moved.reshape(-1)
        order: float = {"l1": 1, "l2": 2, "linf": math.inf}[norm]
        return float(np.linalg.norm(flat, order)) if flat.size else 0.0


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
    ("noise of its coordinates", "Draw noise for each coordinate by itself."),
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
        if self.value.startswith("file "):
            return "Write only noisy outputs and public values to the folder, and no times."
        if self.value.startswith(("expected batch size", "sampling rate", "number of steps")):
            return "Declare it as a constant, not as a function of the number of records."
        return next((step for start, step in _STEPS if start in self.words), "")

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the difference."""
        return {
            "round": self.round,
            "client": self.client,
            "record": self.record,
            "value": self.value,
            "words": self.words,
            "moved": self.size,
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
