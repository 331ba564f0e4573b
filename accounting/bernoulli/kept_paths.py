"""Paths of certificates on disk (`accounting.disk_cache`), named by the question and the source of the code."""

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

__all__ = ["VARIABLE", "kept"]

_ANSWERED_BY = ("certificate.py", "growth.py", "windows.py")


def kept(at: Coordinates, zeta: float, squared_norm: float, compute: Callable[[], Path | None]) -> Path | None:
    """Return what `compute` returns for this question, from the cache folder if it is stored there.

    Raises no error of a file.
    """
    question = {**asdict(at), "zeta": zeta, "squared_norm": squared_norm, "code": _code()}
    for answer in disk_cache.read("coins", question):
        try:
            return _path_of(answer)
        except (ValueError, KeyError, TypeError, AttributeError):
            break
    found = compute()
    answer = None
    if found is not None:
        answer = {"variances": found.variances.tolist(), "rates": found.rates.tolist(), "move": found.move}
    disk_cache.write("coins", question, answer)
    return found


@lru_cache(maxsize=1)
def _code() -> str:
    sources = [(FilePath(__file__).parent / name).read_bytes() for name in _ANSWERED_BY]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()


def _path_of(answer: Any) -> Path | None:
    """Return the path of an answer. ValueError, KeyError, TypeError or AttributeError for anything else."""
    if answer is None:
        return None
    path = Path(variances=np.array(answer["variances"]), rates=np.array(answer["rates"]), move=float(answer["move"]))
    rising = bool(np.all(np.diff(path.variances, prepend=0.0) > 0)) and path.variances.shape == path.rates.shape
    if not (rising and np.all(path.rates > 0) and np.isfinite(path.variances).all() and math.isfinite(path.move)):
        raise ValueError(f"{answer}: not a path.")
    return path
