"""Progress of a run, as a bar on standard error, and trackers of its lines: CSV, TensorBoard, MLflow, Weights & Biases.

Installed packages add trackers by the entry point group `dpfed.trackers`: a function of the run folder and the
configuration that returns a `Tracker`.

A tracker receives only lines that may be published with the model, never the content of diagnostics.jsonl. A tracker
that raises is disabled with a warning; the run continues.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from accounting import require
from accounting.rounding import downwards, upwards
from dpfed.config.own_code import errors_of_user_code
from dpfed.config.tables import flat_tables
from dpfed.errors import ConfigError
from dpfed.records.reading import Unavailable, json_object, read_lines, validated_record
from dpfed.records.round import MetricsLine, RoundRecord
from dpfed.runs.durable_files import append, put
from dpfed.runs.metrics_endpoint import MetricsEndpoint
from dpfed.runs.public_code import OnRound, Viewers

_COLUMNS = (
    TextColumn("round"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[said]}"),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)
_NOTABLE_RATIO = 10.0
_TAIL_BYTES = 1 << 16
_SHOWN_KEYS = ("test_accuracy", "test_loss", "epsilon")


def is_interactive(console: Console) -> bool:
    """Return True on a terminal or in a notebook, where a progress bar can be redrawn."""
    return console.is_terminal or console.is_jupyter


@contextmanager
def progress_display(
    rounds: int,
    console: Console,
    *,
    otherwise: Callable[[str], None],
    budget: float | None = None,
    folder: Path | None = None,
) -> Iterator[OnRound]:
    """Yield a function that shows progress; call it with each line of metrics.jsonl.

    Without a terminal or a notebook, a line of text is passed to `otherwise` after every tenth of the rounds.
    `budget`: the epsilon that may be spent. `folder`: the run folder; if the clip norm is far from the norm of updates,
    the operator's terminal shows one hint."""
    watched, said = is_interactive(console), dict[str, float]()
    tenths, hinted = 0, False
    with Progress(*_COLUMNS, console=console, disable=not watched) as progress:
        task = progress.add_task("", total=rounds, said="")

        def on_round(record: Mapping[str, Any]) -> None:
            nonlocal tenths, hinted
            said.update({k: v for k, v in record.items() if k in _SHOWN_KEYS and v is not None})
            words = _progress_line(said, budget)
            progress.update(task, completed=record["round"], said=words)
            before, tenths = tenths, math.floor(10 * record["round"] / rounds)
            if not watched and tenths > before:
                otherwise(f"round {record['round']}/{rounds}  {words}")
            if watched and not hinted and folder is not None and (hint := clipping_hint(folder)) is not None:
                hinted = True
                console.print(f"operator: {hint}")

        yield on_round


@contextmanager
def chosen_progress(
    wish: bool | OnRound | None, rounds: int, *, budget: float | None = None, folder: Path | None = None
) -> Iterator[OnRound]:
    """Yield the function called with each line of metrics.jsonl, by the argument `progress` of `dpfed.run`.

    True draws a bar on standard error, False draws none. None draws a bar on a terminal or in a notebook only. A
    function draws none: it is a viewer of the run (`dpfed.api.track.viewers_of_run`).
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if wish is False or callable(wish) or (wish is None and not is_interactive(console)):
        yield lambda record: None
        return
    with progress_display(rounds, console, otherwise=console.print, budget=budget, folder=folder) as on_round:
        yield on_round


def _progress_line(said: Mapping[str, float], budget: float | None) -> str:
    words = []
    if "test_accuracy" in said:
        words.append(f"accuracy {said['test_accuracy']:.1%}")
    elif "test_loss" in said:
        words.append(f"test loss {said['test_loss']:.4g}")
    if "epsilon" in said:
        allowed = "" if budget is None else f" of {downwards(budget)}"
        words.append(f"epsilon so far {upwards(said['epsilon'])}{allowed}")
    return "  ".join(words)


def clipping_hint(folder: Path) -> str | None:
    """Return a hint if the median update norm of the last round is at least 10 clip norms or at most 0.1, else None.

    The hint is computed from diagnostics.jsonl, which no epsilon covers: print it on a terminal, never log or track it.
    """
    last = _last_record(folder / "diagnostics.jsonl")
    if last is None or last.typical_norm is None or not last.counted:
        return None
    typical, share = last.typical_norm, f"{last.clipped or 0} of {last.counted} updates are clipped"
    if typical >= _NOTABLE_RATIO:
        return f"{share}; a typical one is {typical:.3g} clip norms long (`dpfed diagnose {folder}`)"
    if typical <= 1 / _NOTABLE_RATIO:
        return f"{share}; a typical one is {typical:.2g} of the clip norm (`dpfed diagnose {folder}`)"
    return None


def _last_record(file: Path) -> RoundRecord | None:
    """Return the record in the last line, or None if it cannot be read: a missing hint must not stop the run."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            last = stream.read().rstrip(b"\n").rpartition(b"\n")[2].decode()
        return validated_record(RoundRecord, json_object(last, file.name), file.name)
    except (OSError, ValueError, Unavailable):
        return None


ENTRY_POINT_GROUP = "dpfed.trackers"
_TRACKER_MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Modules of trackers by the name of their package."""
_LOG = logging.getLogger("dpfed")


class Tracker(Protocol):
    """Destination of the lines of metrics.jsonl."""

    def line(self, record: Mapping[str, object]) -> None:
        """Record one line of metrics.jsonl, which is already on disk."""

    def close(self) -> None:
        """Release resources; no line is recorded afterwards."""


@contextmanager
def open_trackers(
    kinds: Sequence[str],
    folder: Path,
    config: Mapping[str, object],
    *,
    say: Callable[[str], None],
    after: OnRound | None = None,
) -> Iterator[OnRound]:
    """Yield a function of one line of metrics.jsonl that calls `after` and then every tracker.

    Raises ConfigError for an unknown kind or a package that is not installed. `say` receives a text if a tracker fails.
    """
    trackers: dict[str, Tracker] = {kind: _make_tracker(kind, folder, config) for kind in kinds}

    def apply_to_trackers(use: Callable[[Tracker], None]) -> None:
        for kind, tracker in list(trackers.items()):
            try:
                use(tracker)
            except Exception as error:  # the package or server of a tracker may raise anything
                trackers.pop(kind)
                _LOG.info("tracker %s fails: %s: %s", kind, type(error).__name__, error)
                say(f"--track {kind}: fails ({type(error).__name__}: {error}). The run continues without it.")

    def on_round(record: Mapping[str, object]) -> None:
        if after is not None:
            after(record)
        apply_to_trackers(lambda tracker: tracker.line(record))

    try:
        yield on_round
    finally:
        apply_to_trackers(lambda tracker: tracker.close())


def viewers_of_run(
    kinds: Sequence[str],
    folder: Path,
    config: Mapping[str, object],
    *,
    say: Callable[[str], None],
    progress: OnRound | None = None,
) -> Viewers:
    """Return the trackers of these kinds, preceded by the caller's function `progress`, as viewers of a run."""
    return Viewers(start=lambda to: open_trackers(kinds, folder, config, say=to, after=progress), say=say)


def numeric_metrics(record: Mapping[str, object]) -> dict[str, float]:
    """Return the numeric values of a line of metrics.jsonl, without the round."""
    return {key: float(value) for key, value in record.items() if key != "round" and require.is_number(value)}


def _make_tracker(kind: str, folder: Path, config: Mapping[str, object]) -> Tracker:
    if kind == "csv":
        return CsvTracker(folder)
    if kind == "prometheus":
        return MetricsEndpoint(config)
    if kind not in _TRACKER_MODULES:
        return _package_tracker(kind, folder, config)
    try:
        found = import_module(_TRACKER_MODULES[kind])
    except ImportError as error:
        raise ConfigError(f"--track {kind}: {kind} is not installed ({error}): pip install 'dpfed[{kind}]'.") from None
    if kind == "tensorboard":
        return TensorBoardTracker(found, folder)
    if kind == "wandb":
        return WandbTracker(found, folder, config)
    if not found.is_tracking_uri_set():  # its default is a database that mlflow-skinny cannot open
        raise ConfigError("--track mlflow: no server is named. Set MLFLOW_TRACKING_URI, as in http://127.0.0.1:5000.")
    return MlflowTracker(found, folder, config)


def _package_tracker(kind: str, folder: Path, config: Mapping[str, object]) -> Tracker:
    """Return the tracker that an installed package registers under this name. ConfigError if there is none."""
    found = {one.name: one for one in entry_points(group=ENTRY_POINT_GROUP)}
    if kind not in found:
        known = ", ".join(["csv", *_TRACKER_MODULES, "prometheus", *sorted(found)])
        raise ConfigError(
            f"--track {kind}: must be one of {known}; packages add theirs by entry points {ENTRY_POINT_GROUP!r}."
        )
    with errors_of_user_code(f"--track {kind}: its package fails"):
        made: Tracker = found[kind].load()(folder, config)
    lacking = [name for name in ("line", "close") if not callable(getattr(made, name, None))]
    if lacking:
        raise ConfigError(f"--track {kind}: {type(made).__name__} has no {' or '.join(lacking)}(). Define it.")
    return made


class CsvTracker:
    """Tracker that writes metrics.csv in the run folder.

    A line with a key that no earlier line had writes all lines again; so does the first one of a resumed run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._columns = folder, list[str]()

    def line(self, record: Mapping[str, object]) -> None:
        if record.keys() <= set(self._columns):
            append(self._folder / "metrics.csv", self._csv_bytes([record]))
            return
        lines = [line.to_dict() for line in read_lines(self._folder / "metrics.jsonl", MetricsLine)]
        self._columns = list(dict.fromkeys([*(key for line in lines for key in line), "aborted"]))
        heading = {key: key for key in self._columns}
        put(self._folder / "metrics.csv", self._csv_bytes([heading, *lines]))

    def close(self) -> None:
        """Do nothing: no file is open between calls."""

    def _csv_bytes(self, lines: Sequence[Mapping[str, object]]) -> bytes:
        stream = io.StringIO(newline="")
        csv.writer(stream).writerows(
            [["" if (v := line.get(k)) is None else v for k in self._columns] for line in lines]
        )
        return stream.getvalue().encode()


class TensorBoardTracker:
    """Tracker that writes event files to the subfolder `tensorboard` of the run folder, made after the first round."""

    def __init__(self, module: ModuleType, folder: Path) -> None:
        self._module, self._folder = module, folder / "tensorboard"
        self._writer: Any = None

    def line(self, record: Mapping[str, object]) -> None:
        if self._writer is None:
            self._writer = self._module.SummaryWriter(log_dir=str(self._folder))
        for key, value in numeric_metrics(record).items():
            self._writer.add_scalar(key, value, record["round"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MlflowTracker:
    """Tracker that logs to the MLflow server named by the environment; configuration keys become MLflow parameters."""

    def __init__(self, module: ModuleType, folder: Path, config: Mapping[str, object]) -> None:
        self._mlflow, self._name, self._config, self._begun = module, folder.name, config, False

    def line(self, record: Mapping[str, object]) -> None:
        if not self._begun:
            self._mlflow.start_run(run_name=self._name)
            self._begun = True
            self._mlflow.log_params({key: str(value) for key, value in flat_tables(self._config).items()})
        self._mlflow.log_metrics(numeric_metrics(record), step=record["round"])

    def close(self) -> None:
        if self._begun:
            self._mlflow.end_run()


class WandbTracker:
    """Tracker that logs to Weights & Biases, as WANDB_PROJECT and WANDB_MODE say; its files are in the run folder."""

    def __init__(self, module: ModuleType, folder: Path, config: Mapping[str, object]) -> None:
        self._wandb, self._folder, self._config = module, folder, config
        self._run: Any = None

    def line(self, record: Mapping[str, object]) -> None:
        if self._run is None:
            self._run = self._wandb.init(name=self._folder.name, dir=str(self._folder), config=dict(self._config))
        self._run.log(numeric_metrics(record), step=record["round"])

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
