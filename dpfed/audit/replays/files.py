"""Public values in a run's folder, which must be equal in both runs, except for a closed list of keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

OPERATORS = ("diagnostics.jsonl", "canaries.jsonl", "lock", "own_code.json")
"""Files for the operator only, which no epsilon covers. Checkpoints, heads and keys are not compared either."""
MAY_DIFFER = (
    "summary.json: seconds",
    "summary.json: population, ledger_head",
    "ledger.jsonl: population, chain, binding",
    "report.html, model-card.md: seconds, hashes, paths",
)
"""Closed list of keys that may differ: time, the fingerprint of the data, and the hash chain over both."""
REPORTS = ("report.html", "curves.png", "model-card.md")
"""Files computed from other files, compared only for pairs with equal data and with many clients changed to "far"."""
_KEYS = {
    "summary.json": ("seconds", "population", "ledger_head"),
    "ledger.jsonl": ("population", "chain", "binding"),
}
_IN_TEXT = re.compile(r"[0-9a-f]{12,}|\d+(\.\d+)? (s|seconds|ms|min)\b|/[^<\"\s]*/run\b")


def public_files(folder: Path) -> dict[str, object]:
    """Return every public value in the folder; the key names its file and its place in the file."""
    seen: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if (
            not path.is_file()
            or path.name in OPERATORS
            or any(word in path.name for word in ("checkpoint", "key", ".head", ".lock"))
        ):
            continue
        content = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
            for place, line in enumerate(lines):
                at = f"{name}, line {place + 1}" if path.suffix == ".jsonl" else name
                seen.update(_flat_values(json.loads(line), at, _KEYS.get(path.name, ())))
        elif path.suffix in (".html", ".md", ".csv", ".toml", ".txt"):
            seen[name] = _IN_TEXT.sub("#", content.decode())
        else:
            seen[name] = hashlib.sha256(content).hexdigest()
    return seen


def _flat_values(value: object, name: str, but: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key not in but:
                yield from _flat_values(one, f"{name}, {key}", but)
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from _flat_values(one, f"{name}[{place}]", but)
    else:
        yield name, value
