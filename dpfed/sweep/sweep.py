"""Run a planned sweep: everything is built once before the first run starts; then the runs, several at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpfed.errors import ConfigError, RunError
from dpfed.records.summary import Summary
from dpfed.report.figures.figure import pandas
from dpfed.runs.durable_files import put
from dpfed.runs.sweep_folder import NAME, read_sweep, write_sweep
from dpfed.sweep.grid import SEED, Cell, Choice
from dpfed.sweep.jobs import Job, Result, Workers, build_job, run_job, workers
from dpfed.sweep.plan import PlannedSweep, State, listing, state_of

OnRun = Callable[["Done"], None]
_ENDING = "after the last round of one run; of equal ones the first in the file"
RULES = {
    "validation_accuracy": f"highest validation accuracy {_ENDING}",
    "validation_loss": f"lowest validation loss {_ENDING}",
}
"""Rule of a choice, by its score: the loss if targets are no classes."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that has ended, well or not; "already" one that an earlier sweep has finished."""

    cell: Cell
    how: Literal["finished", "already", "failed"]
    summary: Summary | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Choice for a row at a point: `values` of the best candidate, None where a candidate's run failed;
    `score` is the key of summary.json that was looked at."""

    row: str
    at: Mapping[str, str]
    values: Mapping[str, object] | None
    scores: tuple[tuple[Mapping[str, object], float | None], ...]
    seed: int
    validation: int
    score: str = "validation_accuracy"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of tuned.json."""
        return {
            "row": self.row,
            "at": dict(self.at),
            "chosen": None if self.values is None else dict(self.values),
            "scores": [{"values": dict(values), self.score: score} for values, score in self.scores],
            "rule": RULES[self.score],
            "seed": self.seed,
            "validation_samples": self.validation,
        }


@dataclass(frozen=True, kw_only=True)
class FinishedSweep:
    """All runs of a sweep, and what was tuned."""

    plan: PlannedSweep
    done: tuple[Done, ...]
    tuned: tuple[Tuned, ...]

    @property
    def failed(self) -> tuple[Done, ...]:
        return tuple(one for one in self.done if one.how == "failed")

    def to_pandas(self) -> Any:
        """Return the runs as a pandas DataFrame: row, point, state, folder, then the numbers and texts of summary.json.
        ConfigError without pandas."""
        lines = []
        for one in self.done:
            place: dict[str, object] = {"row": one.cell.row, **one.cell.at, "state": one.how, "folder": one.cell.folder}
            summary: dict[str, Any] = {} if one.summary is None else one.summary.to_dict()
            plain = {key: value for key, value in summary.items() if isinstance(value, str | int | float)}
            lines.append(plain | place)
        return pandas().DataFrame(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed sweep`."""
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
                    "summary": None if one.summary is None else one.summary.to_dict(),
                }
                for one in self.done
            ],
            "tuned": [one.to_dict() for one in self.tuned],
        }


def run_sweep(plan: PlannedSweep, *, jobs: int | None = None, on_run: OnRun = lambda done: None) -> FinishedSweep:
    """Run all unfinished runs, `jobs` at a time (default: one a GPU, or else a core); `on_run` gets each.

    ConfigError where something cannot be built, before anything runs. A run that fails does not stop the others.
    Interrupted at any moment, the same call continues from the rounds that were saved.
    """
    with workers(jobs, [cell.config.run.device for cell in plan.grid.runs]) as pool:
        _build_all(plan, pool)
        kept = _tuned_before(plan)
        write_sweep(plan.folder, listing(plan, kept))
        trials = [cell for choice in plan.grid.choices for cell in choice.runs]
        tried = run_all(plan, trials, pool, on_run)
        tuned = _tuned(plan, [one.summary for one in tried])
        records = [*kept, *(one.to_dict() for one in tuned)]
        if records:
            write_json(plan.folder / "tuned.json", records)
        write_sweep(plan.folder, listing(plan, records))
        cells, lost = _with_choices(plan, tuned)
        for one in lost:
            on_run(one)
        return FinishedSweep(plan=plan, done=(*tried, *run_all(plan, cells, pool, on_run), *lost), tuned=tuned)


def _build_all(plan: PlannedSweep, pool: Workers) -> None:
    """Every configuration that is still to run, one seed of each."""
    cells: dict[str, Cell] = {}
    for cell in plan.grid.runs:
        if plan.state(cell) != "finished":
            cells.setdefault(f"{cell.row} {[(k, v) for k, v in cell.at.items() if k != SEED]} {cell.choice}", cell)
    wanted = list(cells.values())
    results = pool.results(build_job, [_job(plan, i, cell, "to run") for i, cell in enumerate(wanted)])
    wrong = {f"{wanted[one.number].row}: {one.error}" for one in results if one.error is not None}
    if wrong:
        raise ConfigError("nothing was run, since not everything can:\n  " + "\n  ".join(sorted(wrong)))


def run_all(plan: PlannedSweep, cells: Sequence[Cell], pool: Workers, on_run: OnRun) -> list[Done]:
    """Return the runs in the order of `cells`; each was reported as it ended."""
    states = [state_of(plan.folder / cell.folder, cell) for cell in cells]
    order = sorted(range(len(cells)), key=lambda i: states[i] != "finished")
    found: dict[int, Done] = {}
    try:
        for result in pool.results(run_job, [_job(plan, i, cells[i], states[i]) for i in order]):
            found[result.number] = _done(cells[result.number], states[result.number], result)
            on_run(found[result.number])
    except BrokenProcessPool as error:
        words = (
            f"a worker process died ({str(error).splitlines()[0]}): out of memory, perhaps. The same command again "
            "continues; with fewer --jobs each has more memory."
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


def _job(plan: PlannedSweep, number: int, cell: Cell, state: State) -> Job:
    assert state != "after tuning"
    return Job(number=number, config=cell.config.to_dict(), folder=plan.folder / cell.folder, state=state)


def _tuned(plan: PlannedSweep, summaries: Sequence[Summary | None]) -> tuple[Tuned, ...]:
    """Return every choice, by the summaries of its candidates."""
    left = iter(summaries)
    return tuple(pick(choice, [next(left) for _ in choice.runs]) for choice in plan.grid.choices)


def _with_choices(plan: PlannedSweep, tuned: Sequence[Tuned]) -> tuple[list[Cell], list[Done]]:
    """Return the cells with the values chosen for them, and those for which nothing could be chosen."""
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


def _tuned_before(plan: PlannedSweep) -> list[Mapping[str, object]]:
    """Return the choices of earlier sweeps in this folder for rows that are not run now."""
    if not (plan.folder / NAME).exists():
        return []
    now = {choice.row for choice in plan.grid.choices}
    return [one for one in read_sweep(plan.folder).tuned if one["row"] not in now]


def write_json(target: Path, document: Mapping[str, object] | Sequence[Mapping[str, object]]) -> None:
    """Write the document, and its folder. RunError where that is not possible."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put(target, (json.dumps(document, indent=2) + "\n").encode())
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from None


def pick(choice: Choice, summaries: Sequence[Summary | None]) -> Tuned:
    """Return the best of the candidates whose runs ended with these summaries (None: it failed)."""
    best, key, scores = best_of(summaries)
    config = choice.runs[0].config
    return Tuned(
        row=choice.row,
        at=choice.at,
        values=None if best is None else choice.values[best],
        scores=tuple(zip(choice.values, scores, strict=True)),
        seed=config.run.seed,
        validation=config.data.validation or 0,
        score=key,
    )


def best_of(summaries: Sequence[Summary | None]) -> tuple[int | None, str, list[float | None]]:
    """Return the number of the best run (None if one failed), the key of the score, and all scores."""
    of_classes = all(one is None or one.number("validation_accuracy") is not None for one in summaries)
    key, best = ("validation_accuracy", max) if of_classes else ("validation_loss", min)
    scores = [None if summary is None else summary.number(key) for summary in summaries]
    given = [score for score in scores if score is not None]
    return scores.index(best(given)) if given and len(given) == len(scores) else None, key, scores
