"""The server app of a run on Flower: the loop of `dpfed.runs.loop`, with clients on Flower's nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from accounting.ledger.project import ProjectLedger
from dpfed import replayed
from dpfed.aggregation.sums import SecureSums
from dpfed.config.own_code import load_files
from dpfed.config.tables import parse, read_toml
from dpfed.engines.flower.conversation import solved_text
from dpfed.engines.flower.directory import NodeDirectory
from dpfed.engines.flower.nodes import BoundedGrid, NodeSource, most_messages_in_flight, sums_of_nodes
from dpfed.engines.flower.own_data import equal_weights
from dpfed.engines.flower.settings import agreement_text, check_engine
from dpfed.errors import ConfigError
from dpfed.report.run import write_report
from dpfed.runs.experiment import Experiment, build
from dpfed.runs.loop import Outcome, Run
from dpfed.runs.metrics_endpoint import MetricsEndpoint, configure_log
from dpfed.runs.protection import limitation_on_nodes
from dpfed.runs.public_code import NO_VIEWERS, OnRound, Viewers
from dpfed.runs.resuming import with_delta_of_run, with_solved_noise

_LOG = logging.getLogger("dpfed")
TIMEOUT = 3600.0
"""Default number of seconds that a round waits for its clients."""

PATIENCE = 300.0
"""Default number of seconds to wait for all clients to join."""


def server_app(config: Path | Mapping[str, object], *, own_code: Sequence[Path] = ()) -> ServerApp:
    """Return a ServerApp for this configuration, given as its tables or as a TOML file in the app's package.

    own_code: Python files that register names in the configuration

    The app's run config has the keys `out` (run folder; a relative path begins where the SuperLink was started),
    `resume`, `timeout`, `patience`, and `metrics` (true starts a `MetricsEndpoint`).
    """
    tables = read_toml(config) if isinstance(config, Path) else dict(config)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        out = _run_folder(settings.get("out"))
        load_files(own_code)
        configure_log()
        resume = bool(settings.get("resume", False))
        given = with_delta_of_run(out, tables) if resume else tables
        checked = parse(given, source="the app's config.toml")
        experiment = build(with_solved_noise(checked, out / "ledger.jsonl") if resume else checked)
        endpoint = MetricsEndpoint(experiment.config.to_dict()) if settings.get("metrics") else None

        def on_round(record: Mapping[str, object]) -> None:
            _LOG.info("%s: round %s, epsilon %s", out, record["round"], record.get("epsilon"))
            if endpoint is not None:
                endpoint.line(record)

        try:
            outcome = serve_run(
                grid,
                experiment,
                out,
                resume=resume,
                timeout=float(settings.get("timeout", TIMEOUT)),
                patience=float(settings.get("patience", PATIENCE)),
                on_round=on_round,
            )
        finally:
            if endpoint is not None:
                endpoint.close()
        write_report(outcome)

    return app


def _run_folder(out: object) -> Path:
    """Return the run folder on the server's machine; a relative path begins where the SuperLink was started.

    Raises ConfigError for anything else, and inside an app's folder, whose files are sent to every node.
    """
    if not isinstance(out, str) or not out:
        raise ConfigError(f"out={out!r} of the run config: must be a path on the server's machine.")
    folder = Path(out).resolve()
    if (folder.parent / "dpfed_app").exists():
        raise ConfigError(
            f"out={out!r} of the run config: is in an app's folder, which is sent to every node. Start the SuperLink "
            "elsewhere, or give an absolute path."
        )
    return folder


def serve_run(
    grid: Grid,
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    timeout: float = TIMEOUT,
    patience: float = PATIENCE,
    more_may_join: bool = True,
    on_round: OnRound = lambda record: None,
    project: ProjectLedger | None = None,
    stop: Callable[[], bool] = lambda: False,
    viewers: Viewers = NO_VIEWERS,
) -> Outcome:
    """Run all rounds with Flower's nodes, and write a run folder like that of `dpfed run`.

    stop: called before every round; if it returns True the run ends, and can be resumed
    more_may_join: True if nodes can still start while the server waits for all clients

    Raises ConfigError, RunError or LedgerError.
    """
    config = experiment.config
    check_engine(config)
    experiment = equal_weights(experiment)
    if isinstance(experiment.method.aggregation, SecureSums):
        experiment = replace(
            experiment, not_protected=tuple(limitation_on_nodes(note) for note in experiment.not_protected)
        )
    if resume and (config.method.error_feedback or config.local.personal):
        raise ConfigError(
            "--resume with method.error_feedback or local.personal on Flower: nodes do not store compression errors or "
            "layers between runs. Start a new run."
        )
    print_ = agreement_text(config)
    directory = NodeDirectory(grid, clients=config.federation.clients, fingerprint=print_, patience=patience)
    directory.wait_for_nodes(more_may_join=more_may_join)
    experiment = replace(experiment, method=replace(experiment.method, aggregation=sums_of_nodes(experiment.method)))
    run = Run.open(
        experiment,
        out,
        resume=resume,
        on_round=on_round,
        project=project,
        viewers=viewers,
        trains_here=replayed.current_replay() is not None,
    )
    try:
        grid = cast(Grid, BoundedGrid(grid, at_once=most_messages_in_flight(len(run.state.broadcast))))
        name, repeated = run.identity_for_nodes()
        agreed = {"fingerprint": print_, "solved": solved_text(experiment.privacy_target)}
        source = NodeSource(directory=directory, grid=grid, agreed=agreed, timeout=timeout, run=name, repeated=repeated)
        return run.run_all_rounds(source, stop)
    finally:
        run.unlock()
