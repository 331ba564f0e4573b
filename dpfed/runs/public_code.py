"""User code with public results: evaluation (network, loss, metrics), trackers and progress functions.

In a run for release this code runs in a process of its own, made before the first client trains. The process receives
weights of released models and lines of metrics.jsonl, as bytes and JSON, and nothing else. So nothing that training
leaves behind in objects, classes, modules or closures of user code reaches a public file. Not covered: files, sockets
and memory that user code shares between the two processes itself.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpfed.config.own_code import is_importable
from dpfed.errors import ConfigError, RunError
from dpfed.forks import Fork, Process, ended
from dpfed.replayed import enter_replay
from dpfed.runs.scores import Evaluation, Scores

OnRound = Callable[[Mapping[str, object]], None]
Say = Callable[[str], None]
_PARENT_SECONDS = 1.0
"""Seconds between two checks whether the training process still exists."""
_END_SECONDS = 30.0
"""Seconds in which the process ends after its last answer; then it is killed."""


@dataclass(frozen=True, kw_only=True)
class Viewers:
    """Trackers and the caller's progress function, which receive the lines of metrics.jsonl.

    start: context manager of a function that is called with each line; its argument receives messages for the user
    say:   receives these messages in the process of the caller
    """

    start: Callable[[Say], AbstractContextManager[OnRound]]
    say: Say


NO_VIEWERS = Viewers(start=lambda say: nullcontext(lambda line: None), say=lambda words: None)


class PublicCode(Protocol):
    """User code that receives released models and lines of metrics.jsonl, here or in a separate process."""

    def scores(self, weights: Sequence[Tensor]) -> tuple[Scores, float | None]:
        """Return the scores of `Evaluation.scores`, and the accuracy of the most frequent label."""

    def show(self, line: Mapping[str, object]) -> None:
        """Pass a line of metrics.jsonl to the viewers."""

    def close(self) -> None:
        """Close the viewers. Further calls do nothing."""


def start_public_code(evaluation: Evaluation, viewers: Viewers, *, apart: bool) -> PublicCode:
    """Start the viewers, in this process or (apart) in a new one. Raises what they raise."""
    return _CodeApart(evaluation, viewers) if apart else _CodeHere(evaluation, viewers)


class _CodeHere:
    def __init__(self, evaluation: Evaluation, viewers: Viewers) -> None:
        self._evaluation, self._opened = evaluation, ExitStack()
        self._view = self._opened.enter_context(viewers.start(viewers.say))

    def scores(self, weights: Sequence[Tensor]) -> tuple[Scores, float | None]:
        return self._evaluation.scores(weights), self._evaluation.majority_accuracy()

    def show(self, line: Mapping[str, object]) -> None:
        self._view(line)

    def close(self) -> None:
        self._opened.close()


class _CodeApart:
    """Code in a new process: a fork of this one, or an interpreter of its own if a fork is not safe (GPU, macOS)."""

    def __init__(self, evaluation: Evaluation, viewers: Viewers) -> None:
        self._say, self._waiting = viewers.say, False
        self._connection, theirs = Pipe()
        try:
            start = _forked if _can_fork(evaluation.device) else _spawned
            self._process: Process = start(self._connection, theirs, evaluation, viewers)
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        try:
            self._answer()
        except BaseException:
            self._waiting = True  # no further answer arrives
            self.close()
            raise

    def scores(self, weights: Sequence[Tensor]) -> tuple[Scores, float | None]:
        arrays = [one.detach().to("cpu", torch.float32).contiguous().numpy().data for one in weights]
        scores, majority = self._answer("scores", len(arrays), arrays)
        return scores, majority

    def show(self, line: Mapping[str, object]) -> None:
        self._answer("show", line)

    def close(self) -> None:
        if self._connection.closed:
            return
        try:
            if self._waiting:  # interrupted inside a call of user code, or the process has ended
                self._process.kill()
            else:
                self._answer("close")
        finally:
            self._connection.close()
            ended(self._process, seconds=_END_SECONDS)

    def _answer(self, call: str | None = None, value: object = None, arrays: Sequence[memoryview] = ()) -> Any:
        """Send a call and return its answer. Raises the error of user code, with the traceback of the process."""
        self._waiting = True
        try:
            if call is not None:
                self._connection.send_bytes(json.dumps([call, value]).encode())
            for one in arrays:
                self._connection.send_bytes(one)
            error, answer, messages = self._connection.recv()
        except (EOFError, OSError):
            self._process.kill()
            self._connection.close()
            status = ended(self._process, seconds=_END_SECONDS)
            raise RunError(
                f"the process that evaluates released models and runs trackers has ended (status {status}: negative "
                "for a signal, -9 often for lack of memory). All finished rounds are saved; --resume continues."
            ) from None
        self._waiting = False
        for words in messages:
            self._say(words)
        if error is not None:
            raise _error_of(*error) from UserTraceback(error[2])
        return answer


class UserTraceback(Exception):
    """Traceback of user code in the process of a release, as text; the cause of the error that this process raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _portable_error(error: BaseException) -> tuple[bytes | None, str, str]:
    """Return the pickled error, None if it cannot be pickled; its type and message; and its traceback."""
    packed = None
    with suppress(Exception):
        packed = pickle.dumps(error)
    return packed, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def _error_of(packed: bytes | None, words: str, trace: str) -> BaseException:
    with suppress(Exception):
        found = pickle.loads(packed or b"")  # written by this program's own process
        if isinstance(found, BaseException):
            return found
    return RunError(words)


# ---- in the process


def _serve(connection: Connection, evaluation: Evaluation, viewers: Viewers) -> None:
    """Answer calls until the connection is closed."""
    _set_up_process()
    said: list[str] = []
    code: PublicCode | None = None
    call: str | None = None
    while call != "close":
        error, answer = None, None
        try:
            if code is None:
                code = _CodeHere(evaluation, replace(viewers, say=said.append))
            else:
                try:
                    call, value = json.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    return
                match call:
                    case "scores":
                        received = [np.frombuffer(connection.recv_bytes(), np.float32).copy() for _ in range(value)]
                        answer = code.scores([torch.from_numpy(one) for one in received])
                    case "show":
                        code.show(value)
                    case _:
                        code.close()
        except BaseException as raised:  # user code may raise anything, and the training process raises it again
            error = _portable_error(raised)
        connection.send((error, answer, said))
        said.clear()
        if code is None:
            return


def _set_up_process() -> None:
    """Leave signals to the training process, end with it, and print directly if it draws a progress bar."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    for name in ("stdout", "stderr"):  # a bar's stream waits for a lock that the bar's thread may hold for ever
        stream = getattr(sys, name)
        setattr(sys, name, getattr(stream, "rich_proxied_file", stream))
    enter_replay(None)
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


# ---- starting it


def _can_fork(device: torch.device) -> bool:
    return sys.platform == "linux" and device.type == "cpu" and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _forked(ours: Connection, theirs: Connection, evaluation: Evaluation, viewers: Viewers) -> Fork:
    def serve_calls() -> None:
        ours.close()
        _serve(theirs, evaluation, viewers)

    return Fork(serve_calls)


def _spawned(ours: Connection, theirs: Connection, evaluation: Evaluation, viewers: Viewers) -> subprocess.Popen[bytes]:
    """Start a new interpreter. Raises ConfigError with the name of an object that cannot be sent to it."""
    content = _pickled(evaluation, viewers)
    process = subprocess.Popen(
        [sys.executable, "-c", f"from dpfed.runs.public_code import serve; serve({theirs.fileno()})"],
        pass_fds=[theirs.fileno()],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    with suppress(OSError):  # a process that has ended is found by the first answer
        ours.send_bytes(content)
    return process


def serve(number: int) -> None:
    """Answer the calls that arrive at this file descriptor, in an interpreter that `_spawned` has started."""
    connection = Connection(number)
    try:
        threads, evaluation, start = pickle.loads(connection.recv_bytes())  # written by `_pickled`
    except Exception as error:  # modules of the user may raise anything
        connection.send((_portable_error(error), None, []))
        return
    torch.set_num_threads(threads)
    _serve(connection, evaluation, Viewers(start=start, say=lambda words: None))


def _pickled(evaluation: Evaluation, viewers: Viewers) -> bytes:
    import cloudpickle  # in the extra [train] only

    objective = evaluation.objective
    named = {"model": evaluation.model, "local.loss": objective.loss, "progress or trackers": viewers.start}
    named |= {f"metrics[{name!r}]": metric for name, metric in objective.metrics.items()}
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) and name != "__main__" and not is_importable(name):
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        for name, one in named.items():
            try:
                cloudpickle.dumps(one)
            except Exception as error:  # objects may raise anything when they are pickled
                raise ConfigError(
                    f"{name}: cannot be sent to the separate process in which a run for release evaluates models on a "
                    f"GPU ({type(error).__name__}: {error}). Make it of objects that pickle can copy, or use "
                    "run.device='cpu'."
                ) from error
        return bytes(cloudpickle.dumps((torch.get_num_threads(), evaluation, viewers.start)))
