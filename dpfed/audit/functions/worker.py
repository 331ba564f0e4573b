"""The process in which somebody's function runs: reads calls from standard input, writes what was seen.

Started by `process`. Whatever the function prints goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from dpfed.audit.functions.outputs import numbers_of
from dpfed.config.own_code import words_of
from dpfed.errors import ConfigError


def serve(calls: BinaryIO, answers: BinaryIO) -> None:
    """First the paths of modules, then the function; then (input, seeds) at a time, until there are no more."""
    sys.path[:] = pickle.load(calls)
    f, arrays, batched = pickle.loads(pickle.load(calls))
    while True:
        try:
            given, seeds = pickle.load(calls)
        except EOFError:
            return
        try:
            answer: tuple[str, Any] = ("seen", _called(f, given, seeds, arrays, batched))
        except ConfigError as error:
            answer = ("refused", str(error))
        except BaseException as error:  # the function is the user's: it may raise anything
            answer = ("raised", words_of(error))
        pickle.dump(answer, answers)
        answers.flush()


def _called(f: Callable[..., Any], given: Any, seeds: list[int], arrays: str, batched: bool) -> list[Any]:
    if not batched:
        return [numbers_of(f(_as(given, arrays), seed)) for seed in seeds]
    together = np.repeat(np.asarray(given)[None], len(seeds), axis=0)
    seen = f(_as(together, arrays), _as(np.asarray(seeds), arrays))
    if len(seen) != len(seeds):
        raise ConfigError(f"the batched function returned {len(seen)} outputs for {len(seeds)} trials.")
    return [numbers_of(one) for one in seen]


def _as(given: Any, arrays: str) -> Any:
    """A copy of its own for every call, as the function may write on it."""
    if not isinstance(given, np.ndarray):
        return given
    if arrays == "numpy":
        return given.copy()
    import torch

    torch.set_num_threads(1)
    return torch.from_numpy(given.copy())


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
