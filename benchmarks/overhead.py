"""Time of each part of a round compared with local training, for every method. Prints Markdown tables.

    python benchmarks/overhead.py [--model "CNN 0.58M"] [--methods drive eden] [--work few] [--threads 1]

100 of 1,000 clients (`--cohort`) on random images. Their local work (`--work`) is `few`, 10 samples, 5 epochs, batches
of 10: the 5 steps of `benchmarks/tasks.py`; `fed-smp`, the 10 steps of that paper's CNN (give `--model "CNN 1.66M"`);
`fifty`, 100 samples, 5 epochs, batches of 10; or `fedmrn`, 600 samples, 10 epochs, batches of 64: 100 steps. Rounds
are those of `dpfed run`, including files. With `--extrapolate` clients train as in `few`, and the training time is
multiplied by the ratio of samples; no other part depends on it, and the table notes it. With `--random-updates` no
client trains: all other parts are measured in a tenth of the time, in milliseconds; the first column is their sum.
Functions are wrapped from this script, so that the product itself is measured; a part is the time inside its functions
minus that inside other parts. Seconds are processor time, which other work hardly affects (`--clock wall`: wall-clock
time); for every part the smallest over the rounds after the first. In one process a client's message is decoded by the
call that encodes it, so encode includes both. Evaluation is a setting of a run: it has a column but is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import dpfed.diagnostics.watch
import dpfed.runs.loop
from dpfed import data
from dpfed.aggregation.ranks import Task
from dpfed.clients import LocalTraining
from dpfed.config.tables import parse
from dpfed.data.dataset import Dataset
from dpfed.round import draw_round_cohort
from dpfed.runs.book import LedgerBook
from dpfed.runs.experiment import build
from dpfed.runs.folder import RunFolder
from dpfed.runs.loop import Run
from dpfed.sources import TrainedClients

MODELS = {"CNN 0.58M": "fed-smp-cnn-unpadded", "CNN 1.66M": "fed-smp-cnn"}
PARTS = (
    *("train", "map", "clip", "noise", "encode", "decode", "sum", "server step"),
    *("cohort", "epsilon", "ledger", "checkpoint", "metrics", "rest"),
)
NOISE = {"clip_norm": 1.0, "noise_multiplier": 1.0}
INTEGERS = {**NOISE, "noise": "discrete-gaussian"}
SIGNS = {"clip_norm": 1.0, "noise": "coins", "edge": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "dp-fedavg": {"privacy": NOISE},
    "dp-fedavg, adaptive clip": {"privacy": {**NOISE, "adaptive": {"count_noise_std": 5.0}}},
    "dp-fedavg, shares": {"privacy": {**NOISE, "placement": "clients"}},
    "dp-fedavg, uploads": {"privacy": {**NOISE, "release": "uploads"}},
    "dp-fedavg, integers": {"privacy": INTEGERS},
    "dp-fedavg, integer shares": {"privacy": {**INTEGERS, "placement": "clients"}},
    "fed-smp-randk": {"method": {"keep": 0.4}, "privacy": NOISE},
    "fed-smp-topk": {"method": {"keep": 0.005}, "privacy": NOISE, "data": {"public": 100}},
    "fedpm, private sum": {"privacy": {"clip_norm": 1.0, "release": "sum"}},
    "fedpm, private uploads": {"privacy": {"clip_norm": 1.0, "release": "uploads"}},
    "stochastic-sign, private coins": {"method": {"options": {"bound": 0.01}}, "privacy": SIGNS},
    "fedscalar, private": {"method": {"shared": True, "options": {"projections": 1}}, "privacy": NOISE},
    "drive, private": {"privacy": NOISE},
    "eden, private": {"method": {"options": {"bits": 2}}, "privacy": NOISE},
    "fedmrns, private": {"privacy": NOISE},
    "fedavg": {},
    "fedavg-topk": {"method": {"keep": 0.05}},
    "fedavg-randk": {"method": {"keep": 0.4}},
    "fedpm": {},
    "fedmask": {},
    "fedmrn": {},
    "fedmrns": {},
    "fedscalar": {},
    "signsgd": {},
    "stochastic-sign": {},
    "terngrad": {},
    "qsgd": {},
    "drive": {},
    "eden": {"method": {"options": {"bits": 2}}},
    "fedsparsify": {"method": {"options": {}}},
}


@dataclass(frozen=True)
class Work:
    """Local work of a client in a round."""

    samples: int
    batch: int
    epochs: int

    @property
    def steps(self) -> int:
        return self.epochs * math.ceil(self.samples / self.batch)

    @property
    def seen(self) -> int:
        """Number of samples that pass the model, with repetitions."""
        return self.epochs * self.samples


WORK = {
    "few": Work(10, 10, 5),
    "fed-smp": Work(10, 10, 10),
    "fifty": Work(100, 10, 5),
    "fedmrn": Work(600, 64, 10),
}


class Profile:
    """Clock of exclusive seconds by the name of a part."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock, self._inside = clock, [0.0]

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inside.append(0.0)
        began = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - began
            self.seconds[name] += spent - self._inside.pop()
            self._inside[-1] += spent

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return inner


PART_OF = {
    "Project": "map",
    "Clip": "clip",
    "FixedClip": "clip",
    "ClipMoves": "clip",
    "DropNotFinite": "clip",
    "GaussianNoise": "noise",
    "IntegerNoise": "noise",
}
"""Stages whose two halves form one part; for all other stages the client half encodes, the server half decodes."""


@contextlib.contextmanager
def profiled(run: Run, profile: Profile) -> Iterator[None]:
    """Wrap the functions of a run to measure their parts."""
    method = run.experiment.method
    task = Task(state=run.experiment.start, cohort=np.arange(2), participants=np.arange(2))
    total = method.aggregation.open(task, size=2, dtype=torch.float32)
    found: list[tuple[str, Any, str]] = [
        ("train", LocalTraining, "train"),
        ("map", type(method.stages.project.choice), "for_round"),
        ("noise", dpfed.diagnostics.watch, "noise_record"),
        *((PART_OF.get(type(stage).__name__, "encode"), type(stage), "client") for stage in method.stages),
        *((PART_OF.get(type(stage).__name__, "decode"), type(stage), "server") for stage in method.stages),
        ("sum", type(total), "add"),
        ("sum", type(total), "close"),
        ("server step", type(method.server), "step"),
        ("cohort", dpfed.runs.loop, "draw_round_cohort"),
        ("epsilon", type(run._spent), "with_round"),
        ("epsilon", type(run._spent), "charge"),
        ("ledger", LedgerBook, "record"),
        ("evaluation", type(run._public_code), "scores"),
        ("checkpoint", RunFolder, "save_checkpoint"),
        ("metrics", RunFolder, "append_round"),
    ]
    with contextlib.ExitStack() as stack:
        for part, owner, name in found:
            wrapped = profile.wrapped(part, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, wrapped))
        yield


def measured(name: str, model: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds per client of every part."""
    run, rounds = None, []
    untrained = mock.patch.object(LocalTraining, "train", random_updates)
    clock = time.process_time if options.clock == "processor" else time.perf_counter
    with tempfile.TemporaryDirectory() as folder, untrained if options.random_updates else contextlib.nullcontext():
        config = parse(tables(name, model, options), source=name)
        run = Run.open(build(config), Path(folder) / "run", resume=False)
        source = TrainedClients(seeds=run.experiment.seeds)
        while not run.finished:
            profile, clients = Profile(clock), len(draw_round_cohort(run.experiment.method, run.state.round))
            with profiled(run, profile), profile.part("rest"):
                run.run_one_round(source)
            rounds.append({part: 1e3 * seconds / clients for part, seconds in profile.seconds.items()})
    later = rounds[1:]
    least = {part: min(one.get(part, 0.0) for one in later) for part in (*PARTS, "evaluation")}
    least["train"] *= WORK[options.work].seen / work_of(options).seen
    return least


def random_updates(training: LocalTraining, broadcast: torch.Tensor, clients: Any, **named: Any) -> torch.Tensor:
    """Return random rows with about the clip norm in place of the updates of `clients`."""
    return torch.randn(len(clients), len(broadcast)) * len(broadcast) ** -0.5


def work_of(options: argparse.Namespace) -> Work:
    """Return the local work of the clients."""
    return WORK["few" if options.extrapolate else options.work]


def tables(name: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration of a setting."""
    extra, work = SETTINGS[name], work_of(options)
    result: dict[str, Any] = {
        "data": {"name": "random", **extra.get("data", {})},
        "model": {"name": MODELS[model]},
        "federation": {"clients": 1000, "cohort": options.cohort, "rounds": options.rounds + 1, "sampling": "fixed"},
        "local": {"learning_rate": 0.05, "batch_size": work.batch, "epochs": work.epochs},
        "method": {"name": name.split(",")[0], **extra.get("method", {})},
        "run": {"device": options.device, "evaluate_every": options.rounds + 1 if options.random_updates else 1},
    }
    return result | ({"privacy": extra["privacy"]} if "privacy" in extra else {})


def register(samples: int) -> None:
    """Return random images for 1,000 clients and 100 public ones; the time does not depend on their content."""
    generator = np.random.default_rng(0)

    def half(count: int) -> tuple[Any, Any]:
        inputs = generator.standard_normal((count, 1, 28, 28), dtype=np.float32)
        return inputs, generator.integers(10, size=count)

    (inputs, labels), (test_inputs, test_labels) = half(1_000 * samples + 100), half(1_000)
    random = Dataset(
        name="random",
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=10,
    )
    data.register("random", random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="CNN 0.58M")
    parser.add_argument("--methods", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--work", choices=WORK, default="few")
    parser.add_argument("--extrapolate", action="store_true")
    parser.add_argument("--random-updates", action="store_true", help="train no client")
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="on cuda also --clock wall, and CUDA_LAUNCH_BLOCKING=1 before")
    parser.add_argument("--clock", choices=["processor", "wall"], default="processor")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    register(work_of(options).samples)
    work = WORK[options.work]
    how = "training extrapolated from 5 steps, " if options.extrapolate else ""
    print(f"{options.model}, {work.samples} samples, {work.steps} steps, {how}milliseconds a client\n")
    print("| method | overhead | " + " | ".join(PARTS) + " | evaluation |")
    print("|---|--:" + "|--:" * (len(PARTS) + 1) + "|")
    for name in options.methods:
        found = measured(name, options.model, options)
        beside = sum(found[part] for part in PARTS if part != "train")
        cells = [f"{found[part]:.2f}" if found[part] >= 0.005 else "" for part in (*PARTS, "evaluation")]
        first = f"{beside:.2f}" if options.random_updates else f"{100 * beside / found['train']:.0f}%"
        print(f"| {name} | {first} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
