"""`dpfed run`: a federated experiment from a preset or a TOML file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from accounting.ledger.project import ProjectLedger
from accounting.rounding import downwards, upwards
from dpfed.cli.output import Flag, console, print_json
from dpfed.cli.stopping import asked_by_signals
from dpfed.config.own_code import load as load_files
from dpfed.errors import ConfigError, RunInterrupted

if TYPE_CHECKING:
    from dpfed.config.tables import Config
    from dpfed.runs.experiment import Experiment
    from dpfed.runs.loop import Outcome

Engine = Literal["in-process", "flower"]
Tracker = Literal["csv", "tensorboard", "mlflow"]
_FILES = {
    "Report, with plots": "report.html",
    "Plot": "curves.png",
    "Ledger": "ledger.jsonl",
    "The model as seed and mask": "model.mask.safetensors",
}


def run(
    config: str | None = None,
    *,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    out: Path | None = None,
    resume: Flag = False,
    list_presets: Annotated[bool, Parameter(name="--list", negative="")] = False,
    ledger: Path | None = None,
    pay: int | None = None,
    release: Flag = False,
    engine: Engine = "in-process",
    load: Annotated[list[Path] | None, Parameter(name="--load", negative="")] = None,
    track: Annotated[list[Tracker] | None, Parameter(name="--track", negative="")] = None,
    json: Flag = False,
) -> int:
    """Run a federated experiment; its folder holds the ledger, the metrics, the model and a report.

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
        Go on with the interrupted run in --out.
    list_presets
        Name the presets and stop.
    ledger
        A project ledger (`dpfed ledger create`) to charge as well: the run ends when its budget is spent.
    pay
        With --ledger: the most units of the project that the run may be bought for, where its rounds are of another
        kind than the project's. All are spent when the run begins.
    release
        Run for a model that is released: noise, cohorts and dropouts from the operating system, exact integer noise.
        Refused, with all reasons, where a method or a setting has no release.
    engine
        Who trains the clients: this process, or Flower's simulation with processes of its own.
    load
        A Python file of your own, which registers schemes, methods, networks or data (docs/own-methods.md); may be
        given again.
    track
        Where else the lines of metrics.jsonl go: csv, tensorboard or mlflow; may be given again.
    json
        The summary as one JSON document on standard output.
    """
    try:
        import torch  # noqa: F401

        from dpfed.methods import presets
    except ImportError as error:
        raise ConfigError(f"`dpfed run` needs the training extra ({error}): pip install 'dpfed[train]'.") from None
    load_files(load or [])
    if list_presets:
        print_json(presets.names()) if json else _list_presets(presets.names())
        return 0
    if resume and out is None:
        raise ConfigError("--resume without --out: name the folder of the run to go on with.")
    given = out if config is None and resume else config
    if given is None:
        raise ConfigError("no configuration given: name a TOML file or a preset (`dpfed run --list`).")
    wanted = [*(settings or []), *(["run.release=true"] if release else [])]
    checked, name = read_configuration(given, wanted, of_run=out if resume else None)
    if release and any(one.replace(" ", "").startswith("run.release=f") for one in settings or []):
        raise ConfigError("--release with --set run.release=false: contradict each other. Remove one of them.")
    from dpfed.aggregation import ranks
    from dpfed.runs import loop as federation
    from dpfed.runs.experiment import build
    from dpfed.runs.folder import free_folder

    folder = out or free_folder(Path("runs"), name)
    with ranks.from_environment() as among:
        experiment = build(checked, among)
        if among.index:
            with asked_by_signals(lambda words: None):  # the first process says when it is over
                federation.follow(experiment)
            return 0
        if pay is not None and ledger is None:
            raise ConfigError("--pay without --ledger: units of which project? Name it.")
        project = None if ledger is None else ProjectLedger.open(ledger, pay=pay)
        again = _command(
            config,
            folder,
            settings=settings or [],
            ledger=ledger,
            release=release,
            engine=engine,
            load=load or [],
            track=track or [],
            processes=among.count,
        )
        try:
            outcome = _run(experiment, folder, resume=resume, project=project, engine=engine, track=track or [])
        except RunInterrupted as error:
            raise RunInterrupted(f"{error} Go on with: {again}") from None
    if json:
        print_json(outcome.summary)
    else:
        _show(outcome)
    return 1 if outcome.record.no_statement else 0


def _list_presets(names: list[str]) -> None:
    """A table by method and data set on a terminal; in a pipe, where scripts read, a name a line."""
    if not sys.stdout.isatty():
        print("\n".join(names))
        return
    from dpfed.methods import presets
    from dpfed.methods.catalogue import every_method

    out = console()
    out.print("A preset is METHOD-DATASET: fed-smp-randk-digits.", highlight=False)
    methods = Table("METHOD", "what a client sends")
    for name in presets.of_methods():
        methods.add_row(name, every_method()[str(presets.tables(f"{name}-digits")["method"]["name"])].what)
    sets = Table()
    sets.add_column("DATASET", no_wrap=True, min_width=max(map(len, presets.data_sets())))
    for heading in ("network", "clients", "a round", "rounds", "epsilon where private"):
        sets.add_column(heading, overflow="fold")
    for name in presets.data_sets():
        tables = presets.tables(f"dp-fedavg-{name}")
        who = tables["federation"]
        numbers = (who["clients"], who["cohort"], who["rounds"], tables["privacy"]["epsilon"])
        sets.add_row(name, tables["model"]["name"], *map(str, numbers))
    out.print(methods)
    out.print(sets)
    out.print(_measured(names))


def _measured(names: list[str]) -> Table:
    """Return a table of accuracy, epsilon and cost of the presets that were run."""
    from dpfed.methods.expected import expected

    table = Table(title="one run of each on two cores")
    shown = {name: one for name, one in expected().items() if name in names}
    table.add_column("PRESET", no_wrap=True, min_width=max(map(len, shown), default=0))
    for heading in ("accuracy", "epsilon", "bits a parameter", "seconds"):
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    for name, one in shown.items():
        epsilon = "–" if one.epsilon is None else upwards(one.epsilon)
        table.add_row(name, f"{one.accuracy:.1%}", epsilon, f"{one.bits_per_parameter:g}", f"{one.seconds:.0f}")
    return table


def read_configuration(given: str | Path, settings: list[str], *, of_run: Path | None = None) -> tuple[Config, str]:
    """Return the checked configuration of a TOML file, a preset or a run's folder, and its name.

    of_run: folder of the run that is resumed, whose delta counts where none is given.
    """
    from dpfed.config.tables import override, parse, parse_written, read_toml
    from dpfed.methods import presets
    from dpfed.runs.resuming import configuration_in, with_delta_of

    if isinstance(given, Path):
        written = parse_written(configuration_in(given), source=str(given / "config.toml"))
        tables, name = written.to_dict(), given.name
    elif given.endswith(".toml"):
        tables, name = read_toml(Path(given)), Path(given).stem
    else:
        tables, name = presets.tables(given), given
    tables = override(tables, settings)
    return parse(tables if of_run is None else with_delta_of(of_run, tables), source=str(given)), name


def _command(
    config: str | None,
    out: Path,
    *,
    settings: Sequence[str],
    ledger: Path | None,
    release: bool,
    engine: str,
    load: Sequence[Path],
    track: Sequence[str],
    processes: int,
) -> str:
    """Return the command line that resumes the run."""
    start = ["dpfed"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes), "-m", "dpfed"]
    words = [*start, "run", *([] if config is None else [config])]
    words += [*(word for one in settings for word in ("--set", one)), "--out", str(out)]
    words += [] if ledger is None else ["--ledger", str(ledger)]
    words += ["--release"] if release else []
    words += [] if engine == "in-process" else ["--engine", engine]
    words += [word for file in load for word in ("--load", str(file))]
    words += [word for kind in track for word in ("--track", kind)]
    return shlex.join([*words, "--resume"])


def _run(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool,
    engine: Engine,
    project: ProjectLedger | None = None,
    track: Sequence[str] = (),
) -> Outcome:
    from dpfed.api.progress import shown
    from dpfed.api.run import carry_out
    from dpfed.api.track import tracked

    log = console(to_stderr=True)
    config, budget = experiment.config, None if experiment.goal is None else experiment.goal.budget
    log.print(_plan_words(experiment))
    with (
        shown(config.federation.rounds, log, otherwise=log.print, budget=budget, folder=folder) as show,
        tracked(track, folder, config.to_dict(), after=show, say=log.print) as on_round,
        asked_by_signals(log.print) as stop,
    ):
        return carry_out(
            experiment, folder, engine=engine, resume=resume, on_round=on_round, project=project, stop=stop
        )


def _plan_words(experiment: Experiment) -> str:
    config, goal = experiment.config, experiment.goal
    words = (
        f"{experiment.facts.name} on {config.data.name}: {config.federation.clients} clients, "
        f"{experiment.method.sampler.expected:g} a round ({config.federation.sampling}), "
        f"d = {experiment.model.size:,}, on {experiment.device}"
    )
    if goal is None:
        return words + "; not private"
    if goal.noise_multiplier is None:
        return words + f"; private by coins, clip norm {downwards(goal.clip_norm)}"
    return words + f"; noise multiplier {upwards(goal.noise_multiplier)}"


def _show(outcome: Outcome) -> None:
    """Print the card of the run, what ran, and the files; lists of the card as notes below."""
    from dpfed.report.privacy_card import card_of
    from dpfed.report.privacy_words import statement
    from dpfed.report.run import what_ran

    summary, out = outcome.record, console()
    card = card_of(summary)
    table = Table(show_header=False, title=f"{summary.method} on {summary.dataset}")
    for one in card.numbers:
        table.add_row(one.name.capitalize(), f"{one.value} ({one.beside})")
    for fact in (*card.facts, *what_ran(summary)):
        if not fact.lines:
            table.add_row(fact.name, fact.words)
    if summary.no_statement:
        table.add_row("No statement", statement(summary).removeprefix("No statement: "))
    for name, file in _FILES.items():
        if (outcome.folder / file).exists():
            table.add_row(name, str(outcome.folder / file))
    out.print(table)
    for line in (line for fact in card.facts for line in fact.lines):
        out.print(f"note: {line}")
