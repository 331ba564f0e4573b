"""Runs of a sweep in worker processes of joblib, which share the cores and have a GPU each.

A run is an ordinary run folder: made, continued, or left as it is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

import joblib
import torch
from filelock import BaseFileLock, FileLock, Timeout
from joblib.externals.loky import get_reusable_executor

from accounting.errors import AccountingError
from dpfed.config.own_code import load_own_code
from dpfed.config.registered import VARIABLE as OWN_CODE
from dpfed.config.tables import Config, parse
from dpfed.errors import DpfedError
from dpfed.records.summary import Summary
from dpfed.report.finished_run import read_finished
from dpfed.report.run import write_report
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.loop import Outcome
from dpfed.runs.resuming import with_delta_of_run


@dataclass(frozen=True, kw_only=True)
class Job:
    """Job of a worker. `gpus` are the visible ones, by the names that CUDA_VISIBLE_DEVICES takes; in the folder
    `places` each worker holds a lock for as long as it lives, so that no two have the same place in line. `own_code`
    is $DPFED_OWN_CODE of the process that sends: the worker may be older than it."""

    number: int
    config: dict[str, Any]
    folder: Path
    state: Literal["to run", "interrupted", "finished"]
    gpus: tuple[str, ...] = ()
    places: Path | None = None
    own_code: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of job `number`: its summary, or the error that ended it (`trace` where it was not expected)."""

    number: int
    summary: Summary | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """`count` of them; one is this process itself. `places`: see `Job`."""

    count: int
    places: Path

    def results(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield the result of every job as it ends. BrokenProcessPool if a worker died.

        Each worker has its part of the cores: threads that wait for a core would only cost time.
        """
        count = min(self.count, len(jobs))
        if count <= 1:
            yield from map(work, jobs)
            return
        gpus = _gpus()
        own_code = os.environ.get(OWN_CODE, "")
        sent = [replace(job, gpus=gpus, places=self.places, own_code=own_code) for job in jobs]
        with joblib.parallel_config(backend="loky", n_jobs=count, inner_max_num_threads=_threads(count)):
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch=count)
            yield from parallel(joblib.delayed(work)(job) for job in sent)


@contextmanager
def workers(count: int | None, devices: Collection[str]) -> Iterator[Workers]:
    """Start `count` workers; by default one for each core if all runs' `devices` (run.device) are the CPU, else one
    for each GPU.

    They end with the block: joblib would keep them for the next sweep of this process, each with the GPU it had.
    """
    gpus = 0 if set(devices) == {"cpu"} else torch.cuda.device_count()
    number = count or gpus or int(joblib.cpu_count())
    with tempfile.TemporaryDirectory(prefix="dpfed-sweep-", ignore_cleanup_errors=True) as folder:
        try:
            yield Workers(count=number, places=Path(folder))
        finally:
            if number > 1:
                get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _threads(count: int) -> int:
    return max(1, int(joblib.cpu_count()) // count)


def _gpus() -> tuple[str, ...]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return tuple(names or map(str, range(torch.cuda.device_count())))


def run_job(job: Job) -> Result:
    """Run it, or go on with it; never raises what one run can do wrong."""
    _settle(job)
    try:
        return Result(number=job.number, summary=_run(job))
    except Exception as error:  # the other runs of the sweep go on
        return _failed(job, error)


def build_job(job: Job) -> Result:
    """Only make its objects: data there, sizes that fit, noise that can be calibrated."""
    _settle(job)
    try:
        build(_config(job))
    except Exception as error:  # reported with the other runs
        return _failed(job, error)
    return Result(number=job.number)


def _run(job: Job) -> Summary:
    if job.state == "finished":
        found = read_finished(job.folder)
        if not (job.folder / "report.html").exists():
            write_report(Outcome(folder=job.folder, record=found.summary, lines=found.metrics))
        return found.summary
    outcome = federation.run(build(_config(job)), job.folder, resume=job.state == "interrupted")
    write_report(outcome)
    return outcome.record


def _config(job: Job) -> Config:
    load_own_code()
    tables = with_delta_of_run(job.folder, job.config) if job.state == "interrupted" else job.config
    return parse(tables, source=str(job.folder))


def _failed(job: Job, error: Exception) -> Result:
    if isinstance(error, DpfedError | AccountingError):
        return Result(number=job.number, error=str(error))
    return Result(number=job.number, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _settle(job: Job) -> None:
    """In a worker: the code of the user, one GPU, and Ctrl-C left to the process that started it, which ends it."""
    if multiprocessing.parent_process() is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[OWN_CODE] = job.own_code
    if job.gpus and job.places is not None and job.config["run"]["device"] in ("auto", "cuda"):
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpus[_place(job.places) % len(job.gpus)]


@cache
def _place(folder: Path) -> int:
    """Yield the first place that no living worker holds, locked."""
    for place in count():
        lock = FileLock(folder / str(place))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        _held.append(lock)
        return place
    raise AssertionError


_held: list[BaseFileLock] = []
"""Kept until the process ends."""
