"""Seconds and memory of one pair of a replay audit, compared with two plain runs.

python benchmarks/replay.py                 small runs
python benchmarks/replay.py --large         one round of 1,000 clients of 1.66 million weights
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import torch

import dpfed
from dpfed.audit.replays.pairs import Pair

SMALL = {
    "dp-fedavg, d = 2,410, 20 rounds": ("dp-fedavg-digits", {"federation.rounds": 20}),
    "masked sum, discrete Gaussian, 20 rounds": (
        "dp-fedavg-digits",
        {"federation.rounds": 20, "aggregation.kind": "masked", "privacy.noise": "discrete-gaussian"},
    ),
    "fedpm-private, 10 rounds": ("fedpm-private-digits", {"federation.rounds": 10}),
}
LARGE = {
    "1,000 clients of 1.66 million weights, 1 round": (
        "dp-fedavg-digits",
        {
            "federation.clients": 1_000,
            "federation.cohort": 1_000,
            "federation.sampling": "all",
            "federation.rounds": 1,
            "model.hidden": [1_280, 1_216],
            "data.partition": "resampled",
            "data.samples": 5,
            "local.epochs": None,
            "local.steps": 1,
        },
    )
}


def plain(preset: str, settings: dict, seconds: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    dpfed.run(preset, settings, out=Path(tempfile.mkdtemp()) / "run", progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    seconds.put((time.monotonic() - began, peak))


def processor_seconds() -> float:
    """Return the processor time of this process and of children that it has waited for."""
    mine, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--large", action="store_true", help="a large cohort of large updates")
    given = options.parse_args()
    print(
        "| run | two plain runs, s | first run and a pair, s | ratio | of processor time | MB plain | first | second |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    fork = multiprocessing.get_context("fork")
    for name, (preset, settings) in (LARGE if given.large else SMALL).items():
        found, peaks, spent = 0.0, [], processor_seconds()
        for _ in range(2):
            answers = fork.Queue()
            process = fork.Process(target=plain, args=(preset, settings, answers))
            process.start()
            seconds, peak = answers.get()
            process.join()
            found += seconds
            peaks.append(peak)

        def call(data, out, preset=preset, settings=settings):
            torch.set_num_threads(1)
            dpfed.run(preset, settings, out=out, progress=False)

        began, plainly = time.monotonic(), processor_seconds() - spent
        audit = dpfed.audit.replay(call, [Pair(tuple(range(0, 60, 2)), "far")])
        took, spent = time.monotonic() - began, processor_seconds() - spent - plainly
        memory = f"{max(peaks):,} | {audit.first_megabytes:,} | {audit.evidence.pairs[0].findings.megabytes:,}"
        print(
            f"| {name} | {found:.1f} | {took:.1f} | {took / found:.2f} | {spent / plainly:.2f} | {memory} |", flush=True
        )


if __name__ == "__main__":
    main()
