"""Rounds of BlazeFL 2.0.3, run by its own Python: prints the seconds of each as a JSON list.

    BLAZE_PYTHON benchmarks/blaze_rounds.py serial|threads|processes TASK THREADS DEVICE

BlazeFL's FedAvg trainer runs with one of its three schedulers; updates are clipped and summed and noise is added as for
all contenders. The first round is a warm-up and is not counted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"

import torch
from blazefl.contrib import FedAvgBaseClientTrainer
from blazefl.contrib.fedavg import (
    FedAvgDownlinkPackage,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
    IPCMode,
)
from blazefl.core import serialize_model
from tasks import TASKS, Task, client_data, network
from torch.utils.data import DataLoader, TensorDataset


class Networks:
    """Model selector that returns the task's network to BlazeFL."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def select_model(self, model_name: str) -> torch.nn.Module:
        return network(self._task)


class Clients:
    """Dataset that returns the clients' samples to BlazeFL."""

    def __init__(self, task: Task, device: str) -> None:
        inputs, labels = (torch.from_numpy(array).to(device) for array in client_data(task))
        self._sets = [TensorDataset(*pair) for pair in zip(inputs, labels, strict=True)]

    def set_dataset(self, *given: Any, **named: Any) -> None:
        pass

    def get_dataset(self, type_: Any, cid: int) -> TensorDataset:
        return self._sets[cid]

    def get_dataloader(
        self, type_: Any, cid: int, batch_size: int | None = None, generator: torch.Generator | None = None
    ) -> DataLoader[Any]:
        return DataLoader(self._sets[cid], batch_size=batch_size, shuffle=True, generator=generator)


def trainer(how: str, task: Task, threads: int, device: str) -> Any:
    """Return BlazeFL's trainer with this scheduler."""
    common: dict[str, Any] = {
        "model_selector": Networks(task),
        "model_name": "network",
        "dataset": Clients(task, device),
        "device": device,
        "num_clients": task.clients,
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "lr": task.learning_rate,
        "seed": 0,
    }
    if how == "serial":
        torch.set_num_threads(threads)
        return FedAvgBaseClientTrainer(**common)
    torch.set_num_threads(1)
    if how == "threads":
        return FedAvgThreadPoolClientTrainer(**common, num_parallels=threads)
    folder = Path(tempfile.mkdtemp())
    places = {"share_dir": folder / "share", "state_dir": folder / "state", "ipc_mode": IPCMode.SHARED_MEMORY}
    return FedAvgProcessPoolClientTrainer(**common, num_parallels=threads, **places)


def rounds(how: str, task: Task, threads: int, device: str) -> list[float]:
    """Return the seconds of each round after the first."""
    training = trainer(how, task, threads, device)
    weights = serialize_model(network(task))
    seconds = []
    for _ in range(task.rounds + 1):
        start = time.perf_counter()
        total = torch.randn_like(weights) * (task.noise_multiplier * task.clip_norm)
        training.local_process(FedAvgDownlinkPackage(weights.clone()), list(range(task.clients)))
        for package in training.uplink_package():
            update = package.model_parameters - weights
            update *= (task.clip_norm / update.norm()).clamp(max=1)
            total += update
        weights = weights + total / task.clients
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    how, name, threads, device = sys.argv[1:]
    print(json.dumps(rounds(how, TASKS[name], int(threads), device)))
