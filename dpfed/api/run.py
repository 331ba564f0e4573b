"""`dpfed.run`: a federated experiment from a preset, a file or tables, with data, a network and a loss of one's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from torch import nn

from accounting.ledger.project import ProjectLedger
from dpfed.api.finished import Finished
from dpfed.api.progress import followed
from dpfed.api.settings import named_tables
from dpfed.api.track import tracked
from dpfed.clients.losses import OfSamples
from dpfed.config.tables import parse
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError
from dpfed.report.run import write_report
from dpfed.run.evaluate import Metric
from dpfed.run.experiment import Experiment, build
from dpfed.run.folder import free_folder
from dpfed.run.loop import OnRound, Outcome
from dpfed.run.resuming import with_delta_of
from dpfed.run.training import Own, maker_of

Engine = Literal["in-process", "flower"]

_NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
_NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


def run(
    config: str | os.PathLike[str] | Mapping[str, Any],
    settings: Mapping[str, Any] = _NO_SETTINGS,
    *,
    data: Dataset | None = None,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    loss: OfSamples | None = None,
    metrics: Mapping[str, Metric] = _NO_METRICS,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    engine: Engine = "in-process",
    ledger: str | os.PathLike[str] | None = None,
    pay: int | None = None,
    progress: bool | OnRound | None = None,
    track: Sequence[str] = (),
) -> Finished:
    """Run a federated experiment: what `dpfed run` does, in its folder, report and all.

    config:   a preset's name, a TOML file (a path, or a string that ends in .toml), or tables
    settings: {"federation.rounds": 20} on top; None takes a key away
    data:     a `dpfed.data.Dataset` in place of data.name (`dpfed.data.from_arrays`, `from_clients`, `from_samples`).
              Where it says who holds what and a preset is run, its owners are the clients: data.partition is "natural"
              and federation.clients their number, unless `settings` say otherwise
    model:    an nn.Module, which is copied and starts from its weights, or a function, of nothing or of (input_shape,
              classes), that makes one with fresh weights
    loss:     f(outputs, targets) -> [n], in place of local.loss
    metrics:  {name: f(outputs, targets) -> number} on the test half, beside run.metrics (`dpfed.run.evaluate.Metric`)
    out:      the folder; default: runs/NAME, the first free one. resume: go on with the interrupted run in it, given
              the same data, model and loss again
    ledger:   a project ledger (`dpfed ledger create`) that is charged as well; the run ends when its budget is spent
    pay:      the most units of the project that the run may be bought for, where its rounds are of another kind than
              the project's
    progress: a bar on standard error; None: where that is a terminal or a notebook; or a function that is given each
              line of metrics.jsonl
    track:    "csv", "tensorboard", "mlflow": where else these lines go (`dpfed.api.track`)

    Claim: epsilon in the result is an upper bound for what ran, computed from the ledger alone. ConfigError,
    AccountingError: refused, and no folder is left. RunError, LedgerError: the run cannot go on; what it has is saved.
    """
    own = Own(data=data, model=None if model is None else maker_of(model), loss=loss, metrics=metrics)
    if resume and out is None:
        raise ConfigError("resume=True without out: name the folder of the run to go on with.")
    if own.names and engine != "in-process":
        raise ConfigError(
            f"engine={engine!r} with {', '.join(own.names)} given as objects: nodes are other processes, which need "
            "names. Register them in a file of your own (--load), and use the names."
        )
    tables, name = named_tables(config, settings, data=data, model=model)
    if resume and out is not None:
        tables = with_delta_of(Path(out), tables)
    experiment = build(parse(tables, source=name), own=own)
    project = None if ledger is None else ProjectLedger.open(ledger, pay=pay)
    folder = free_folder(Path("runs"), name) if out is None else Path(out)
    checked, budget = experiment.config, None if experiment.goal is None else experiment.goal.budget
    with (
        followed(progress, checked.federation.rounds, budget=budget, folder=folder) as show,
        tracked(track, folder, checked.to_dict(), say=warn) as keep,
    ):
        outcome = carry_out(
            experiment, folder, engine=engine, resume=resume, project=project, on_round=both(show, keep)
        )
    return Finished.of(outcome, experiment)


def both(first: OnRound, second: OnRound) -> OnRound:
    """Each line to one, then to the other."""

    def on_round(record: Mapping[str, Any]) -> None:
        first(record)
        second(record)

    return on_round


def warn(words: str) -> None:
    """A warning of Python's, at who called `dpfed.run`."""
    warnings.warn(words, stacklevel=2)


def carry_out(
    experiment: Experiment,
    folder: Path,
    *,
    engine: Engine,
    resume: bool,
    on_round: OnRound,
    project: ProjectLedger | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """The run in its engine, and its report; `stop` is asked before every round."""
    if engine not in ("in-process", "flower"):
        raise ConfigError(f"engine={engine!r}: must be 'in-process' or 'flower'.")
    if engine == "flower":
        from dpfed.engines.flower.settings import require_flower

        require_flower(simulation=True)
        from dpfed.engines.flower.simulation import simulate as train
    else:
        from dpfed.run.loop import run as train
    outcome = train(experiment, folder, resume=resume, on_round=on_round, project=project, stop=stop)
    write_report(outcome)
    return outcome
