"""Data and networks of the benchmarks, equal for every contender. Needs numpy and torch only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Task:
    """Task of 100 clients with `samples` samples each, 5 epochs of batches of 10, clip norm 1, noise multiplier 1.

    group:         clients whose updates dpfed holds in memory at a time, as in its rounds
    flower_rounds: number of rounds of Flower's simulation, which is the slowest contender
    """

    model: str
    input_shape: tuple[int, ...]
    samples: int
    rounds: int
    group: int
    flower_rounds: int = 2
    clients: int = 100
    classes: int = 10
    epochs: int = 5
    batch_size: int = 10
    learning_rate: float = 0.05
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0


TASKS = {
    "MLP 2.4k": Task(model="mlp", input_shape=(1, 8, 8), samples=20, rounds=20, group=100),
    "CNN 0.58M": Task(model="fed-smp-cnn-unpadded", input_shape=(1, 28, 28), samples=10, rounds=4, group=20),
    "CNN 1.66M": Task(model="fed-smp-cnn", input_shape=(1, 28, 28), samples=10, rounds=3, group=20),
}


def client_data(task: Task) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return random inputs [clients, samples, ...] and labels [clients, samples]; the time does not depend on them."""
    generator = np.random.default_rng(0)
    shape = (task.clients, task.samples)
    inputs = generator.standard_normal((*shape, *task.input_shape), dtype=np.float32)
    return inputs, generator.integers(task.classes, size=shape)


def network(task: Task) -> nn.Module:
    """Return the task's network in plain torch."""
    if task.model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    padding, features = (2, 3136) if task.model == "fed-smp-cnn" else (0, 1024)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
