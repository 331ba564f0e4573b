"""Seconds per round of local training, clipping, summing and noise in dpfed, a plain loop, BlazeFL, pfl and Flower.

    python benchmarks/local_training.py [--pfl-python VENV/bin/python] [--flower-python VENV/bin/python]
                                        [--blaze-python VENV/bin/python] [--threads 2]
                                        [--task "MLP 2.4k"] [--device cuda] [--force] [--operations]

Prints a Markdown table of medians, quartiles and peak memory. Every contender runs in separate processes, in turn, so
that other work affects all of them; Flower, whose start is slowest, has one turn. Stops without a report if other
processes keep the cores busy. benchmarks/README.md describes the environments and has results. --operations prints, for
dpfed on one core, the time, speed and share of the processor's peak of the convolutions and dense layers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from processes import megabytes
from quiet import other_work_now, refuse
from tasks import TASKS, Task, client_data, network
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from dpfed.clients import LocalTraining, Sgd
from dpfed.data import Partition
from dpfed.models import build
from dpfed.seeds import Seeds

_TURNS = 3


def dpfed_rounds(task: Task, device: str) -> list[float]:
    """Return the seconds of each round of dpfed."""
    inputs, labels = (torch.from_numpy(array).flatten(0, 1).to(device) for array in client_data(task))
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

    def train(weights: Tensor, number: int) -> Iterator[Tensor]:
        for group in np.arange(task.clients).reshape(-1, task.group):
            yield trainer.train(weights, group, number=number, seeds=seeds)

    return timed(task, model.initial(0).to(device), train)


_OPERATIONS = {
    "convolution, forward": ("convolution", "conv2d"),
    "convolution, backward": ("convolution_backward",),
    "dense layers": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "_linear_pointwise"),
}


def operations(task: Task) -> Iterator[str]:
    """Yield Markdown rows of the operations of a dpfed round on one core: time, speed, share of the peak.

    The peak is the best of twenty products of matrices of 1,024 x 1,024 float32 numbers by each of MKL and oneDNN.
    Operations are counted in a step of the plain network by torch's flop counter. Times are those of torch's profiler,
    over all threads.
    """
    torch.set_num_threads(1)
    square = torch.randn(1024, 1024)
    linear = torch.ops.mkldnn._linear_pointwise
    products = (lambda: square @ square, lambda: linear(square, square, None, "none", [], ""))
    peak = 2 * 1024**3 / min(_seconds(product) for product in products for _ in range(20))
    inputs, labels = (torch.from_numpy(array) for array in client_data(task))
    steps = task.clients * task.epochs * -(-task.samples // task.batch_size)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(network(task)(inputs[0, : task.batch_size]), labels[0, : task.batch_size]).backward()
    counted = {str(operation): count * steps for operation, count in counter.get_flop_counts()["Global"].items()}
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as seen:
        dpfed_rounds(replace(task, rounds=_TURNS - 1), "cpu")
    spent = {one.key: one.self_cpu_time_total / 1e6 / _TURNS for one in seen.key_averages()}
    yield f"| all | {sum(spent.values()):.3f} | 100% | | |"
    for name, kernels in _OPERATIONS.items():
        seconds = sum(time for key, time in spent.items() if _kernel_of(key) in kernels)
        flops = sum(count for key, count in counted.items() if _kernel_of(key) in kernels)
        if seconds:
            speed = f"{flops / seconds / 1e9:.0f} | {flops / seconds / peak:.0%}"
            yield f"| {name} | {seconds:.3f} | {seconds / sum(spent.values()):.0%} | {speed} |"
    yield f"| peak: a product of matrices | | | {peak / 1e9:.0f} | 100% |"


def _kernel_of(key: str) -> str:
    """Return the name of an operation without its namespace, its library and its overload."""
    return key.split("::")[-1].removeprefix("aten.").removeprefix("mkldnn_").split(".")[0]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_rounds(task: Task, device: str) -> list[float]:
    """Return the seconds of each round of a naive loop: a module and a torch.optim.SGD per client."""
    inputs, labels = (torch.from_numpy(array).to(device) for array in client_data(task))
    module = network(task).to(device)

    def train(weights: Tensor, number: int) -> Iterator[Tensor]:
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
    """Yield one client's batches: indices in 0 .. samples-1, in a new order every epoch."""
    for _ in range(task.epochs):
        yield from torch.randperm(task.samples).split(task.batch_size)


def timed(task: Task, weights: Tensor, train: Callable[[Tensor, int], Iterator[Tensor]]) -> list[float]:
    """Return the seconds of each round after a warm-up: train, clip, sum, noise, step."""
    seconds = []
    for round in range(task.rounds + 1):
        start = time.perf_counter()
        total = torch.randn_like(weights) * (task.noise_multiplier * task.clip_norm)
        for updates in train(weights, round):
            updates *= (task.clip_norm / updates.norm(dim=1, keepdim=True)).clamp(max=1)
            total += updates.sum(dim=0)
        weights = weights + total / task.clients
        if weights.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


@dataclass
class Contender:
    """Contender of the benchmark. command: a program that prints the seconds of its rounds as a JSON list on its last
    line; task, threads and device are appended to its arguments."""

    name: str
    command: list[str]
    turns: int = _TURNS
    seconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0

    def run(self, task: str, threads: int, device: str) -> None:
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
            environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
            process = subprocess.Popen(
                [*self.command, task, str(threads), device], stdout=said, stderr=complaints, env=environment
            )
            while process.poll() is None:
                self.megabytes = max(self.megabytes, megabytes(process.pid))
                time.sleep(0.25)
            for file in (said, complaints):
                file.seek(0)
            if process.returncode:
                sys.exit(f"{self.name} on {task} failed:\n{complaints.read()[-2000:]}")
            self.seconds += json.loads(said.read().splitlines()[-1])


def contenders(pfl_python: str | None, flower_python: str | None, blaze_python: str | None) -> list[Contender]:
    """Return the contenders, dpfed first."""
    own, here = [sys.executable, __file__, "--rounds-of"], Path(__file__).parent
    found = [Contender("dpfed", [*own, "dpfed"]), Contender("plain loop", [*own, "plain"])]
    if blaze_python:
        command = [blaze_python, str(here / "blaze_rounds.py")]
        found += [Contender(f"BlazeFL 2.0.3, {how}", [*command, how]) for how in ("serial", "threads", "processes")]
    if pfl_python:
        found.append(Contender("pfl 0.6.0", [pfl_python, str(here / "pfl_rounds.py")]))
    if flower_python:
        found.append(Contender("Flower simulation", [flower_python, str(here / "flower_rounds.py")], turns=1))
    return found


def table(task: str, ran: list[Contender]) -> Iterator[str]:
    """Return the lines of the Markdown table."""
    ours = statistics.median(ran[0].seconds)
    for one in ran:
        middle = statistics.median(one.seconds)
        low, _, high = statistics.quantiles(one.seconds, n=4, method="inclusive")
        times = f"{middle:.4f} | {low:.4f} to {high:.4f} | {one.megabytes:.0f} | {middle / ours:.2f}"
        yield f"| {task} | {one.name} | {times} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl-python", help="Python of an environment with pfl 0.6.0; left out: pfl is not run")
    parser.add_argument("--flower-python", help="Python of an environment with flwr and ray; left out: not run")
    parser.add_argument("--blaze-python", help="Python 3.12 or later with BlazeFL 2.0.3; left out: not run")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender")
    parser.add_argument("--device", default="cpu", help="of every contender but Flower")
    parser.add_argument("--task", choices=list(TASKS), action="append", help="only these; left out: all")
    parser.add_argument("--force", action="store_true", help="report although others are working")
    parser.add_argument("--operations", action="store_true", help="print the speed of each operation of dpfed instead")
    given = parser.parse_args()
    if given.operations:
        print("| | seconds a round | of the round | GFLOP/s | of peak |\n|---|--:|--:|--:|--:|")
        for task in given.task or TASKS:
            print(f"| **{task}** | | | | |", *operations(TASKS[task]), sep="\n")
        return
    busy, lines = other_work_now(), []
    refuse(busy, force=given.force)
    for task in given.task or TASKS:
        ran = contenders(given.pfl_python, given.flower_python, given.blaze_python)
        for turn in range(_TURNS):
            for one in ran:
                if turn < one.turns:
                    busy = max(busy, other_work_now())
                    one.run(task, given.threads, given.device)
        lines += list(table(task, ran))
        print("\n".join(lines[-len(ran) :]), file=sys.stderr, flush=True)
    refuse(busy, force=given.force)
    print(f"| {given.threads} threads | by | median s | quartiles | peak MB | times ours |\n|---|---|--:|--:|--:|--:|")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rounds-of"]:
        _, _, whose, name, threads, device = sys.argv
        torch.set_num_threads(int(threads))
        print(json.dumps({"dpfed": dpfed_rounds, "plain": plain_rounds}[whose](TASKS[name], device)))
    else:
        main()
