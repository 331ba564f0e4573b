"""Calls of a user's function in a separate process: exceeding the time limit, or an end of the process, is an error."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from dpfed.audit.functions.outputs import Output
from dpfed.config.own_code import is_importable
from dpfed.errors import ConfigError, RunError

_LONGEST_WAIT = 1e9
"""Largest number of seconds that `select` accepts, nearly; about 30 years."""


class FunctionProcess:
    """Process that calls one function. Context manager: the process is killed on exit.

    arrays: "torch" or "numpy", the type of arrays in inputs. batched: True if f(inputs [t, ...], seeds [t]) returns t
    outputs.
    time_limit: seconds for all requests together.
    Errors: RunError if the time limit is exceeded or the process has ended, ConfigError if the function cannot be
    loaded or called."""

    def __init__(self, f: Callable[..., object], *, arrays: str, batched: bool, time_limit: float) -> None:
        if arrays not in ("torch", "numpy"):
            raise ConfigError(f"arrays={arrays!r}: must be 'torch' or 'numpy'.")
        if not isinstance(time_limit, int | float) or not time_limit > 0:
            raise ConfigError(f"time_limit={time_limit!r}: must be a number of seconds above 0.")
        self._limit, self._until = time_limit, time.monotonic() + time_limit
        self._module = str(getattr(f, "__module__", None) or "")
        self._sent: list[Sequence[object]] = []
        packed = _pickled((f, arrays, batched), self._module, "the function under audit")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dpfed.audit.functions.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._send([path for path in sys.path if path])
        self._send(packed)

    def __enter__(self) -> FunctionProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def outputs(self, inputs: Sequence[object], which: list[int], seeds: list[int]) -> list[Output]:
        """Return the outputs for inputs[which[i]] and seeds[i], in the order of i; the function does not
        get `which`.
        """
        number = next((k for k, one in enumerate(self._sent) if one is inputs), len(self._sent))
        if number == len(self._sent):
            self._sent.append(inputs)
            self._send(_pickled(tuple(inputs), self._module, "an input of the function under audit"))
        self._send((number, which, seeds))
        kind, answer = self._read_answer()
        if kind == "seen":
            return list(answer)
        raise ConfigError(answer if kind == "refused" else f"the function under audit fails: {answer}")

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended_error() from None

    def _read_answer(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        left = max(0.0, self._until - time.monotonic())
        ready, _, _ = select.select([self._process.stdout], [], [], min(left, _LONGEST_WAIT))
        if not ready:
            raise RunError(
                f"the calls of the function under audit were not done within {self._limit:g} seconds. Raise time_limit "
                "(--set time_limit=SECONDS), or give fewer trials."
            )
        try:
            kind, answer = pickle.load(self._process.stdout)
        except EOFError:
            raise self._ended_error() from None
        return kind, answer

    def _ended_error(self) -> RunError:
        return RunError(
            f"the process of the function under audit has ended (exit status {self._process.wait()}). Its messages "
            "are on standard error."
        )


def _pickled(what: object, name: str, words: str) -> bytes:
    """Pickle an object; by value if a new process cannot import its module `name` (files of --load, tests)."""
    import cloudpickle  # in the extra [train] only; the commands must start without it

    module = sys.modules.get(name)
    by_value = module is not None and name != "__main__" and not is_importable(name)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(what))
    except Exception as error:  # objects that the function refers to may raise anything
        raise ConfigError(f"{words} cannot be sent to a separate process: {error}") from None
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
