"""One run of a sweep in a worker process: an ordinary run folder, made, gone on with, or left as it is."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from accounting.errors import AccountingError
from dpfed.config import Config, parse
from dpfed.errors import DpfedError


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker gets. `gpus` are the visible ones, by the names that CUDA_VISIBLE_DEVICES takes."""

    number: int
    config: dict[str, Any]
    folder: Path
    state: Literal["to run", "interrupted", "finished"]
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of job `number`: its summary, or the error that ended it (`trace` where it was not expected)."""

    number: int
    summary: dict[str, Any] | None = None
    error: str | None = None
    trace: str = ""


def run_job(job: Job) -> Result:
    """Run it, or go on with it; never raises what one run can do wrong."""
    _settle(job.gpus)
    try:
        return Result(number=job.number, summary=_run(job))
    except Exception as error:
        return _failed(job, error)


def build_job(job: Job) -> Result:
    """Only make its objects: data there, sizes that fit, noise that can be calibrated."""
    from dpfed.build import build

    _settle(job.gpus)
    try:
        build(_config(job))
    except Exception as error:
        return _failed(job, error)
    return Result(number=job.number)


def _run(job: Job) -> dict[str, Any]:
    from dpfed import federation
    from dpfed.build import build
    from dpfed.federation import Outcome
    from dpfed.report.run import write_report

    if job.state == "finished":
        summary: dict[str, Any] = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
        if not (job.folder / "report.html").exists():
            lines = (job.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            write_report(Outcome(folder=job.folder, summary=summary, metrics=[json.loads(line) for line in lines]))
        return summary
    outcome = federation.run(build(_config(job)), job.folder, resume=job.state == "interrupted")
    write_report(outcome)
    return outcome.summary


def _config(job: Job) -> Config:
    return parse(job.config, source=str(job.folder))


def _failed(job: Job, error: Exception) -> Result:
    if isinstance(error, DpfedError | AccountingError):
        return Result(number=job.number, error=str(error))
    return Result(number=job.number, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _settle(gpus: Sequence[str]) -> None:
    """In a worker: one GPU of its own, and Ctrl-C left to the process that started it, which ends the workers."""
    if multiprocessing.parent_process() is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if gpus:
        number = re.search(r"(\d+)$", multiprocessing.current_process().name)
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[(int(number.group(1)) - 1 if number else 0) % len(gpus)]
