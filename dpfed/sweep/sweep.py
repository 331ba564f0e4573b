"""Run a planned sweep: everything is built once before the first run starts; then the runs, several at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal

import joblib
import torch

from dpfed.errors import ConfigError, RunError
from dpfed.sweep.grid import SEED, Cell
from dpfed.sweep.listing import listing
from dpfed.sweep.one_run import Job, Result, build_job, run_job
from dpfed.sweep.plan import Plan, State, state_of
from dpfed.sweep.tuning import Tuned, pick
from dpfed.sweep_folder import write_sweep

OnRun = Callable[["Done"], None]


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that has ended, well or not; "already" one that an earlier sweep has finished."""

    cell: Cell
    how: Literal["finished", "already", "failed"]
    summary: dict[str, Any] | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """All runs of a sweep, and what was tuned."""

    plan: Plan
    done: tuple[Done, ...]
    tuned: tuple[Tuned, ...]

    @property
    def failed(self) -> tuple[Done, ...]:
        return tuple(one for one in self.done if one.how == "failed")

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `dpfed sweep`."""
        return {
            "title": self.plan.title,
            "profile": self.plan.profile,
            "note": self.plan.note,
            "out": str(self.plan.folder),
            "runs": [
                {
                    "row": one.cell.row,
                    "at": dict(one.cell.at),
                    "folder": one.cell.folder,
                    "state": one.how,
                    "error": one.error,
                    "summary": one.summary,
                }
                for one in self.done
            ],
            "tuned": [one.to_dict() for one in self.tuned],
        }


def run_sweep(plan: Plan, *, jobs: int | None = None, on_run: OnRun = lambda done: None) -> Finished:
    """Run what is not finished yet, `jobs` at a time (default: one a GPU, or else a core); `on_run` gets each.

    ConfigError where something cannot be built, before anything runs. A run that fails does not stop the others.
    Interrupted at any moment, the same call goes on from the rounds that were saved.
    """
    jobs = jobs or default_jobs()
    _build_all(plan, jobs)
    write_sweep(plan.folder, listing(plan, ()))
    trials = [cell for choice in plan.grid.choices for cell in choice.runs]
    done = {id(cell): one for cell, one in zip(trials, _run_all(plan, trials, jobs, on_run), strict=True)}
    tuned = tuple(pick(choice, [done[id(cell)].summary for cell in choice.runs]) for choice in plan.grid.choices)
    _write_tuned(plan, tuned)
    cells, lost = _with_choices(plan, tuned)
    write_sweep(plan.folder, listing(plan, tuned))
    for one in lost:
        on_run(one)
    finished = _run_all(plan, cells, jobs, on_run)
    return Finished(plan=plan, done=(*done.values(), *finished, *lost), tuned=tuned)


def default_jobs() -> int:
    """One run for each GPU, or else for each core."""
    return torch.cuda.device_count() or int(joblib.cpu_count())


def _build_all(plan: Plan, jobs: int) -> None:
    """Every configuration that is still to run, one seed of each."""
    cells: dict[str, Cell] = {}
    for cell in plan.grid.runs:
        if plan.state(cell) != "finished":
            cells.setdefault(f"{cell.row} {[(k, v) for k, v in cell.at.items() if k != SEED]} {cell.choice}", cell)
    wanted = list(cells.values())
    results = _in_parallel(build_job, [_job(plan, i, cell, "to run") for i, cell in enumerate(wanted)], jobs)
    wrong = {f"{wanted[one.number].row}: {one.error}" for one in results if one.error is not None}
    if wrong:
        raise ConfigError("nothing was run, since not everything can:\n  " + "\n  ".join(sorted(wrong)))


def _run_all(plan: Plan, cells: Sequence[Cell], jobs: int, on_run: OnRun) -> list[Done]:
    """The runs in the order of `cells`; each was told as it ended."""
    states = [state_of(plan.folder / cell.folder, cell) for cell in cells]
    order = sorted(range(len(cells)), key=lambda i: states[i] != "finished")
    found: dict[int, Done] = {}
    try:
        for result in _in_parallel(run_job, [_job(plan, i, cells[i], states[i]) for i in order], jobs):
            found[result.number] = _done(cells[result.number], states[result.number], result)
            on_run(found[result.number])
    except BrokenProcessPool as error:
        words = (
            f"a worker process died ({str(error).splitlines()[0]}): out of memory, perhaps. The same command again "
            "goes on; with fewer --jobs each has more memory."
        )
        for i in set(range(len(cells))) - set(found):
            found[i] = Done(cell=cells[i], how="failed", error=words)
            on_run(found[i])
    return [found[i] for i in range(len(cells))]


def _done(cell: Cell, state: State, result: Result) -> Done:
    how: Literal["finished", "already", "failed"] = "already" if state == "finished" else "finished"
    return Done(
        cell=cell,
        how="failed" if result.error is not None else how,
        summary=result.summary,
        error=result.error,
        trace=result.trace,
    )


def _job(plan: Plan, number: int, cell: Cell, state: State) -> Job:
    assert state != "after tuning"
    config = cell.config
    gpus = _gpus() if config.run.device in ("auto", "cuda") else ()
    return Job(number=number, config=config.to_dict(), folder=plan.folder / cell.folder, state=state, gpus=gpus)


def _gpus() -> tuple[str, ...]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return tuple(names or map(str, range(torch.cuda.device_count())))


def _in_parallel(work: Callable[[Job], Result], tasks: Sequence[Job], jobs: int) -> Iterator[Result]:
    """Results as they come. Workers share the cores among them, so that no core has two busy threads."""
    jobs = min(jobs, len(tasks))
    if jobs <= 1:
        yield from map(work, tasks)
        return
    threads = max(1, joblib.cpu_count() // jobs)
    with joblib.parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=threads):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch=jobs)
        yield from parallel(joblib.delayed(work)(task) for task in tasks)


def _with_choices(plan: Plan, tuned: Sequence[Tuned]) -> tuple[list[Cell], list[Done]]:
    """The cells with the values chosen for them, and those for which nothing could be chosen."""
    cells: list[Cell] = []
    lost: list[Done] = []
    for cell in plan.grid.cells:
        if cell.choice is None:
            cells.append(cell)
            continue
        choice = tuned[cell.choice]
        if choice.values is None:
            lost.append(Done(cell=cell, how="failed", error="nothing was chosen for it: a run of [tune] failed."))
        else:
            cells.append(cell.with_values(choice.values))
    return cells, lost


def _write_tuned(plan: Plan, tuned: Sequence[Tuned]) -> None:
    if not tuned:
        return
    target = plan.folder / "tuned.json"
    try:
        target.write_text(json.dumps([one.to_dict() for one in tuned], indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from None
