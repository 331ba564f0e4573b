"""`dpfed run`: run a federated experiment from a preset or a TOML file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from accounting.rounding import upwards
from dpfed.cli.output import Flag, Load, Settings, console, print_json, training_extra
from dpfed.cli.stopping import stop_by_signals
from dpfed.config.own_code import load_files
from dpfed.errors import ConfigError, RunInterrupted
from dpfed.methods import catalogue
from dpfed.methods.catalogue import ExpectedResults, expected_results
from dpfed.planner.whole_numbers import MaybeWholeNumber

Engine = Literal["in-process", "flower"]


def run(
    config: str | None = None,
    *,
    settings: Settings = None,
    out: Path | None = None,
    resume: Flag = False,
    list_presets: Annotated[bool, Parameter(name="--list", negative="")] = False,
    ledger: Path | None = None,
    pay: MaybeWholeNumber = None,
    release: Flag = False,
    engine: Engine = "in-process",
    load: Load = None,
    track: Annotated[list[str] | None, Parameter(name="--track", negative="")] = None,
    verbose: Flag = False,
    json: Flag = False,
) -> int:
    """Run a federated experiment; the run folder receives the ledger, the metrics, the model and a report.

    Example: dpfed run fed-smp-randk-digits --set federation.rounds=10

    Parameters
    ----------
    config
        A TOML file, or the name of a preset; with --resume, the configuration in --out by default.
    settings
        table.key=value on top of the configuration; may be given again.
    out
        The run folder; default: runs/NAME, the first free one.
    resume
        Continue the interrupted run in --out.
    list_presets
        List the presets and stop.
    ledger
        A project ledger (`dpfed ledger create`) that is also charged: the run ends when the project's budget is spent.
    pay
        With --ledger, if the rounds differ from the project's unit: the largest number of units that the run may use.
        The units are spent when the run begins.
    release
        Train a model for release: noise, cohorts and dropouts from the operating system, exact integer noise. If
        a method or setting does not allow that, the command prints all reasons and stops. If the run may be
        interrupted, set run.spare_rounds to a few: repeated rounds are charged again.
    engine
        Engine that trains the clients: this process, or Flower's simulation in separate processes.
    load
        A Python file of your own, which registers schemes, methods, networks or data (docs/own-methods.md); may be
        given again.
    track
        Tracker that also receives the lines of metrics.jsonl: csv, tensorboard, mlflow, wandb, or a package's tracker;
        may be given again.
    verbose
        Print at the end also the run's setting, all files, limitations and notes, which the report has.
    json
        The summary as one JSON document on standard output.
    """
    load_files(load or [])
    if list_presets:
        print_json(catalogue.preset_names()) if json else _show_presets(catalogue.preset_names())
        return 0
    with training_extra("dpfed run"):
        from accounting.ledger.project import ProjectLedger
        from dpfed.aggregation import ranks
        from dpfed.cli.run_on_terminal import read_configuration, run_with_progress, show_outcome
        from dpfed.runs import loop as federation
        from dpfed.runs.experiment import build
        from dpfed.runs.folder import free_folder
        from dpfed.runs.resuming import naming_missing_code
    if resume and out is None:
        raise ConfigError("--resume without --out: name the run folder to resume.")
    given = out if config is None and resume else config
    if given is None:
        raise ConfigError("no configuration given: name a TOML file or a preset (`dpfed run --list`).")
    wanted = [*(settings or []), *(["run.release=true"] if release else [])]
    begun = out if resume else None
    with naming_missing_code(begun):
        checked, name = read_configuration(given, wanted, of_run=begun)
    if release and any(one.replace(" ", "").startswith("run.release=f") for one in settings or []):
        raise ConfigError("--release with --set run.release=false: contradict each other. Remove one of them.")
    folder = out or free_folder(Path("runs"), name)
    with ranks.ranks_from_environment() as among:
        with naming_missing_code(begun):
            experiment = build(checked, among)
        if among.index:
            with stop_by_signals(lambda words: None):  # process 0 waits for all others and prints the outcome
                federation.train_share_of_rounds(experiment)
            return 0
        if pay is not None and ledger is None:
            raise ConfigError("--pay without --ledger: units belong to a project. Give --ledger.")
        project = None if ledger is None else ProjectLedger.open(ledger, pay=pay)
        start = ["dpfed"] if among.count == 1 else ["torchrun", "--nproc-per-node", str(among.count), "-m", "dpfed"]
        words = [*start, "run", *([] if config is None else [config])]
        words += [*(word for one in settings or [] for word in ("--set", one)), "--out", str(folder)]
        words += [] if ledger is None else ["--ledger", str(ledger)]
        words += ["--release"] if release else []
        words += [] if engine == "in-process" else ["--engine", engine]
        words += [word for file in load or [] for word in ("--load", str(file))]
        words += [word for kind in track or [] for word in ("--track", kind)]
        again = shlex.join([*words, "--resume"])  # how to continue an interrupted run
        try:
            outcome = run_with_progress(
                experiment, folder, resume=resume, project=project, engine=engine, track=track or []
            )
        except RunInterrupted as error:
            error.args = (f"{error} Go on with: {again}",)
            raise
    if json:
        print_json(outcome.summary)
    else:
        show_outcome(outcome, verbose=verbose)
    return 1 if outcome.record.no_statement else 0


def _show_presets(names: list[str]) -> None:
    """Print a table method x data set on a terminal, and one of the data sets; in a pipe, one preset name per line."""
    sets = sorted(catalogue.data_sets(), key=lambda name: not name.startswith("digits"))
    if not sys.stdout.isatty():
        print("\n".join(sorted(names, key=lambda name: not name.endswith("-digits"))))
        return
    out = console()
    out.print("A preset is METHOD-DATASET: fed-smp-randk-digits. Every method has a preset on every data set.")
    out.print(
        "Measured in one run: test accuracy, bits a parameter, seconds on two cores, epsilon at the preset's delta."
    )
    out.print("What a method sends: dpfed methods.")
    measured = expected_results()
    shown = [name for name in sets if f"dp-fedavg-{name}" in measured]
    methods = Table()
    methods.add_column("METHOD", no_wrap=True)
    for name in shown:
        methods.add_column(name, no_wrap=True)
    for name in catalogue.tables_of_methods():
        methods.add_row(name, *(_measured_text(measured.get(f"{name}-{data}")) for data in shown))
    described = Table()
    described.add_column("DATASET", no_wrap=True, min_width=max(map(len, sets)))
    for heading in ("network", "clients", "rounds", "epsilon"):
        described.add_column(heading, overflow="fold")
    for name in sets:
        tables = catalogue.preset_tables(f"dp-fedavg-{name}")
        who = tables["federation"]
        clients = f"{who['clients']}, {who['cohort']} a round"
        described.add_row(name, tables["model"]["name"], clients, str(who["rounds"]), str(tables["privacy"]["epsilon"]))
    out.print(methods)
    out.print("digits runs as it is; the other data sets need their files (docs/data.md).")
    out.print(described)


def _measured_text(one: ExpectedResults | None) -> str:
    """Return accuracy, seconds and epsilon of a measured run, in few characters; a dot if none was measured."""
    if one is None:
        return "·"
    private = "" if one.epsilon is None else f"\nepsilon {upwards(one.epsilon)}"
    return f"{one.accuracy:.1%}, {one.bits_per_parameter:g} bits, {one.seconds:.0f} s{private}"
