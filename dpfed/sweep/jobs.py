"""Runs of a sweep in worker processes of joblib; workers share the CPU cores, and each has one GPU.

A job starts a run, resumes it, or keeps its finished folder.
"""

from __future__ import annotations

import logging
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
from dpfed.config.own_code import VARIABLE as OWN_CODE
from dpfed.config.own_code import load_own_code
from dpfed.config.tables import Config, parse
from dpfed.errors import DpfedError
from dpfed.records.summary import Summary, read_finished
from dpfed.report.run import write_report
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.loop import Outcome
from dpfed.runs.resuming import with_delta_of_run, with_solved_noise

LOG = logging.getLogger("dpfed")


@dataclass(frozen=True, kw_only=True)
class RunJob:
    """Job of a worker process.

    gpus: names of the visible GPUs, as in CUDA_VISIBLE_DEVICES. lock_folder: folder in which each living worker locks
    one numbered file, so that all workers have different numbers. own_code: $DPFED_OWN_CODE of the sending process,
    which may have changed since the worker started."""

    number: int
    config: dict[str, Any]
    folder: Path
    state: Literal["to run", "interrupted", "finished"]
    gpus: tuple[str, ...] = ()
    lock_folder: Path | None = None
    own_code: str = ""


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """Result of job `number`: its summary, or the error that ended it (with `trace` if the error is unexpected)."""

    number: int
    summary: Summary | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Worker processes; if `count` is 1, this process is the worker. `lock_folder`: see `RunJob`."""

    count: int
    lock_folder: Path

    def results(self, work: Callable[[RunJob], JobResult], jobs: Sequence[RunJob]) -> Iterator[JobResult]:
        """Yield the result of every job as it ends. BrokenProcessPool if a worker died.

        Each worker uses an equal part of the cores, so that no thread waits for a core.
        """
        count = min(self.count, len(jobs))
        if count <= 1:
            yield from map(work, jobs)
            return
        gpus = _visible_gpus()
        own_code = os.environ.get(OWN_CODE, "")
        sent = [replace(job, gpus=gpus, lock_folder=self.lock_folder, own_code=own_code) for job in jobs]
        threads = max(1, int(joblib.cpu_count()) // count)
        with joblib.parallel_config(backend="loky", n_jobs=count, inner_max_num_threads=threads):
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch=count)
            yield from parallel(joblib.delayed(work)(job) for job in sent)


@contextmanager
def worker_pool(count: int | None, devices: Collection[str]) -> Iterator[Workers]:
    """Context of `count` workers; default: one for each core if all `devices` (run.device) are the CPU, else one a GPU.

    The workers end with the block, because joblib would reuse them, each with its GPU, in the next sweep.
    """
    gpus = 0 if set(devices) == {"cpu"} else torch.cuda.device_count()
    number = count or gpus or int(joblib.cpu_count())
    with tempfile.TemporaryDirectory(prefix="dpfed-sweep-", ignore_cleanup_errors=True) as folder:
        try:
            yield Workers(count=number, lock_folder=Path(folder))
        finally:
            if number > 1:
                get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _visible_gpus() -> tuple[str, ...]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return tuple(names or map(str, range(torch.cuda.device_count())))


def run_job(job: RunJob) -> JobResult:
    """Start or resume the run of a job; an exception is returned in the result, never raised."""
    return _result_of(job, _run_or_resume)


def build_job(job: RunJob) -> JobResult:
    """Build a run without training, to find missing data, wrong sizes and noise that cannot be calibrated."""
    return _result_of(job, _build)


def _result_of(job: RunJob, work: Callable[[RunJob], Summary | None]) -> JobResult:
    _prepare_worker(job)
    try:
        return JobResult(number=job.number, summary=work(job))
    except (DpfedError, AccountingError) as error:
        return JobResult(number=job.number, error=str(error))
    except Exception as error:  # other runs of the sweep continue
        return JobResult(number=job.number, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _build(job: RunJob) -> None:
    build(_job_config(job))


def _run_or_resume(job: RunJob) -> Summary:
    if job.state == "finished":
        found = read_finished(job.folder)
        if not (job.folder / "report.html").exists():
            write_report(Outcome(folder=job.folder, record=found.summary, lines=found.metrics))
        return found.summary
    resumed = job.state == "interrupted"
    config = with_solved_noise(_job_config(job), job.folder / "ledger.jsonl") if resumed else _job_config(job)
    experiment = build(config)
    if words := experiment.mask_warning:
        LOG.warning("%s: %s", job.folder, words)
    outcome = federation.run(experiment, job.folder, resume=resumed)
    write_report(outcome)
    return outcome.record


def _job_config(job: RunJob) -> Config:
    load_own_code()
    tables = with_delta_of_run(job.folder, job.config) if job.state == "interrupted" else job.config
    return parse(tables, source=str(job.folder))


def _prepare_worker(job: RunJob) -> None:
    """Prepare a worker process: set the user's code and one GPU; ignore Ctrl-C, which the parent process handles."""
    if multiprocessing.parent_process() is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[OWN_CODE] = job.own_code
    if job.gpus and job.lock_folder is not None and job.config["run"]["device"] in ("auto", "cuda"):
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpus[_worker_number(job.lock_folder) % len(job.gpus)]


@cache
def _worker_number(folder: Path) -> int:
    """Return the first number whose lock no living worker holds, and lock it."""
    for place in count():
        lock = FileLock(folder / str(place))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        _held_locks.append(lock)
        return place
    raise AssertionError


_held_locks: list[BaseFileLock] = []
"""Locks that this process holds until it ends."""
