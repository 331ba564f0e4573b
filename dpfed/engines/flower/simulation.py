"""Flower's simulation engine for `dpfed run --engine flower`, whose nodes are Ray's processes."""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ray
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from accounting.ledger.project import ProjectLedger
from dpfed import replayed
from dpfed.config.own_code import named_files
from dpfed.data.samples import require_samples_here
from dpfed.engines.flower.client_app import client_app
from dpfed.engines.flower.server_app import TIMEOUT, serve_run
from dpfed.engines.flower.settings import require_code_of_files
from dpfed.errors import ConfigError
from dpfed.runs.experiment import Experiment
from dpfed.runs.loop import Outcome
from dpfed.runs.public_code import NO_VIEWERS, OnRound, Viewers

_CLUSTER = "ray_bootstrap_config.yaml"


def simulate(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    on_round: OnRound = lambda record: None,
    project: ProjectLedger | None = None,
    stop: Callable[[], bool] = lambda: False,
    viewers: Viewers = NO_VIEWERS,
) -> Outcome:
    """Run the experiment on simulated nodes, one node per client; n nodes run at a time on n processors.

    The run folder is like that of a run in one process. The server is a thread of this process, so that its errors are
    raised here unchanged.
    """
    if experiment.method.ranks.count > 1:
        raise ConfigError("--engine flower under torchrun: Flower starts its own processes. Start without torchrun.")
    require_samples_here(experiment.config)
    require_code_of_files(experiment.config)
    outcomes: list[Outcome] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        outcomes.append(
            serve_run(
                grid,
                experiment,
                out,
                resume=resume,
                patience=TIMEOUT,  # ten thousand connected nodes need minutes to report their clients
                more_may_join=False,
                on_round=on_round,
                project=project,
                stop=stop,
                viewers=viewers,
            )
        )

    own_code = [Path(one.path) for one in named_files()]
    clients = client_app(experiment.config.to_dict(), own_code=own_code)
    run_apps(app, clients, nodes=experiment.config.federation.clients, on_gpus=experiment.device.type == "cuda")
    (outcome,) = outcomes
    return outcome


def run_apps(server: ServerApp, clients: ClientApp, *, nodes: int, on_gpus: bool) -> None:
    """Run the server app in a thread of this process, and clients in Ray's processes.

    on_gpus: True if each client's process uses a part of a GPU

    `run_simulation` is used although Flower 1.41 recommends `flwr run`. That command starts a SuperLink and a
    SuperExec, leaves both running, and exits with status 0 when a run has failed. It passes on only the server's log:
    no error, no metrics, no lock on a ledger. For an app that `flwr run` can start, use `dpfed deploy`.
    """
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addFilter(_drop_command_advice)
    try:
        # In a replay audit, nodes run in this process (`dpfed.audit.replays.flower_rounds`).
        with _flower_home(), start_quiet_ray() if replayed.current_replay() is None else nullcontext():
            share = gpu_share(ray.cluster_resources()) if on_gpus else 0.0
            run_simulation(
                server_app=server,
                client_app=clients,
                num_supernodes=nodes,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": share}},
            )
    finally:
        logger.removeFilter(_drop_command_advice)
        logger.setLevel(level)


@contextmanager
def _flower_home() -> Iterator[None]:
    """Context manager with a temporary folder for Flower's files, unless FLWR_HOME names a folder."""
    with tempfile.TemporaryDirectory(prefix="dpfed-flower-") as folder:
        given = os.environ.setdefault("FLWR_HOME", folder)
        try:
            yield
        finally:
            if given == folder:
                del os.environ["FLWR_HOME"]


def gpu_share(resources: Mapping[str, float]) -> float:
    """Return the fraction of a GPU that each node reserves from Ray, such that all processors and GPUs are used.

    The fraction is a multiple of 1e-4, Ray's unit.
    """
    share = resources.get("GPU", 0.0) / resources.get("CPU", 1.0)
    return min(1.0, math.floor(1e4 * share) / 1e4)


def _drop_command_advice(record: logging.LogRecord) -> bool:
    """Return False for Flower's log line that advises `flwr run`, for which `dpfed deploy` writes an app."""
    return "run_simulation" not in record.getMessage()


@contextmanager
def start_quiet_ray() -> Iterator[None]:
    """Start Ray with quiet settings; Flower then uses this running instance.

    Ray 2.55 queries the metadata services of three clouds, with or without usage reports, unless the home folder of its
    servers has a cluster configuration. Its servers therefore get a home folder with an empty configuration; workers
    keep the user's home folder.
    """
    of_workers = {"PYTHONPATH": os.pathsep.join(sys.path)}
    if "HOME" in os.environ:
        of_workers["HOME"] = os.environ["HOME"]
    with tempfile.TemporaryDirectory(prefix="dpfed-ray-") as folder:
        (Path(folder) / _CLUSTER).write_text("{}\n")
        with _home_folder(folder):
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": of_workers},
            )
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _home_folder(folder: str) -> Iterator[None]:
    before = os.environ.get("HOME")
    os.environ["HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before
