"""Milliseconds per client and step of local training by strategy, chunk and precision, with the estimate of "auto".

    python benchmarks/strategies.py [--device cuda] [--tasks "CNN 1.66M"] [--chunks 10 25 100]
                                    [--precision float32 bf16]

Networks and clients are those of `benchmarks/tasks.py` (random images), `--clients` of them per round. After two
warm-up rounds, `--rounds` rounds are timed; the table has the median wall-clock time with synchronisation. Memory is
the peak that torch allocated on a GPU; on a CPU see `population.py`. The arithmetic in Tflop/s counts six flops for
every multiply-add of the forward pass: compare it with the device's peak.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from tasks import TASKS, Task, client_data

from dpfed.clients import LocalTraining, Precision, Sgd, Strategy
from dpfed.data import Partition
from dpfed.models import build
from dpfed.seeds import Seeds

_WARM_UP = 2


def settings(chunks: list[int]) -> Iterator[tuple[Strategy, int | None]]:
    """A strategy, chunk and precision to be compared."""
    for chunk in chunks:
        yield "vmap", chunk
    yield "loop", None  # on a GPU the slowest, last


def trainer(
    task: Task, device: torch.device, clients: int, strategy: Strategy, chunk: int | None, precision: Precision
) -> LocalTraining:
    """Return the clients' data; clients beyond the task's hundred repeat the data of the first."""
    inputs, labels = (torch.from_numpy(array).flatten(0, 1).to(device) for array in client_data(task))
    model = build(task.model, task.input_shape, task.classes)
    rows = np.arange(clients * task.samples) % len(labels)
    return LocalTraining(
        model=model,
        course=Sgd(size=model.size, learning_rate=task.learning_rate),
        inputs=inputs,
        labels=labels,
        partition=Partition(indices=rows, offsets=np.arange(clients + 1) * task.samples),
        epochs=task.epochs,
        batch_size=task.batch_size,
        strategy=strategy,
        chunk=chunk,
        at_once=clients,
        precision=precision,
    )


def milliseconds(training: LocalTraining, clients: int, rounds: int) -> float:
    """Return the milliseconds per client and step."""
    device, weights = training.inputs.device, training.model.initial(0).to(training.inputs.device)
    seconds = []
    for round in range(_WARM_UP + rounds):
        began = time.perf_counter()
        training.train(weights, np.arange(clients), number=round, seeds=Seeds(root=0))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds[_WARM_UP:]) / (clients * training.period)


def row(name: str, options: argparse.Namespace, strategy: Strategy, chunk: int | None, precision: Precision) -> str:
    """Return a line of the table."""
    task, device = TASKS[name], torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    training = trainer(task, device, options.clients, strategy, chunk, precision)
    found = milliseconds(training, options.clients, options.rounds)
    cost = training.cost
    rate = 6 * (cost.products + cost.convolved) / (1e9 * found)
    memory = f"{torch.cuda.max_memory_allocated(device) / 1e6:,.0f}" if device.type == "cuda" else ""
    return f"| {name} | {precision} | {strategy} | {chunk or ''} | {found:.4f} | {rate:.3f} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--chunks", nargs="+", type=int, default=[10, 25, 50, 100])
    parser.add_argument("--precision", nargs="+", choices=["float32", "bf16", "tf32"], default=["float32"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| network | precision | strategy | chunk | ms a client and step | Tflop/s | GPU MB |")
    print("|---|---|---|--:|--:|--:|--:|")
    for name in options.tasks:
        for precision in options.precision:
            for strategy, chunk in settings(options.chunks):
                print(row(name, options, strategy, chunk, precision), flush=True)
        task = TASKS[name]
        plan = trainer(task, torch.device(options.device), options.clients, "auto", None, "float32").plan
        print(f"| {name} | | auto: {plan.strategy} | {plan.chunk or ''} | {plan.why} | | |", flush=True)


if __name__ == "__main__":
    main()
