"""Seconds of a round's evaluation and progress line, in the training process and in a process of its own.

    python benchmarks/public_code.py [--samples 10000] [--rounds 20]

A run for release evaluates in its own process (`dpfed.runs.public_code`). Rows: network, weights, seconds in the
training process, seconds in its own, and seconds of its start. Smallest of three repetitions; threads of torch: one.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import torch

from dpfed.models import build
from dpfed.runs.evaluate import Objective
from dpfed.runs.public_code import Viewers, start_public_code
from dpfed.runs.scores import Evaluation

NETWORKS = {"mlp": (784,), "fed-smp-cnn": (1, 28, 28), "cnn-4-bn": (3, 32, 32)}


def seconds(evaluation: Evaluation, *, apart: bool, rounds: int) -> tuple[float, float]:
    """Return the seconds of the start and of a round: all scores of the model, and one line for a progress function."""
    viewers = Viewers(start=lambda say: nullcontext(lambda line: None), say=print)
    begun = time.perf_counter()
    code = start_public_code(evaluation, viewers, apart=apart)
    started = time.perf_counter()
    for number in range(rounds):
        code.scores([evaluation.model.initial(number)])
        code.show({"round": number})
    ended = time.perf_counter()
    code.close()
    return started - begun, (ended - started) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | weights | here, s | apart, s | start, s |\n|---|--:|--:|--:|--:|")
    for name, shape in NETWORKS.items():
        model = build(name, shape, 10)
        test = torch.rand(given.samples, *shape).numpy(), torch.randint(10, (given.samples,)).numpy()
        evaluation = Evaluation(
            model=model, objective=Objective(), test=test, validation=None, device=torch.device("cpu")
        )
        here, apart = ([seconds(evaluation, apart=one, rounds=given.rounds) for _ in range(3)] for one in (False, True))
        least = [min(one for _, one in here), min(one for _, one in apart), min(start for start, _ in apart)]
        print(f"| {name} | {model.size:,} | {' | '.join(f'{one:.4f}' for one in least)} |", flush=True)


if __name__ == "__main__":
    main()
