"""Disk cache for the paths of certificates (`accounting.disk_cache`), keyed by the arguments and the source code."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from accounting import disk_cache
from accounting.bernoulli.certificate import Path
from accounting.bernoulli.windows import Coordinates
from accounting.disk_cache import VARIABLE

__all__ = ["VARIABLE"]

_ANSWERED_BY = ("certificate.py", "growth.py", "windows.py")


def cached_path(at: Coordinates, zeta: float, squared_norm: float, compute: Callable[[], Path | None]) -> Path | None:
    """Return the path for these arguments from the disk cache; if it is missing, call `compute` and store its result.

    File errors are suppressed.
    """
    question = {**asdict(at), "zeta": zeta, "squared_norm": squared_norm, "code": _code_hash()}
    for answer in disk_cache.read("coins", question):
        try:
            return _path_from_answer(answer)
        except (ValueError, KeyError, TypeError, AttributeError):
            break
    found = compute()
    answer = None
    if found is not None:
        answer = {"variances": found.variances.tolist(), "rates": found.rates.tolist(), "move": found.move}
    disk_cache.write("coins", question, answer)
    return found


@lru_cache(maxsize=1)
def _code_hash() -> str:
    sources = [(FilePath(__file__).parent / name).read_bytes() for name in _ANSWERED_BY]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()


def _path_from_answer(answer: Any) -> Path | None:
    """Return the path of a cached answer. Errors: ValueError, KeyError, TypeError or AttributeError for an invalid
    answer.
    """
    if answer is None:
        return None
    path = Path(variances=np.array(answer["variances"]), rates=np.array(answer["rates"]), move=float(answer["move"]))
    is_increasing = bool(np.all(np.diff(path.variances, prepend=0.0) > 0)) and path.variances.shape == path.rates.shape
    if not (
        is_increasing and np.all(path.rates > 0) and np.isfinite(path.variances).all() and math.isfinite(path.move)
    ):
        raise ValueError(f"{answer}: not a path.")
    return path
