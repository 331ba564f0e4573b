"""Limits of private FedPM on Fashion-MNIST: signal and noise in each layer, and accuracy without noise or clip.

python experiments/fedpm-masks/limits.py [--seed N] [--rounds N]       prints both; writes limits.csv in this folder

Signal of a layer: the norm of the mean of clipped rows in this layer; noise: the noise that the round adds to this
mean, from the stage's fields. The squared norm is estimated without bias by inner products of different clients. No
epsilon covers the output, which is computed from all training data.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed import compress
from dpfed.aggregation.ranks import Task
from dpfed.config.tables import override, parse
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.methods import presets
from dpfed.round import Method, run_round
from dpfed.runs.evaluate import evaluate
from dpfed.runs.experiment import Experiment, build
from dpfed.server.state import ServerState
from dpfed.sources import TrainedClients
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.clip_moves import ClipMoves
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.stage import Round

HERE = Path(__file__).parent
COMMON = ("model.name=strided-cnn", "privacy.adjacency=zero-out", "run.evaluate_every=1000")
# Bernoulli samples of the mask's probabilities, not of their change.
MASKS = (
    *("mask.bound=", "privacy.edge=", "privacy.count_bits=", "server.average=", "privacy.clip_metric=fisher"),
    *("privacy.linf_clip=0.33", "mask.edge=0.1", "server.learning_rate=1.0", "method.keep=0.2"),
)
ROWS = {
    "FedPM": ("fedpm-private-fashion-mnist", (*MASKS, "mask.constant=kaiming")),
    "Fed-SMP top-k, p = .05": ("fed-smp-topk-fashion-mnist", ("method.keep=0.05",)),
    "DP-FedAvg": ("dp-fedavg-fashion-mnist", ()),
}
LAYERS = ("conv 1", "conv 2", "hidden", "output")


def experiment_of(preset: str, settings: tuple[str, ...], *, seed: int, rounds: int) -> Experiment:
    given = [*COMMON, *settings, f"run.seed={seed}", f"federation.rounds={rounds}"]
    return build(parse(override(presets.preset_tables(preset), given), source=preset))


# --- signal and noise


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Signal and noise of the mean of a cohort's rows in one layer. kept: share of the norm after the clip."""

    name: str
    entries: int
    signal: float
    noise: float
    kept: float


def layers_of(experiment: Experiment, state: ServerState, clients: int) -> Iterator[Layer]:
    """Return signal and noise of a round from this state."""
    method, seeds = experiment.method, experiment.seeds
    ids = np.random.default_rng(state.round).choice(method.sampler.clients, clients, replace=False)
    now = method.announce(Task(state=state, cohort=ids, participants=ids), seeds)
    groups = method.updates(ids, now, seeds, at_once=None)
    before, after = zip(*(halves(method, rows, part, now) for part, rows in groups), strict=True)
    sent, bounded = torch.cat(before), torch.cat(after)
    variance = noise_variance(method, now)
    for name, place in places(experiment, now):
        at = torch.from_numpy(place)
        signal, whole = (math.sqrt(max(squared(rows[:, at]), 0.0)) for rows in (bounded, sent))
        noise = math.sqrt(float(variance[at].sum()))
        kept = signal / whole if whole else math.nan
        yield Layer(name=name, entries=len(place), signal=signal, noise=noise, kept=kept)


def halves(method: Method, rows: Tensor, ids: NDArray[np.int64], now: Round) -> tuple[Tensor, Tensor]:
    """Return the rows before and after the clip."""
    first, *rest = method.stages.up_to_the_clip
    sent = first.client(rows, ids, now)
    bounded = sent.clone()
    for stage in rest:
        bounded = stage.client(bounded, ids, now)
    return sent, bounded


def squared(rows: Tensor) -> float:
    """Return an unbiased estimate of |E row|^2: the mean inner product of two different clients."""
    total, count = rows.double().sum(0), len(rows)
    return float((total.square().sum() - rows.double().square().sum()) / (count * (count - 1)))


def noise_variance(method: Method, now: Round) -> Tensor:
    """Return the noise variance of every entry of the mean, from the stage that draws the noise."""
    private, divisor = method.stages.private, method.divisor
    if isinstance(private, GaussianNoise):
        return torch.full((now.projection.sent,), (private.update_noise_multiplier * now.clip_norm / divisor) ** 2)
    assert isinstance(private, PrivateCoins)
    theta = now.reference.double().clamp(private.edge, 1 - private.edge)
    return private.slots * theta * (1 - theta) / divisor**2


def places(experiment: Experiment, now: Round) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Return the sent entries that belong to each layer."""
    indices = getattr(now.projection, "indices", torch.arange(now.projection.sent)).cpu().numpy()
    ends = np.cumsum([math.prod(block.shape) for block in experiment.model.layout])
    owner = np.searchsorted(ends, indices, side="right")
    for number, name in enumerate(LAYERS):
        yield name, np.flatnonzero(owner == number)


# --- accuracy with a part switched off


class Silent:
    """Stage without noise."""

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        return total


def without_noise(experiment: Experiment) -> Method:
    """Return a chain that is not private: means of clipped rows as floats."""
    kept = [stage for stage in experiment.method.stages if isinstance(stage, Project | Clip | ClipMoves)]
    encode = Encode(scheme=compress.get("dense"), seeds=experiment.seeds)
    return replace(
        experiment.method, stages=Stages(*kept, encode), sampler=replace(experiment.method.sampler, cap=None), fill=None
    )


def without_both(experiment: Experiment) -> Method:
    chain = without_noise(experiment)
    kept = [stage for stage in chain.stages if not isinstance(stage, Clip | ClipMoves)]
    return replace(chain, stages=Stages(*kept))


def as_it_is(experiment: Experiment) -> Method:
    return experiment.method


WAYS: dict[str, Callable[[Experiment], Method]] = {
    "as it is": as_it_is,
    "without noise": without_noise,
    "without noise and clip": without_both,
}


def accuracy(experiment: Experiment, state: ServerState) -> float:
    data = experiment.dataset
    inputs, labels = torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_labels)
    return evaluate(experiment.model, experiment.readout.weights(state), inputs, labels).accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=600, help="that signals are estimated from")
    chosen = parser.parse_args()
    lines = []
    for name, (preset, settings) in ROWS.items():
        for way, changed in WAYS.items():
            experiment = experiment_of(preset, settings, seed=chosen.seed, rounds=chosen.rounds)
            method, state = changed(experiment), experiment.start
            for number in range(chosen.rounds):
                if way == "as it is" and number in (0, 10, 30, chosen.rounds - 1):
                    for layer in layers_of(experiment, state, chosen.clients):
                        lines.append({"row": name, "round": number, **vars(layer)})
                        print(name, number, layer, flush=True)
                source = TrainedClients(seeds=experiment.seeds)
                state = run_round(state, method, source, seeds=experiment.seeds, ledger=None).state
            reached = accuracy(experiment, state)
            lines.append({"row": name, "round": chosen.rounds, "name": way, "accuracy": reached})
            print(name, way, f"{reached:.2%}", flush=True)
    with open(HERE / "limits.csv", "w", newline="") as file:
        fields = ["row", "round", "name", "entries", "signal", "noise", "kept", "accuracy"]
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
