"""`dpfed.run`: a federated experiment from a preset, a file or tables, with your data, network and loss."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load_file
from torch import nn

from accounting import Guarantee, Ledger
from accounting.ledger.project import ProjectLedger
from accounting.rounding import html_table
from dpfed import replayed
from dpfed.api.track import chosen_progress, viewers_of_run
from dpfed.clients.losses import OfSamples
from dpfed.config.tables import flat_tables, override, parse, read_toml, set_key
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError, RunError
from dpfed.methods import catalogue
from dpfed.records.summary import Summary, read_finished
from dpfed.report.figures.experiment import plot_run
from dpfed.report.figures.figure import import_pandas
from dpfed.report.privacy_card import card_of
from dpfed.report.run import write_report
from dpfed.runs.evaluate import Metric
from dpfed.runs.experiment import Experiment, build
from dpfed.runs.folder import free_folder
from dpfed.runs.loop import Outcome
from dpfed.runs.metrics_endpoint import configure_log
from dpfed.runs.public_code import NO_VIEWERS, OnRound, Viewers
from dpfed.runs.resuming import naming_missing_code, with_delta_of_run, with_solved_noise
from dpfed.runs.summary import stated_guarantee
from dpfed.runs.training import CustomObjects, model_maker, model_name, plain_torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG = logging.getLogger("dpfed")
Engine = Literal["in-process", "flower"]

_NO_SETTINGS: Mapping[str, object] = MappingProxyType({})
_NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Result of a finished run: its folder, summary.json as `summary`, and the lines of metrics.jsonl as `metrics`."""

    folder: Path
    summary: dict[str, object]
    metrics: list[dict[str, Any]]
    experiment: Experiment

    @cached_property
    def model(self) -> nn.Module:
        """A new network with the final weights (model.safetensors), in evaluation mode on the CPU."""
        flat, saved = self.experiment.model, load_file(self.folder / "model.safetensors")
        weights = torch.cat([saved[block.name].reshape(-1) for block in flat.layout])
        return flat.bind(weights).eval()

    def personal_model(self, client: int) -> nn.Module:
        """Return a new network with the final weights and this client's own personal layers (local.personal).

        It is for the operator: no epsilon covers personal layers. A client that has not trained has those of the start.
        Raises RunError if the run has none.
        """
        training = self.experiment.method.clients
        network, rows = self.model, load_file(self.folder / "checkpoint.safetensors").get("clients.personal")
        if training.personal is None or rows is None:
            raise RunError(
                f"{self.folder}: has no personal layers. Set local.personal; on Flower they stay on the nodes."
            )
        if not 0 <= client < len(rows):
            raise RunError(f"{self.folder}: client {client} of {len(rows)}. Give a number from 0 to {len(rows) - 1}.")
        weights = torch.cat([dict(network.state_dict())[one.name].reshape(-1) for one in training.model.layout])
        weights[training.personal.cpu()] += rows[client]
        return self.experiment.model.bind(weights).eval()

    @cached_property
    def guarantee(self) -> Guarantee:
        """Upper bound on epsilon for what ran, computed from the ledger alone, with delta, unit and adjacency.

        Its epsilon equals summary["epsilon"]. Raises RunError if the run is not private."""
        privacy_target = self.experiment.privacy_target
        if privacy_target is None:
            raise RunError(
                f"{self.folder}: the run is not private and has no guarantee. Add [privacy], or [local.record]."
            )
        return stated_guarantee(self.experiment, privacy_target, Ledger.read(self.folder / "ledger.jsonl"))

    def to_pandas(self) -> Any:
        """Return the lines of metrics.jsonl as a pandas DataFrame, one row per round. ConfigError without pandas."""
        return import_pandas().DataFrame(self.metrics).set_index("round")

    def plot(self, path: Path | None = None, *, ax: Sequence[Axes] | None = None) -> Figure:
        """Return the figure of the run, new or drawn on the caller's axes `ax`, and write it to `path` if given.

        It has two panels, accuracy over rounds and over uplink, and for a private run a third, epsilon over rounds.
        """
        found = read_finished(self.folder)
        return plot_run(found.summary.method, found.metrics, path, ax=ax)

    def _repr_html_(self) -> str:
        """Return the run's privacy card as a table for notebooks."""
        summary = Summary.read(self.summary)
        card = card_of(summary)
        rows = [
            ("In one sentence", card.sentence),
            *((one.name, f"{one.value} ({one.conditions})") for one in card.numbers),
        ]
        rows += [(one.name, one.text or " ".join(one.items)) for one in card.texts]
        return html_table(f"{summary.method} on {summary.dataset}: {self.folder}", rows)

    def __repr__(self) -> str:
        said = {key: self.summary[key] for key in ("method", "dataset", "rounds", "test_accuracy", "epsilon")}
        return f"Finished({str(self.folder)!r}, {', '.join(f'{key}={value!r}' for key, value in said.items())})"


@plain_torch()
def run(
    config: str | os.PathLike[str] | Mapping[str, object],
    settings: Mapping[str, object] = _NO_SETTINGS,
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
    """Run a federated experiment and write its run folder with the report, as `dpfed run` does.

    config:   a preset's name, a TOML file (a path, or a string that ends in .toml), or tables
    settings: keys that override `config`, as in {"federation.rounds": 20}; None removes a key
    data:     a `dpfed.data.Dataset` in place of data.name (`dpfed.data.from_arrays`, `from_clients`, `from_samples`).
              If `config` is a preset and the data set names the client of each sample, data.partition becomes
              "natural" and federation.clients the number of these clients, unless `settings` override them
    model:    an nn.Module, which is copied with its weights; or a function that returns a new one, called with no
              argument or with (input_shape, classes)
    loss:     f(outputs, targets) -> one loss per sample [n], in place of local.loss
    metrics:  {name: f(outputs, targets) -> number} on the test half, beside run.metrics (`dpfed.runs.evaluate.Metric`)
    out:      the run folder; default: runs/NAME, or the first free name after it
    resume:   True to continue the interrupted run in `out`; give the same data, model and loss again
    ledger:   a project ledger (`dpfed ledger create`) that is also charged; the run ends when its budget is spent
    pay:      the largest number of project units that the run may use, if its rounds differ from the project's unit
    progress: True draws a bar on standard error, None only on a terminal or in a notebook; or a function called with
              each line of metrics.jsonl. In a run for release this function, metrics and trackers are called in a
              separate process, made before the first round: what they append to a list of this process is not seen here
    track:    "csv", "tensorboard", "mlflow", "wandb", or a tracker of an installed package, which receive the lines of
              metrics.jsonl (`dpfed.api.track`)

    Claim: epsilon in the result is an upper bound for what ran, computed from the ledger alone. ConfigError and
    AccountingError refuse a run and leave no folder. RunError and LedgerError end a run; all finished rounds are saved.
    KeyboardInterrupt is raised at once with a note on how to continue; the round is cut off as by a crash.
    """
    replayed.require_apart(out, *(() if ledger is None else (ledger,)))
    own = CustomObjects(data=data, model=None if model is None else model_maker(model), loss=loss, metrics=metrics)
    if resume and out is None:
        raise ConfigError("resume=True without out: name the run folder to resume.")
    if own.given_names and engine != "in-process":
        raise ConfigError(
            f"engine={engine!r} with {', '.join(own.given_names)} given as objects: nodes are other processes, which "
            "require names. Register the objects in a file of your own (--load), and give their names."
        )
    begun = Path(out) if resume and out is not None else None
    with naming_missing_code(begun):
        tables, name = _named_tables(config, settings, data=data, model=model)
        tables = tables if begun is None else with_delta_of_run(begun, tables)
        checked = parse(tables, source=name)
        checked = checked if begun is None else with_solved_noise(checked, begun / "ledger.jsonl")
        experiment = build(checked, own=own)
    project = None if ledger is None else ProjectLedger.open(ledger, pay=pay)
    folder = free_folder(Path("runs"), name) if out is None else Path(out)
    checked, budget = experiment.config, None if experiment.privacy_target is None else experiment.privacy_target.budget
    viewers = viewers_of_run(
        track, folder, checked.to_dict(), say=_warn_caller, progress=progress if callable(progress) else None
    )
    with chosen_progress(progress, checked.federation.rounds, budget=budget, folder=folder) as show:
        try:
            outcome = run_and_report(
                experiment, folder, engine=engine, resume=resume, project=project, on_round=show, viewers=viewers
            )
        except KeyboardInterrupt as error:
            words = _resume_hint(folder)
            LOG.warning("%s", words)
            LOG.debug("interrupted here", exc_info=error)
            error.add_note(words)
            raise error.with_traceback(None) from None
    return Finished(folder=outcome.folder, summary=outcome.summary, metrics=outcome.metrics, experiment=experiment)


def _resume_hint(folder: Path) -> str:
    """Return a text about the files of an interrupted run and how to continue it."""
    if not (folder / "config.toml").exists():
        return f"{folder}: interrupted before the run began; nothing was written."
    return (
        f"{folder}: interrupted. Rounds up to the last line of metrics.jsonl are saved, and every release is in the "
        f"ledger. Continue with dpfed.run(..., out={str(folder)!r}, resume=True) and the same arguments."
    )


def _warn_caller(words: str) -> None:
    """Issue a warning."""
    warnings.warn(words, stacklevel=2)


def run_and_report(
    experiment: Experiment,
    folder: Path,
    *,
    engine: Engine,
    resume: bool,
    on_round: OnRound,
    project: ProjectLedger | None = None,
    stop: Callable[[], bool] = lambda: False,
    viewers: Viewers = NO_VIEWERS,
) -> Outcome:
    """Run the experiment in the engine and write the report. `stop`: called before each round; True ends the run.

    on_round: called in this process with each line of metrics.jsonl. viewers: as in `dpfed.runs.loop.run`.
    """
    if engine not in ("in-process", "flower"):
        raise ConfigError(f"engine={engine!r}: must be 'in-process' or 'flower'.")
    if engine == "flower":
        from dpfed.engines.flower.settings import require_flower

        require_flower(simulation=True)
        from dpfed.engines.flower.simulation import simulate as train
    else:
        from dpfed.runs.loop import run as train

    def log_and_forward(record: Mapping[str, object]) -> None:
        LOG.info("%s: round %s, epsilon %s", folder, record["round"], record.get("epsilon"))
        on_round(record)

    configure_log()
    if words := experiment.mask_warning:
        LOG.warning("%s", words)
    LOG.info("%s: %s, %s rounds", folder, "resumed" if resume else "begun", experiment.config.federation.rounds)
    outcome = train(
        experiment, folder, resume=resume, on_round=log_and_forward, project=project, stop=stop, viewers=viewers
    )
    LOG.info("%s: done after %s rounds, %s", folder, outcome.summary["rounds"], outcome.summary["stopped_by"])
    replay = replayed.current_replay()
    if replay is None or replay.writes_reports:
        write_report(outcome)
    return outcome


def _named_tables(
    config: str | os.PathLike[str] | Mapping[str, object],
    settings: Mapping[str, object],
    *,
    data: Dataset | None,
    model: nn.Module | Callable[..., nn.Module] | None,
) -> tuple[dict[str, object], str]:
    """Return the tables of the configuration, not yet validated, and the name of the run."""
    wanted = flat_tables(settings)
    if isinstance(config, Mapping):
        tables, name = override(dict(config), []), "run"
    elif isinstance(config, str) and not config.endswith(".toml"):
        tables, name = catalogue.preset_tables(config), config
        if data is not None and data.train_clients is not None:
            natural = {"data.partition": "natural", "federation.clients": data.natural_clients}
            wanted = natural | wanted
    else:
        tables, name = read_toml(Path(config)), Path(config).stem
    if data is not None:
        for key in ("root", "classes", "ignored"):  # keys of a data file, which `data` replaces
            tables.get("data", {}).pop(key, None)
        tables["data"] = {**tables.get("data", {}), "name": data.name}
    if model is not None:
        tables["model"] = {"name": model_name(model)}
    for key, value in wanted.items():
        form = "table.key, as in {'federation.rounds': 10}"
        set_key(tables, key, value, given=f"settings: {key!r}", form=form)
    return tables, name
