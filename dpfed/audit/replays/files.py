"""Public content of a run's folder, which must be equal in both runs.

Exempt are only files and keys by their exact place in a folder that this process has made as a run folder of dpfed: the
operator's files, which no epsilon covers, and keys of time, data fingerprint and hash chain.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_IMODE

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
    content = path.read_bytes()
    if of_run and path.name == "report.html":
        return {name: _without_run_values(content.decode(), path.parent)}
    exempt = _KEYS.get(path.name, ()) if of_run else ()
    try:
        text = content.decode()
        if path.suffix == ".json":
            return dict(_flat_values(json.loads(text), name, exempt))
        if path.suffix == ".jsonl":
            lines = [(f"{name}, line {at + 1}", json.loads(line)) for at, line in enumerate(text.splitlines())]
            return {key: one for at, line in lines for key, one in _flat_values(line, at, exempt)}
    except ValueError:  # no text, or no JSON
        pass
    else:
        if path.suffix in (".html", ".md", ".csv", ".tsv", ".toml", ".txt"):
            return {name: text}
    return {name: hashlib.sha256(content).hexdigest()}


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
