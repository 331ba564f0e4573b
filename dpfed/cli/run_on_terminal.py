"""Runs on a terminal: read the configuration, show progress, print the privacy card at the end. Loads torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from rich.table import Table

from accounting.ledger.project import ProjectLedger
from accounting.rounding import downwards, upwards
from dpfed.api.run import Engine, run_and_report
from dpfed.api.track import progress_display, viewers_of_run
from dpfed.cli.output import console
from dpfed.cli.stopping import stop_by_signals
from dpfed.clients.training import seconds_of_records
from dpfed.config.tables import Config, override, parse, parse_written_config, read_toml
from dpfed.errors import RunInterrupted
from dpfed.methods import catalogue
from dpfed.report.diagnosis import nothing_learned
from dpfed.report.privacy_card import card_of
from dpfed.report.privacy_text import duration_text, privacy_statement
from dpfed.report.run import run_texts
from dpfed.runs.experiment import Experiment
from dpfed.runs.loop import Outcome
from dpfed.runs.resuming import configuration_of_run, with_delta_of_run, with_solved_noise

_FILES = {
    "Report, with plots": "report.html",
    "Plot": "curves.png",
    "Ledger": "ledger.jsonl",
    "The model as seed and mask": "model.mask.safetensors",
}


def read_configuration(given: str | Path, settings: list[str], *, of_run: Path | None = None) -> tuple[Config, str]:
    """Return the checked configuration of a TOML file, a preset or a run folder, and its name.

    of_run: folder of the resumed run, whose delta is used if the configuration gives none.
    """
    if isinstance(given, Path):
        written = parse_written_config(configuration_of_run(given), source=str(given / "config.toml"))
        tables, name = written.to_dict(), given.name
    elif given.endswith(".toml"):
        tables, name = read_toml(Path(given)), Path(given).stem
    else:
        tables, name = catalogue.preset_tables(given), given
    tables = override(tables, settings)
    if of_run is None:
        return parse(tables, source=str(given)), name
    config = parse(with_delta_of_run(of_run, tables), source=str(given))
    return with_solved_noise(config, of_run / "ledger.jsonl"), name


def run_with_progress(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool,
    engine: Engine,
    project: ProjectLedger | None = None,
    track: Sequence[str] = (),
) -> Outcome:
    """Run the experiment; print its plan and progress on standard error, and send metrics to the trackers."""
    log = console(to_stderr=True)
    config, budget = experiment.config, None if experiment.privacy_target is None else experiment.privacy_target.budget
    log.print(_plan_text(experiment))
    if time_text := _record_time_text(experiment):
        log.print(time_text)
    viewers = viewers_of_run(track, folder, config.to_dict(), say=log.print)
    with (
        progress_display(config.federation.rounds, log, otherwise=log.print, budget=budget, folder=folder) as show,
        stop_by_signals(log.print) as stop,
        redirect_stdout(sys.stderr),  # what a network prints is no part of the result
    ):
        try:
            return run_and_report(
                experiment,
                folder,
                engine=engine,
                resume=resume,
                on_round=show,
                project=project,
                stop=stop,
                viewers=viewers,
            )
        except RunInterrupted as error:
            error.signal = getattr(stop, "signal", error.signal)
            raise


def _plan_text(experiment: Experiment) -> str:
    config, privacy_target = experiment.config, experiment.privacy_target
    words = (
        f"{experiment.specification.name} on {config.data.name}: {config.federation.clients} clients, "
        f"{experiment.method.sampler.expected:g} a round ({config.federation.sampling}), "
        f"d = {experiment.model.size:,}, on {experiment.device}"
    )
    if privacy_target is None:
        return words + "; not private"
    if privacy_target.noise_multiplier is None:
        words += f"; private by Bernoulli samples, clip norm {downwards(privacy_target.clip_norm)}"
    else:
        words += f"; noise multiplier {upwards(privacy_target.noise_multiplier)}"
    words += f"; epsilon for one {privacy_target.unit}, {privacy_target.mechanism.adjacency}"
    return f"{words}, delta {upwards(privacy_target.delta)}"


def _record_time_text(experiment: Experiment) -> str:
    """Return the estimated time of records that are trained one by one; an empty text for other runs."""
    who, method = experiment.config.federation, experiment.method
    found = seconds_of_records(method.clients, rounds=who.rounds, share=method.sampler.expected / who.clients)
    if found is None:
        return ""
    seconds, gradients = found
    return (
        f"records are trained one by one, {gradients:,} gradients a round: about {duration_text(seconds)} of processor "
        f"time for {who.rounds:,} rounds"
    )


def show_outcome(outcome: Outcome, *, verbose: bool = False) -> None:
    """Print the run's sentence, numbers and report; with `verbose` also its setting, its other files and its notes."""
    summary, out = outcome.record, console()
    card = card_of(summary)
    table = Table(show_header=False, title=f"{summary.method} on {summary.dataset}")
    table.add_row("In one sentence", card.sentence)
    for one in card.numbers:
        table.add_row(one.name.capitalize(), f"{one.value} ({one.conditions})")
    for fact in (*card.texts, *run_texts(summary)) if verbose else ():
        if not fact.items:
            table.add_row(fact.name, fact.text)
    if summary.no_statement:
        table.add_row("No statement", privacy_statement(summary).removeprefix("No statement: "))
    for name, file in _FILES.items():
        if (verbose or file == "report.html") and (outcome.folder / file).exists():
            table.add_row(name, str(outcome.folder / file))
    out.print(table)
    if nothing := nothing_learned(outcome.lines):
        out.print(f"{nothing} `dpfed diagnose {outcome.folder}` lists likely causes.")
    lines = [line for fact in card.texts for line in fact.items]
    for line in lines if verbose else ():
        out.print(f"note: {line}")
    if not verbose:
        for words in summary.not_protected:
            out.print(f"not protected: {words}")
        if lines:
            out.print("All limitations and notes: in the report, or with --verbose.")
