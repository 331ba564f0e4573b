"""Seconds a round of local training, clipping, summing and noise: dpfed, a plain loop, and pfl 0.6.0.

    python benchmarks/local_training.py [--pfl-python VENV/bin/python] [--threads 2] [--task "MLP 2.4k"]

Prints a Markdown table of medians. The contenders take turns, so that a busy moment hits all of them.
benchmarks/README.md says how to make the environment of pfl, and shows results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from tasks import TASKS, Task, client_data, network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.data import Partition
from dpfed.local import LocalTraining, Sgd
from dpfed.models import build
from dpfed.seeds import Seeds

_TURNS = 3


def dpfed_rounds(task: Task) -> list[float]:
    """Seconds of each round of this package."""
    inputs, labels = (torch.from_numpy(array).flatten(0, 1) for array in client_data(task))
    ends = np.arange(task.clients + 1) * task.samples
    model, seeds = build(task.model, task.input_shape, task.classes), Seeds(root=0)
    trainer = LocalTraining(
        model=model,
        course=Sgd(size=model.size, learning_rate=task.learning_rate),
        inputs=inputs,
        labels=labels,
        partition=Partition(indices=np.arange(len(labels)), offsets=ends),
        epochs=task.epochs,
        batch_size=task.batch_size,
    )

    def train(weights: Tensor, round: int) -> Iterator[Tensor]:
        for group in np.arange(task.clients).reshape(-1, task.group):
            yield trainer.train(weights, group, round=round, seeds=seeds)

    return timed(task, model.initial(0), train)


def plain_rounds(task: Task) -> list[float]:
    """Seconds of each round of the loop one would write first: a module and a torch.optim.SGD a client."""
    inputs, labels = (torch.from_numpy(array) for array in client_data(task))
    module = network(task)

    def train(weights: Tensor, round: int) -> Iterator[Tensor]:
        for client in range(task.clients):
            with torch.no_grad():
                nn.utils.vector_to_parameters(weights.clone(), module.parameters())
            optimiser = torch.optim.SGD(module.parameters(), lr=task.learning_rate)
            for batch in batches(task):
                optimiser.zero_grad()
                cross_entropy(module(inputs[client, batch]), labels[client, batch]).backward()
                optimiser.step()
            yield (nn.utils.parameters_to_vector(module.parameters()).detach() - weights)[None]

    return timed(task, nn.utils.parameters_to_vector(module.parameters()).detach(), train)


def batches(task: Task) -> Iterator[Tensor]:
    """One client's batches: places in 0 .. samples-1, in a new order every epoch."""
    for _ in range(task.epochs):
        yield from torch.randperm(task.samples).split(task.batch_size)


def timed(task: Task, weights: Tensor, train: Callable[[Tensor, int], Iterator[Tensor]]) -> list[float]:
    """Seconds of each round after a warm-up: train, clip, sum, noise, step."""
    seconds = []
    for round in range(task.rounds + 1):
        start = time.perf_counter()
        total = torch.randn_like(weights) * (task.noise_multiplier * task.clip_norm)
        for updates in train(weights, round):
            updates *= (task.clip_norm / updates.norm(dim=1, keepdim=True)).clamp(max=1)
            total += updates.sum(dim=0)
        weights = weights + total / task.clients
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def pfl_rounds(name: str, python: str, threads: int) -> list[float]:
    """Seconds of each round of pfl, in a process of its own."""
    script = Path(__file__).with_name("pfl_rounds.py")
    done = subprocess.run([python, script, name, str(threads)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(second) for second in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl-python", help="Python of an environment with pfl 0.6.0; left out: pfl is not run")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of every contender")
    parser.add_argument("--task", choices=list(TASKS), action="append", help="only these; left out: all")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{given.threads} threads | dpfed | plain loop | pfl 0.6.0 | plain / dpfed | pfl / dpfed")
    print("---|--:|--:|--:|--:|--:")
    for name in given.task or TASKS:
        seconds: dict[str, list[float]] = {"dpfed": [], "plain": [], "pfl": []}
        for _ in range(_TURNS):
            seconds["dpfed"] += dpfed_rounds(TASKS[name])
            seconds["plain"] += plain_rounds(TASKS[name])
            seconds["pfl"] += pfl_rounds(name, given.pfl_python, given.threads) if given.pfl_python else [float("nan")]
        ours, plain, pfl = (statistics.median(seconds[contender]) for contender in ("dpfed", "plain", "pfl"))
        print(f"{name} | {ours:.4f} | {plain:.3f} | {pfl:.3f} | {plain / ours:.1f} | {pfl / ours:.1f}", flush=True)


if __name__ == "__main__":
    main()
