"""Execution of a planned sweep: every configuration is built before any run starts; then runs train in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal

from dpfed.errors import ConfigError
from dpfed.records.summary import Summary
from dpfed.report.figures.figure import import_pandas
from dpfed.runs.sweep_folder import NAME, read_sweep, write_json, write_sweep
from dpfed.sweep.jobs import RunJob, Workers, build_job, run_job, worker_pool
from dpfed.sweep.plan import SEED, GridCell, PlannedSweep, State, TuningChoice, folder_state, sweep_listing

OnRun = Callable[["EndedRun"], None]
_ENDING = "after the last round of one run; among equal candidates the first"
RULES = {
    "validation_accuracy": f"highest validation accuracy {_ENDING}",
    "validation_loss": f"lowest validation loss {_ENDING}",
}
"""Rule of a choice, by the key of its score; the loss is used if targets are not classes."""


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that has ended; the outcome "already" means that an earlier sweep finished it."""

    cell: GridCell
    outcome: Literal["finished", "already", "failed"]
    summary: Summary | None = None
    error: str | None = None
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class TunedChoice:
    """Choice for a row at a point: `values` of the best candidate, or None if a candidate's run failed.

    `score`: the key of summary.json by which candidates were compared."""

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
            "rule": f"{RULES[self.score]} in the file",
            "seed": self.seed,
            "validation_samples": self.validation,
        }


@dataclass(frozen=True, kw_only=True)
class FinishedSweep:
    """All runs of a sweep, and the choices of its tuning."""

    plan: PlannedSweep
    ended_runs: tuple[EndedRun, ...]
    tuned: tuple[TunedChoice, ...]

    @property
    def failed_runs(self) -> tuple[EndedRun, ...]:
        return tuple(one for one in self.ended_runs if one.outcome == "failed")

    def to_pandas(self) -> Any:
        """Return the runs as a pandas DataFrame: row, point, state, folder, and numbers and texts of summary.json.

        ConfigError if pandas is not installed."""
        lines = []
        for one in self.ended_runs:
            place: dict[str, object] = {
                "row": one.cell.row,
                **one.cell.at,
                "state": one.outcome,
                "folder": one.cell.folder,
            }
            summary: dict[str, object] = {} if one.summary is None else one.summary.to_dict()
            plain = {key: value for key, value in summary.items() if isinstance(value, str | int | float)}
            lines.append(plain | place)
        return import_pandas().DataFrame(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed sweep`."""
        return {
            "title": self.plan.experiment.title,
            "profile": self.plan.profile,
            "note": self.plan.note,
            "out": str(self.plan.folder),
            "runs": [
                {
                    "row": one.cell.row,
                    "at": dict(one.cell.at),
                    "folder": one.cell.folder,
                    "state": one.outcome,
                    "error": one.error,
                    "summary": None if one.summary is None else one.summary.to_dict(),
                }
                for one in self.ended_runs
            ],
            "tuned": [one.to_dict() for one in self.tuned],
        }


def run_sweep(plan: PlannedSweep, *, jobs: int | None = None, on_run: OnRun = lambda done: None) -> FinishedSweep:
    """Run all unfinished runs, `jobs` at a time (default: one per GPU, or else per core); `on_run` is called with each.

    ConfigError, before any run starts, if a configuration cannot be built. A failed run does not stop other runs.
    After an interruption, the same call continues from the saved rounds.
    """
    with worker_pool(jobs, [cell.config.run.device for cell in plan.grid.runs]) as pool:
        _build_all(plan, pool)
        kept = _earlier_choices(plan)
        write_sweep(plan.folder, sweep_listing(plan, kept))
        trials = [cell for choice in plan.grid.choices for cell in choice.runs]
        tried = run_all(plan, trials, pool, on_run)
        left = iter(tried)
        tuned = tuple(best_candidate(choice, [next(left).summary for _ in choice.runs]) for choice in plan.grid.choices)
        records = [*kept, *(one.to_dict() for one in tuned)]
        if records:
            write_json(plan.folder / "tuned.json", records)
        write_sweep(plan.folder, sweep_listing(plan, records))
        cells, lost = _cells_with_choices(plan, tuned)
        for one in lost:
            on_run(one)
        return FinishedSweep(plan=plan, ended_runs=(*tried, *run_all(plan, cells, pool, on_run), *lost), tuned=tuned)


def _build_all(plan: PlannedSweep, pool: Workers) -> None:
    """Build every unfinished configuration with one seed; ConfigError lists those that cannot be built."""
    cells: dict[str, GridCell] = {}
    for cell in plan.grid.runs:
        if plan.state(cell) != "finished":
            cells.setdefault(f"{cell.row} {[(k, v) for k, v in cell.at.items() if k != SEED]} {cell.choice}", cell)
    wanted = list(cells.values())
    results = pool.results(build_job, [_job_of_cell(plan, i, cell, "to run") for i, cell in enumerate(wanted)])
    wrong = {f"{wanted[one.number].row}: {one.error}" for one in results if one.error is not None}
    if wrong:
        raise ConfigError("nothing was run, because some runs cannot be built:\n  " + "\n  ".join(sorted(wrong)))


def run_all(plan: PlannedSweep, cells: Sequence[GridCell], pool: Workers, on_run: OnRun) -> list[EndedRun]:
    """Run the cells and return the ended runs in the order of `cells`; `on_run` is called as each run ends."""
    states = [folder_state(plan.folder / cell.folder, cell) for cell in cells]
    order = sorted(range(len(cells)), key=lambda i: states[i] != "finished")
    found: dict[int, EndedRun] = {}
    try:
        for result in pool.results(run_job, [_job_of_cell(plan, i, cells[i], states[i]) for i in order]):
            i = result.number
            ended: Literal["already", "finished"] = "already" if states[i] == "finished" else "finished"
            found[i] = EndedRun(
                cell=cells[i],
                outcome="failed" if result.error is not None else ended,
                summary=result.summary,
                error=result.error,
                trace=result.trace,
            )
            on_run(found[i])
    except BrokenProcessPool as error:
        words = (
            f"a worker process died ({str(error).splitlines()[0]}), perhaps for lack of memory. Repeat the command to "
            "continue; with fewer --jobs each run has more memory."
        )
        for i in set(range(len(cells))) - set(found):
            found[i] = EndedRun(cell=cells[i], outcome="failed", error=words)
            on_run(found[i])
    return [found[i] for i in range(len(cells))]


def _job_of_cell(plan: PlannedSweep, number: int, cell: GridCell, state: State) -> RunJob:
    assert state != "after tuning"
    return RunJob(number=number, config=cell.config.to_dict(), folder=plan.folder / cell.folder, state=state)


def _cells_with_choices(plan: PlannedSweep, tuned: Sequence[TunedChoice]) -> tuple[list[GridCell], list[EndedRun]]:
    """Return the cells with their chosen values, and as failed runs the cells without a choice."""
    cells: list[GridCell] = []
    lost: list[EndedRun] = []
    for cell in plan.grid.cells:
        if cell.choice is None:
            cells.append(cell)
            continue
        choice = tuned[cell.choice]
        if choice.values is None:
            lost.append(
                EndedRun(cell=cell, outcome="failed", error="no values were chosen, because a run of [tune] failed.")
            )
        else:
            cells.append(cell.with_chosen_values(choice.values))
    return cells, lost


def _earlier_choices(plan: PlannedSweep) -> list[Mapping[str, object]]:
    """Return the choices that earlier sweeps in this folder recorded for rows outside this sweep."""
    if not (plan.folder / NAME).exists():
        return []
    now = {choice.row for choice in plan.grid.choices}
    return [one for one in read_sweep(plan.folder).tuned if one["row"] not in now]


def best_candidate(choice: TuningChoice, summaries: Sequence[Summary | None]) -> TunedChoice:
    """Return the choice of the best candidate; `summaries` has None for a failed run."""
    best, key, scores = best_run_of(summaries)
    config = choice.runs[0].config
    return TunedChoice(
        row=choice.row,
        at=choice.at,
        values=None if best is None else choice.values[best],
        scores=tuple(zip(choice.values, scores, strict=True)),
        seed=config.run.seed,
        validation=config.data.validation or 0,
        score=key,
    )


def best_run_of(summaries: Sequence[Summary | None]) -> tuple[int | None, str, list[float | None]]:
    """Return (index of the best run, or None if a run failed; key of the score; scores of all runs). A loss that is not
    finite, as of training that diverges, has no score and is the worst."""
    of_classes = all(one is None or one.number("validation_accuracy") is not None for one in summaries)
    key, best = ("validation_accuracy", max) if of_classes else ("validation_loss", min)
    scores = [None if summary is None else summary.number(key) for summary in summaries]
    given = [score for score in scores if score is not None]
    return scores.index(best(given)) if given and None not in summaries else None, key, scores
