"""The process in which somebody's function runs: reads calls from standard input, writes what was seen.

Started by `process`. Whatever the function prints goes to standard error.
"""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from dpfed.audit.functions.outputs import Output, exception, output_of
from dpfed.config.own_code import words_of
from dpfed.errors import ConfigError


def serve(calls: BinaryIO, answers: BinaryIO) -> None:
    """First the paths of modules, then the function; then (inputs, or None for the last ones, which of them, seeds) at
    a time, until there are no more."""
    sys.path[:] = pickle.load(calls)
    packed = pickle.load(calls)
    function: _Function | None = None
    inputs: list[_Input] = []
    while True:
        try:
            given, which, seeds = pickle.load(calls)
        except EOFError:
            return
        try:
            function = function or _Function(*pickle.loads(packed))
            inputs = inputs if given is None else [_Input(one) for one in given]
            answer: tuple[str, Any] = ("seen", function.outputs(inputs, which, seeds))
        except ConfigError as error:
            answer = ("refused", str(error))
        except BaseException as error:  # what the inputs refer to is the user's: it may raise anything
            answer = ("raised", words_of(error))
        pickle.dump(answer, answers)
        answers.flush()


class _Input:
    """One input, of which every call has a copy of its own, as the function may write on it."""

    def __init__(self, packed: bytes) -> None:
        self._packed, self._made = packed, pickle.loads(packed)

    def own(self) -> Any:
        try:
            return copy.deepcopy(self._made)
        except Exception:  # what can be pickled need not be ready to be copied
            return pickle.loads(self._packed)


class _Function:
    """The function under audit, as it is to be called."""

    def __init__(self, f: Callable[..., Any], arrays: str, batched: bool) -> None:
        self._f, self._arrays, self._batched = f, arrays, batched

    def outputs(self, inputs: list[_Input], which: list[int], seeds: list[int]) -> list[Output]:
        """Of input number which[i] with seeds[i]; no call is told the number."""
        if not self._batched:
            return [self._one(inputs[k].own(), seed) for k, seed in zip(which, seeds, strict=True)]
        found: dict[int, Output] = {}
        for k in dict.fromkeys(which):
            at = [i for i, one in enumerate(which) if one == k]
            found |= zip(at, self._together(inputs[k], [seeds[i] for i in at]), strict=True)
        return [found[i] for i in range(len(which))]

    def _one(self, given: Any, seed: int) -> Output:
        try:
            seen = self._f(self._as(given), seed)
        except BaseException as error:  # the function is the user's: it may raise anything
            return exception(error, words_of(error))
        return output_of(seen)

    def _together(self, given: _Input, seeds: list[int]) -> list[Output]:
        """One batch; trial by trial where it fails, to know which do."""
        batch = np.repeat(np.asarray(given.own())[None], len(seeds), axis=0)
        try:
            seen = self._f(self._as(batch), self._as(np.asarray(seeds)))
        except BaseException as error:  # the function is the user's: it may raise anything
            if len(seeds) == 1:
                return [exception(error, words_of(error))]
            return [one for seed in seeds for one in self._together(given, [seed])]
        if len(seen) != len(seeds):
            raise ConfigError(f"the batched function returned {len(seen)} outputs for {len(seeds)} trials.")
        return [output_of(one) for one in seen]

    def _as(self, given: Any) -> Any:
        if not isinstance(given, np.ndarray) or self._arrays == "numpy":
            return given
        import torch

        torch.set_num_threads(1)
        return torch.from_numpy(given)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
