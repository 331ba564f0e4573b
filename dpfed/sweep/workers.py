"""Several runs at a time: joblib's processes, which share the cores and have a GPU each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import joblib
import torch
from joblib.externals.loky import get_reusable_executor

from dpfed.config.own_code import VARIABLE as OWN_CODE
from dpfed.sweep.one_run import Job, Result


@dataclass(frozen=True, kw_only=True)
class Workers:
    """`count` of them; one is this process itself. `places`: see `Job`."""

    count: int
    places: Path

    def results(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """What `work` makes of every job, as it comes. BrokenProcessPool where a worker died.

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
def workers(count: int | None) -> Iterator[Workers]:
    """So many workers; by default one for each GPU, or else for each core.

    None is left at the end: joblib would keep them for the next sweep of this process, each with the GPU it had.
    """
    number = count or torch.cuda.device_count() or int(joblib.cpu_count())
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
