"""`dpfed sweep`: run all runs of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich import progress as bars
from rich.text import Text

from accounting.compose.selection import RandomRuns
from accounting.ledger.regular_file import LARGEST_LINES, read_input
from accounting.rounding import upwards
from dpfed.cli.output import Flag, Load, Settings, console, number_text, print_json, table_of, training_extra
from dpfed.config.own_code import load_files
from dpfed.errors import ConfigError
from dpfed.planner.whole_numbers import MaybeWholeNumber
from dpfed.report.privacy_card import conditions_text, differing_conditions
from dpfed.report.privacy_text import percent_text

if TYPE_CHECKING:
    from dpfed.records.summary import Summary
    from dpfed.sweep.plan import PlannedSweep
    from dpfed.sweep.sweep import EndedRun, FinishedSweep, TunedChoice


def sweep(
    experiment: Path,
    *,
    profile: str | None = None,
    out: Path | None = None,
    jobs: MaybeWholeNumber = None,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    settings: Settings = None,
    neighbours: Literal["add-remove", "zero-out", "replace-one"] | None = None,
    dry_run: Flag = False,
    private_selection: float | None = None,
    selection_law: Literal["negative-binomial", "poisson"] = "negative-binomial",
    selection_eta: float = 0.0,
    load: Load = None,
    json: Flag = False,
) -> int:
    """Run all rows of a table or figure at every point of their axes, in parallel, in one run folder each.

    Repeat the command to continue an interrupted sweep. `dpfed report DIR` writes the report page.

    Example: dpfed sweep experiments/fed-smp/table-1.toml --profile smoke --dry-run

    Parameters
    ----------
    experiment
        The TOML file of an experiment (docs/experiments.md).
    profile
        Name of a profile in the file, such as smoke or cpu; default: full, if the file has it.
    out
        Folder of all run folders; default: a folder in runs/ named after the file and the profile.
    jobs
        Number of simultaneous runs; default: one for each GPU, or else one for each CPU core.
    only
        Run this row only; may be given again.
    settings
        table.key=value on top of every configuration; may be given again.
    neighbours
        Neighbouring datasets of all rows with [privacy] (privacy.adjacency), so that their epsilons are one guarantee.
    dry_run
        Check every configuration without loading data, list the runs, and stop.
    private_selection
        Draw a random number of runs with this mean, and for each a candidate from the grid; release the best run with
        one epsilon (docs/experiments.md).
    selection_law
        Distribution of the number of runs; negative-binomial gives at least one.
    selection_eta
        Shape of the negative binomial distribution, above -1. A lower shape gives a smaller epsilon, and more often a
        single run.
    load
        A Python file of your own, which registers schemes, methods, networks or data (docs/own-methods.md); may be
        given again. Every process of the sweep runs it.
    json
        Print the list of runs as one JSON document.
    """
    with training_extra("dpfed sweep"):
        from dpfed.sweep.plan import plan
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be at least 1.")
    if private_selection is None and (selection_law, selection_eta) != ("negative-binomial", 0.0):
        raise ConfigError(
            "--selection-law or --selection-eta without --private-selection: nothing is selected. "
            "Give the expected number of runs by --private-selection."
        )
    load_files(load or [])
    planned = plan(
        experiment, profile=profile, out=out, settings=settings or [], only=only or [], neighbours=neighbours
    )
    if dry_run:
        print_json(planned.to_dict()) if json else _show_plan(planned)
        return 0
    if private_selection is not None:
        runs = RandomRuns(mean=private_selection, law=selection_law, eta=selection_eta)
        from dpfed.sweep.private_selection import select_best_run

        log = console(to_stderr=True)
        chosen = select_best_run(planned, runs, jobs=jobs, on_run=lambda done: log.print(f"a run: {done.outcome}"))
        print_json(chosen) if json else _show_selected(chosen, planned.folder)
        return 0
    finished = _run_with_progress(planned, jobs)
    if json:
        print_json(finished.to_dict())
    else:
        _show_finished(finished)
    return 1 if finished.failed_runs else 0


def _show_selected(chosen: Mapping[str, Any], folder: Path) -> None:
    out = console()
    law = chosen["number_of_runs"]
    out.print(f"chosen: {chosen['chosen']['row']} {_point_text(chosen['chosen']['at'])}, by {chosen['rule']}")
    out.print(
        f"epsilon {upwards(chosen['epsilon'])} at delta {upwards(chosen['delta'])} for one {chosen['unit']}, "
        f"{chosen['adjacency']} neighbours: the best of a random number of runs, {law['law']} of mean {law['mean']:g}"
    )
    for note in chosen["notes"]:
        out.print(f"note: {note}")
    out.print(f"release: {folder / 'selected'}; publish nothing else of {folder}, not even the number of runs")


def _run_with_progress(planned: PlannedSweep, jobs: int | None) -> FinishedSweep:
    from dpfed.sweep.sweep import run_sweep

    log = console(to_stderr=True)
    columns = (
        bars.TextColumn("runs"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        _FinishedRounds(planned),
        bars.TimeElapsedColumn(),
    )
    try:
        with bars.Progress(*columns, console=log, disable=not log.is_terminal) as progress:
            task = progress.add_task("", total=len(planned.grid.runs))

            def on_run(done: EndedRun) -> None:
                progress.update(task, advance=1)
                accuracy = done.summary.test_accuracy if done.summary else None
                words = f"failed: {done.error}" if done.summary is None else done.outcome
                if done.outcome != "already":
                    shown = "" if accuracy is None else f", accuracy {percent_text(accuracy)}"
                    log.print(f"{done.cell.row} {_point_text(done.cell.at)}: {words}{shown}")

            return run_sweep(planned, jobs=jobs, on_run=on_run)
    except KeyboardInterrupt:
        log.print("interrupted: run the same command again to continue from the saved rounds.")
        raise


class _FinishedRounds(bars.ProgressColumn):
    """Progress column: number of finished rounds over all runs, read from their folders every few seconds."""

    max_refresh = 2.0

    def __init__(self, planned: PlannedSweep) -> None:
        super().__init__()
        self._files = [planned.folder / cell.folder / "metrics.jsonl" for cell in planned.grid.runs]
        self._total = sum(cell.config.federation.rounds for cell in planned.grid.runs)

    def render(self, task: bars.Task) -> Text:
        done = sum(_line_count(file) for file in self._files)
        return Text(f"{done}/{self._total} rounds" if done else "building all runs first")


def _line_count(file: Path) -> int:
    try:
        return read_input(file, at_most=LARGEST_LINES).count(b"\n")
    except OSError:
        return 0


def _show_finished(finished: FinishedSweep) -> None:
    out = console()
    headings = ("row", "at", "accuracy", "epsilon", "epsilon holds for", "MB", "seconds", "state")
    table = table_of(*headings, title=finished.plan.experiment.title, right=("accuracy", "epsilon", "MB", "seconds"))
    for one in finished.ended_runs:
        kind = "tuning, " if one.cell.folder.startswith("_tune/") else ""
        table.add_row(one.cell.row, _point_text(one.cell.at), *_summary_cells(one.summary), kind + one.outcome)
    rows = [(one.cell.row, one.summary) for one in finished.ended_runs if one.summary is not None]
    if words := differing_conditions(rows):
        equal = " `--neighbours zero-out` gives all rows of clients equal neighbours." if "neighbours:" in words else ""
        out.print(f"{words}{equal}")
    out.print(table)
    for choice in finished.tuned:
        out.print(_choice_text(choice))
    for one in finished.failed_runs:
        out.print(f"failed: {one.cell.row} {_point_text(one.cell.at)}: {one.error}")
        if one.trace:
            out.print(one.trace)
    out.print(f"runs: {finished.plan.folder}; the page of them: dpfed report {finished.plan.folder}")


def _summary_cells(summary: Summary | None) -> tuple[str, ...]:
    """Return accuracy, epsilon, its conditions, uplink megabytes and seconds of a run as text; dashes for a failed
    run."""
    if summary is None:
        return ("–",) * 5
    return (
        percent_text(summary.test_accuracy),
        upwards(summary.epsilon),
        conditions_text(summary),
        number_text(summary.uplink_megabytes_total),
        number_text(summary.seconds),
    )


def _choice_text(choice: TunedChoice) -> str:
    where = f"{choice.row} {_point_text(choice.at)}".strip()
    scores = "; ".join(f"{_point_text(values)}: {number_text(score)}" for values, score in choice.scores)
    chosen = "nothing" if choice.values is None else _point_text(choice.values)
    return f"tuned: {where}: {chosen}, by {choice.score.replace('_', ' ')} ({scores})"


def _show_plan(planned: PlannedSweep) -> None:
    out = console()
    title = f"{planned.experiment.title}: {len(planned.grid.runs)} runs in {planned.folder}"
    table = table_of("row", "at", "folder", "state", title=title)
    for one in planned.to_dict()["runs"]:
        table.add_row(one["row"], _point_text(one["at"]), one["folder"], one["state"])
    out.print(table)
    if planned.note:
        out.print(f"profile {planned.profile}: {planned.note}" if planned.profile else planned.note)


def _point_text(at: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.removeprefix('run.')} {value}" for name, value in at.items())
