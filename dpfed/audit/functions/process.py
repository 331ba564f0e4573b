"""Calls of a user's function in a separate process, which a time limit ends and whose death is an error."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from types import TracebackType
from typing import Any

from accounting.arrays import Floats
from dpfed.audit.functions.outputs import Output
from dpfed.errors import ConfigError, RunError


class Process:
    """Process of one function. A context: it is ended on leaving.

    arrays: "torch" or "numpy", the type of arrays in inputs. batched: f(inputs [t, ...], seeds [t]) returns t outputs.
    time_limit: seconds for all requests together. Errors: RunError if they are over or it has died, ConfigError if the
    function fails.
    """

    def __init__(self, f: Callable[..., object], *, arrays: str, batched: bool, time_limit: float) -> None:
        if arrays not in ("torch", "numpy"):
            raise ConfigError(f"arrays={arrays!r}: must be 'torch' or 'numpy'.")
        if not time_limit > 0:
            raise ConfigError(f"time_limit={time_limit}: must be a number of seconds above 0.")
        self._limit, self._until = time_limit, time.monotonic() + time_limit
        self._module = str(getattr(f, "__module__", None) or "")
        self._sent: list[Sequence[object]] = []
        packed = _packed((f, arrays, batched), self._module, "the function under audit")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dpfed.audit.functions.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._send([path for path in sys.path if path])
        self._send(packed)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def renew(self) -> None:
        """Give it the whole time limit again, from now on."""
        self._until = time.monotonic() + self._limit

    def seen(self, given: object, seeds: list[int]) -> list[Floats]:
        """Return the numbers that are seen of `given`, once for each seed. ConfigError where the function raises."""
        found = self.outputs((given,), [0] * len(seeds), seeds)
        for one in found:
            if one.raised:
                raise ConfigError(f"the function under audit fails: {one.raised}")
        return [one.numbers for one in found]

    def outputs(self, inputs: Sequence[object], which: list[int], seeds: list[int]) -> list[Output]:
        """Return the outputs of inputs[which[i]] with seeds[i], in this order; the function does not get `which`."""
        number = next((k for k, one in enumerate(self._sent) if one is inputs), len(self._sent))
        if number == len(self._sent):
            self._sent.append(inputs)
            self._send(_packed(tuple(inputs), self._module, "an input of the function under audit"))
        self._send((number, which, seeds))
        kind, answer = self._answer()
        if kind == "seen":
            return list(answer)
        raise ConfigError(answer if kind == "refused" else f"the function under audit fails: {answer}")

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _answer(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, self._until - time.monotonic()))
        if not ready:
            raise RunError(
                f"the function under audit was not done within {self._limit:g} seconds. Give it more with time_limit "
                "(--time-limit), or ask for fewer trials."
            )
        try:
            kind, answer = pickle.load(self._process.stdout)
        except EOFError:
            raise self._died() from None
        return kind, answer

    def _died(self) -> RunError:
        return RunError(
            f"the process of the function under audit has ended (exit status {self._process.wait()}). What it said is "
            "on standard error."
        )


def _packed(what: object, name: str, words: str) -> bytes:
    """Pickle by value what a new process could not import the module of this name: files that were loaded, tests."""
    import cloudpickle  # of the extra [train]; the commands load without it

    module = sys.modules.get(name)
    by_value = module is not None and name != "__main__" and not _importable(name)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(what))
    except Exception as error:  # of whatever it refers to
        raise ConfigError(f"{words} cannot be sent to a process of its own: {error}") from None
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(name: str) -> bool:
    """Return True if the module is on the path; a loaded module need not be."""
    top = name.split(".")[0]
    return top in sys.stdlib_module_names or PathFinder.find_spec(top) is not None
