"""Rounds of Flower's simulation, run by its own Python: prints the seconds of each as a JSON list.

    FLOWER_PYTHON benchmarks/flower_rounds.py TASK CORES

FedAvg with the server-side clipping and Gaussian noise of flwr, evaluation off, one node per client on CORES Ray actors
of one thread each; the first round is a warm-up and is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

# Ray's actors import the client's module, and find the task by its name.
os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    RAY_USAGE_STATS_ENABLED="0",
    OMP_NUM_THREADS="1",
    PYTHONPATH=str(Path(__file__).parent),
    BENCHMARK_TASK=sys.argv[1],
)

from flower_client import TASK, client
from flwr.client import ClientApp
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from tasks import network

CORES = int(sys.argv[2])


class Clock(FedAvg):
    """Strategy that records the time at which each round is configured."""

    ticks: ClassVar[list[float]] = []

    def configure_fit(self, *given: Any, **named: Any) -> Any:
        self.ticks.append(time.perf_counter())
        return super().configure_fit(*given, **named)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        if failures:
            raise SystemExit(f"{len(failures)} clients failed: {failures[0]}")
        return super().aggregate_fit(server_round, results, failures)


def server(context: Context) -> ServerAppComponents:
    start = ndarrays_to_parameters([p.detach().numpy() for p in network(TASK).parameters()])
    everybody = {"fraction_fit": 1.0, "min_fit_clients": TASK.clients, "min_available_clients": TASK.clients}
    averaging = Clock(**everybody, fraction_evaluate=0.0, initial_parameters=start)
    private = DifferentialPrivacyServerSideFixedClipping(
        averaging, TASK.noise_multiplier, TASK.clip_norm, num_sampled_clients=TASK.clients
    )
    return ServerAppComponents(strategy=private, config=ServerConfig(num_rounds=TASK.flower_rounds + 2))


if __name__ == "__main__":
    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=TASK.clients,
        backend_config={
            "init_args": {"num_cpus": CORES, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )
    # The last round only marks the end of the round before it.
    print(json.dumps([end - start for start, end in zip(Clock.ticks[1:-1], Clock.ticks[2:], strict=True)]))
