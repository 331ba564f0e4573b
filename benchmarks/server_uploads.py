"""Table of bytes down and up, and of the server's time to read, check and add one upload, for every method.

    python benchmarks/server_uploads.py [--model "CNN 0.58M"] [--uploads 20] [--methods dp-fedavg drive]
    python benchmarks/server_uploads.py --edges 1 10 100 1000 [--clients 100000] [--gigabits 10] --methods dp-fedavg

As the server of the Flower engine does, the script parses untrusted bytes, clips if the server clips, and adds the row
to the sum; Flower's messages are not included. One thread, processor milliseconds, the smallest of five repetitions.
The last columns are computed from these: the bytes of 100,000 clients per round, and the time of one core for them.

With --edges a round is simulated with these constants: every edge reads, clips and adds its share of the uploads, on
one core with a line of --gigabits, and sends one partial sum (float64) to the root, which adds them with an equal line;
noise is added once, at the root. 1 edge means a root alone. The root's time for a partial sum is measured as well.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import overhead
import torch

from dpfed.aggregation.ranks import Task
from dpfed.aggregation.sums import PlainSums
from dpfed.config.tables import parse
from dpfed.round import open_round
from dpfed.runs.experiment import build
from dpfed.stages.chain import client_halves

GOES = 5
MANY = 100_000


def cost(model: str, name: str, uploads: int) -> tuple[int, float, float]:
    """Return the size of the model, bytes up, and milliseconds."""
    options = argparse.Namespace(cohort=uploads, rounds=1, device="cpu", work="few", extrapolate=False)
    tables: dict[str, Any] = overhead.tables(name, model, options)
    experiment = build(parse(tables, source="benchmark"))
    method, state = experiment.method, experiment.start
    ids = np.arange(uploads, dtype=np.int64)
    assert isinstance(method.aggregation, PlainSums)

    task = Task(state=state, cohort=ids, participants=ids)

    def opened() -> Any:
        return open_round(method.announce(task, experiment.seeds), method)

    stages, now = method.stages, opened().now
    sizes, messages = [], []
    for client in ids:
        rows = torch.randn(1, len(now.broadcast)) * 1e-3
        some = client_halves(stages.before_wire, rows, ids[client : client + 1], now)
        (payload,) = stages.wire.messages(some, ids[client : client + 1], now)
        messages.append(payload)
        sizes.append(len(payload))
    best = float("inf")
    for _ in range(GOES):
        one = opened()
        began = time.process_time()
        for client in ids:
            only = ids[client : client + 1]
            rows = stages.wire.read([messages[client]], only, one.now)
            one.arrived(client_halves(stages.after_wire, rows, only, one.now), only)
        best = min(best, time.process_time() - began)
    return len(state.broadcast), float(np.mean(sizes)), 1000 * best / uploads


def partial_sum(numbers: int) -> float:
    """Return the processor milliseconds to read and add one partial sum of this size."""
    total, message = torch.zeros(numbers, dtype=torch.float64), np.random.default_rng(0).normal(size=numbers).tobytes()
    best = float("inf")
    for _ in range(GOES):
        began = time.process_time()
        for _ in range(20):
            total += torch.from_numpy(np.frombuffer(message, dtype=np.float64).copy())
        best = min(best, time.process_time() - began)
    return 1000 * best / 20


def through_edges(name: str, constants: tuple[int, float, float], chosen: argparse.Namespace) -> None:
    """Return a line for each number of edges."""
    numbers, size, each = constants
    rate, of_root = chosen.gigabits * 1e9 / 8, partial_sum(numbers)
    for edges in chosen.edges:
        share = -(-chosen.clients // edges)
        on_core, on_line = share * each / 1000, share * size / rate
        partial = 0.0 if edges == 1 else edges * max(of_root / 1000, 8 * numbers / rate)
        print(
            f"| {name} | {edges:,} | {share:,} | {on_core:,.1f} | {on_line:,.1f} | {partial:,.2f} "
            f"| {max(on_core, on_line) + partial:,.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=overhead.MODELS, default="CNN 0.58M")
    parser.add_argument("--methods", nargs="+", default=list(overhead.SETTINGS))
    parser.add_argument("--uploads", type=int, default=20)
    parser.add_argument("--edges", type=int, nargs="+")
    parser.add_argument("--clients", type=int, default=MANY)
    parser.add_argument("--gigabits", type=float, default=10.0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    overhead.register(10)
    if chosen.edges:
        print("| method | edges | clients an edge | its core, s | its line, s | root, s | a round, s |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for name in chosen.methods:
            through_edges(name, cost(chosen.model, name, chosen.uploads), chosen)
        return
    print("| method | kB down | kB up | server, ms | 100,000 clients: GB in | one core, s |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in chosen.methods:
        numbers, size, each = cost(chosen.model, name, chosen.uploads)
        print(
            f"| {name} | {4 * numbers / 1000:,.0f} | {size / 1000:,.1f} | {each:.2f} | {MANY * size / 1e9:,.1f} "
            f"| {MANY * each / 1000:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
