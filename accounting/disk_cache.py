"""Cache on disk of results that take seconds or minutes to compute.

The file of an entry is named by a hash of its question. A question holds everything that determines the answer, the
code included. An entry stores its question, its answer and a hash of both. An entry that cannot be read or fails the
check counts as missing. The check protects against damage, not against an attacker with write access to the folder, who
could change the code as well.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

VARIABLE = "DPFED_CACHE_DIR"
"""Environment variable with the cache folder. If it is empty, no file is read or written; if unset, the folder is in
the user's cache.
"""


def read(kind: str, question: dict[str, object]) -> list[Any]:
    """Return a list with the cached answer to a question; an empty list if no answer is cached. File errors are
    suppressed.
    """
    folder = _cache_folder(kind)
    if folder is None:
        return []
    try:
        entry = json.loads((folder / f"{_hash(question)}.json").read_text("utf-8"))
        answer = entry["answer"]
        intact = entry["question"] == json.loads(json.dumps(question)) and entry["hash"] == _hash([question, answer])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
        return []
    return [answer] if intact else []


def write(kind: str, question: dict[str, object], answer: object) -> None:
    """Store the answer to a question atomically. File errors are suppressed."""
    folder = _cache_folder(kind)
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as part:
            json.dump({"question": question, "answer": answer, "hash": _hash([question, answer])}, part)
        try:
            Path(part.name).replace(folder / f"{_hash(question)}.json")
        except OSError:
            Path(part.name).unlink(missing_ok=True)


def _cache_folder(kind: str) -> Path | None:
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) / kind if given else None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # the user has no home folder
        return None
    return Path(cache) / "dpfed" / kind


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
