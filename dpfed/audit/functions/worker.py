"""Worker process of a user's function: reads calls from standard input, writes their outputs to standard output.

`process` starts it. Text that the function prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import cloudpickle
import numpy as np

from dpfed.audit.functions.outputs import Output, exception_output, output_of
from dpfed.config.own_code import error_text
from dpfed.errors import ConfigError


def serve_calls(calls: BinaryIO, answers: BinaryIO) -> None:
    """Read requests from `calls` and write their answers to `answers`, until `calls` ends.

    The first two messages are the module path and the function. Then a message is either a pickled tuple of inputs, or
    a call: (number of that tuple, which of its inputs, seeds).
    """
    sys.path[:] = pickle.load(calls)
    packed = pickle.load(calls)
    function: _FunctionUnderAudit | None = None
    known: list[bytes | list[_CopiedInput]] = []
    while True:
        try:
            message = pickle.load(calls)
        except EOFError:
            return
        if isinstance(message, bytes):
            known.append(message)
            continue
        try:
            function = function or _FunctionUnderAudit(*pickle.loads(packed))
            number, which, seeds = message
            inputs = known[number]
            if isinstance(inputs, bytes):
                inputs = known[number] = [_CopiedInput(one) for one in pickle.loads(inputs)]
            answer: tuple[str, object] = ("seen", function.outputs(inputs, which, seeds))
        except ConfigError as error:
            answer = ("refused", str(error))
        except BaseException as error:  # the user's objects in the inputs may raise anything
            answer = ("raised", error_text(error))
        pickle.dump(answer, answers)
        answers.flush()


class _CopiedInput:
    """One input of the function. Every call gets a copy, since the function may modify its input.

    Random generators are shared by all calls, because copies would draw equal noise in every call.
    """

    def __init__(self, made: object) -> None:
        self._made = made
        search = _GeneratorFinder(io.BytesIO())
        with contextlib.suppress(Exception):  # an unpickled object need not be picklable
            search.dump(made)
        self._shared = {id(one): one for one in search.found}

    def copy_for_call(self) -> object:
        try:
            return copy.deepcopy(self._made, dict(self._shared))
        except Exception:  # a picklable object need not support deepcopy
            return pickle.loads(cloudpickle.dumps(self._made))


class _GeneratorFinder(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickler that collects the random generators in the objects that it pickles."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: list[object] = []
        self._kinds: tuple[type, ...] = (random.Random, np.random.Generator, np.random.RandomState)
        if "torch" in sys.modules:
            self._kinds += (sys.modules["torch"].Generator,)

    def persistent_id(self, part: object) -> str | None:
        if not isinstance(part, self._kinds):
            return None
        self.found.append(part)
        return "generator"


class _FunctionUnderAudit:
    """Function under audit, with the type of its arrays and True for batched calls."""

    def __init__(self, f: Callable[..., Any], arrays: str, batched: bool) -> None:
        self._f, self._arrays, self._batched = f, arrays, batched

    def outputs(self, inputs: list[_CopiedInput], which: list[int], seeds: list[int]) -> list[Output]:
        """Return the outputs for inputs[which[i]] and seeds[i]; the function does not get `which`."""
        if not self._batched:
            return [self._one_output(inputs[k].copy_for_call(), seed) for k, seed in zip(which, seeds, strict=True)]
        found: dict[int, Output] = {}
        for k in dict.fromkeys(which):
            at = [i for i, one in enumerate(which) if one == k]
            found |= zip(at, self._batch_outputs(inputs[k], [seeds[i] for i in at]), strict=True)
        return [found[i] for i in range(len(which))]

    def _one_output(self, given: object, seed: int) -> Output:
        try:
            seen = self._f(self._converted(given), seed)
        except BaseException as error:  # the function is the user's: it may raise anything
            return exception_output(error, error_text(error))
        return output_of(seen)

    def _batch_outputs(self, given: _CopiedInput, seeds: list[int]) -> list[Output]:
        """Return the outputs of one batch; if the batch raises, call trial by trial to find the trials that raise."""
        batch = np.repeat(np.asarray(given.copy_for_call())[None], len(seeds), axis=0)
        try:
            seen = self._f(self._converted(batch), self._converted(np.asarray(seeds)))
        except BaseException as error:  # the function is the user's: it may raise anything
            if len(seeds) == 1:
                return [exception_output(error, error_text(error))]
            return [one for seed in seeds for one in self._batch_outputs(given, [seed])]
        if len(seen) != len(seeds):
            raise ConfigError(f"the batched function returned {len(seen)} outputs for {len(seeds)} trials.")
        return [output_of(one) for one in seen]

    def _converted(self, given: object) -> object:
        if not isinstance(given, np.ndarray) or self._arrays == "numpy":
            return given
        import torch

        torch.set_num_threads(1)
        return torch.from_numpy(given)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve_calls(sys.stdin.buffer, answers)
