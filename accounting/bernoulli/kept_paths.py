"""Paths of certificates on disk, so that what took seconds to compute is read the next time.

An entry is named by a hash of all that it follows from: the question, and the source of the code that answers it. It
holds its question and a hash of its content. An entry that cannot be read or says anything else is computed anew; that
protects against damage, not against somebody who may write to the folder, who could as well change the code.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from accounting.bernoulli.certificate import Path
from accounting.bernoulli.windows import Coordinates

VARIABLE = "DPFED_CACHE_DIR"
"""Environment variable with the folder; set to nothing, no file is read or written. Default: the user's cache."""

_ANSWERED_BY = ("certificate.py", "growth.py", "windows.py")


def kept(at: Coordinates, zeta: float, squared_norm: float, compute: Callable[[], Path | None]) -> Path | None:
    """Return what `compute` returns for this question, from the folder if it is there. No error of a file is raised."""
    folder = _folder()
    if folder is None:
        return compute()
    question = {**asdict(at), "zeta": zeta, "squared_norm": squared_norm, "code": _code()}
    file = folder / f"{_hash(question)}.json"
    try:
        return _read(file, question)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
        found = compute()
        with contextlib.suppress(OSError):
            _write(file, question, found)
        return found


def _folder() -> FilePath | None:
    given = os.environ.get(VARIABLE)
    if given is not None:
        return FilePath(given) / "coins" if given else None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or FilePath.home() / ".cache"
    except RuntimeError:  # nobody's home
        return None
    return FilePath(cache) / "dpfed" / "coins"


@lru_cache(maxsize=1)
def _code() -> str:
    sources = [(FilePath(__file__).parent / name).read_bytes() for name in _ANSWERED_BY]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(file: FilePath, question: dict[str, Any]) -> Path | None:
    entry = json.loads(file.read_text("utf-8"))
    answer = entry["answer"]
    if entry["question"] != question or entry["hash"] != _hash([question, answer]):
        raise ValueError(f"{file}: not an answer to {question}.")
    if answer is None:
        return None
    path = Path(variances=np.array(answer["variances"]), rates=np.array(answer["rates"]), move=float(answer["move"]))
    rising = bool(np.all(np.diff(path.variances, prepend=0.0) > 0)) and path.variances.shape == path.rates.shape
    if not (rising and np.all(path.rates > 0) and np.isfinite(path.variances).all() and math.isfinite(path.move)):
        raise ValueError(f"{file}: not a path.")
    return path


def _write(file: FilePath, question: dict[str, Any], path: Path | None) -> None:
    answer = None
    if path is not None:
        answer = {"variances": path.variances.tolist(), "rates": path.rates.tolist(), "move": path.move}
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False, encoding="utf-8") as part:
        json.dump({"question": question, "answer": answer, "hash": _hash([question, answer])}, part)
    try:
        FilePath(part.name).replace(file)
    except OSError:
        FilePath(part.name).unlink(missing_ok=True)
        raise
