"""Faults planted in dpfed, and networks, losses and functions of one's own that are unsound, each as a `call` of a
replay audit. A fault is planted inside `call`, in the process of the run alone."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import dpfed
from accounting.mechanisms.samplings import planned
from dpfed.aggregation.sums import PlainSum
from dpfed.clients import trial
from dpfed.clients.state import State
from dpfed.clients.task import InitialState
from dpfed.clients.training import LocalTraining
from dpfed.data.dataset import Dataset
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.round import Method
from dpfed.runs import evaluate, experiment, training
from dpfed.server.rules import Averaging
from dpfed.stages.clip import AdaptiveClip, Clip
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project, PublicTopMask

from ....custom_networks import (
    ClassCounts,
    FittedOnFirstBatch,
    FixedParameterWritten,
    HiddenState,
    NumpyNoise,
    Plain,
    RunningMeanInHook,
)

ROUNDS = {"federation.rounds": 3, "run.evaluate_every": 1}
ADAPTIVE = ROUNDS | {
    "privacy.adaptive.quantile": 0.5,
    "privacy.adaptive.rate": 0.2,
    "privacy.adaptive.count_noise_std": 3.0,
}


@dataclass(frozen=True)
class Plant:
    """A fault: `plant()` breaks this process, then the preset runs."""

    name: str
    plant: Any
    preset: str = "dp-fedavg-digits"
    settings: Any = None
    given: Any = None

    def __call__(self, data: Any, out: Path) -> None:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.plant()
        given = {} if self.given is None else self.given()
        settings = dict(ROUNDS if self.settings is None else self.settings)
        settings |= {"run.evaluate_every": 1} if data.reporting else {}
        dpfed.run(self.preset, settings, out=out, progress=False, **given)


def nothing() -> None:
    pass


def put(owner: Any, **named: Any) -> None:
    """Replace attributes that `owner` has: one that it has no longer would plant nothing, and raises AttributeError."""
    mock.patch.multiple(owner, **named).start()


def trial_of_varying_length() -> None:
    """Networks are tried for another number of steps in every run, as on a machine of varying speed."""
    put(trial._Trial, _trial_sizes=lambda self: (1 + os.getpid() % 5, 1))


def clip_bypassed() -> None:
    """One client's rows are not clipped, whoever is changed: the first one of the cohort that has id above 100."""
    before, chosen = Clip.client, []

    def client(self, rows, ids, now):
        kept, out = rows.clone(), before(self, rows, ids, now)
        if not chosen:
            chosen.append(int(ids[len(ids) // 2]))
        here = torch.from_numpy(np.asarray(ids) == chosen[0])
        out[here] = 3 * kept[here]
        return out

    put(Clip, client=client)


def private_mask() -> None:
    before = PublicTopMask.for_round

    def for_round(self, weights, number, seeds):
        own = replace(self, inputs=self.trainer.inputs[:137], labels=self.trainer.labels[:137])
        return before(own, weights, number, seeds)

    put(PublicTopMask, for_round=for_round)


def noiseless_row() -> None:
    kept, client, server = {}, Clip.client, Project.server

    def remember(self, rows, ids, now):
        out = client(self, rows, ids, now)
        kept["row"] = out[-1].clone()
        return out

    put(Clip, client=remember)
    put(Project, server=lambda self, total, now: server(self, total + 0.01 * kept["row"], now))


def row_grown_behind_its_bound() -> None:
    client = Encode.client

    def grown(self, rows, ids, now):
        out = client(self, rows, ids, now).clone()
        out[:1] *= 1.5
        return out

    put(Encode, client=grown)


def row_beside_the_sum() -> None:
    """A hundredth of a row is added to the sum before its noise."""
    kept, client, close = {}, Clip.client, PlainSum.close

    def remember(self, rows, ids, now):
        out = client(self, rows, ids, now)
        kept["row"] = out[-1].clone()
        return out

    def closing(self):
        done = close(self)
        return replace(done, total=done.total + 0.01 * kept["row"])

    put(Clip, client=remember)
    put(PlainSum, close=closing)


def realised_divisor() -> None:
    put(Method, sum_divisor=lambda self, counted: float(len(counted) or 1))


def count_without_noise() -> None:
    def next_norm(self, norm, centred, number):
        return norm * float(np.exp(-self.rate * (centred / self.cohort + 0.5 - self.quantile)))

    put(AdaptiveClip, next_norm=next_norm)


def count_noise_of_zero() -> None:
    before = AdaptiveClip.noisy_count

    def noisy_count(self, centred_count, number):
        return before(replace(self, count_noise_std=1e-300), centred_count, number)

    put(AdaptiveClip, noisy_count=noisy_count)


def validation_stays() -> None:
    def carve(self, count, generator):
        rows = np.sort(generator.permutation(len(self.train_labels))[:count])
        return self, self.train_inputs[rows], self.train_labels[rows]

    put(Dataset, carve_public=carve)


def private_step() -> None:
    seen, train, step = {}, LocalTraining.train, Averaging.step

    def remember(self, *given, **named):
        seen["mean"] = float(self.inputs.abs().clamp(max=10).mean())
        return train(self, *given, **named)

    def stepping(self, state, move, *, count):
        other = replace(self, learning_rate=self.learning_rate * (1 + 0.1 * seen["mean"]))
        return step(other, state, move, count=count)

    put(LocalTraining, train=remember)
    put(Averaging, step=stepping)


def seeded_noise() -> None:
    def normal(self, like, purpose, *path):
        generator = torch.Generator().manual_seed(int(abs(float(like.sum())) * 1e4) % 2**31)
        return torch.randn(like.numel(), generator=generator)

    put(GaussianNoise, _draw_normals=normal)


def no_noise() -> None:
    put(GaussianNoise, _draw_normals=lambda self, like, purpose, *path: torch.zeros(like.numel()))


def rows_added_twice() -> None:
    before = PlainSum.add
    put(PlainSum, add=lambda self, clients, rows: before(self, clients, 2 * rows))


def mean_taken_away() -> None:
    before = Clip.client

    def client(self, rows, ids, now):
        return before(self, rows - rows.mean(0) if len(rows) > 1 else rows, ids, now)

    put(Clip, client=client)


def drawn_by_size() -> None:
    """Clients with many samples of the classes 0 to 2 are never drawn."""
    before, seen, init = planned.Cohorts.sample, {}, LocalTraining.__post_init__

    def remember(self):
        init(self)
        held = [self.labels.numpy()[self.partition.of(client)] for client in range(self.partition.clients)]
        counts = np.stack([np.bincount(labels, minlength=10) for labels in held])
        seen["out"] = np.flatnonzero(counts[:, :3].sum(1) > counts.sum(1) / 2)

    put(LocalTraining, __post_init__=remember)

    def sample(self, randomness, number):
        return np.setdiff1d(before(self, randomness, number), seen.get("out", []))

    put(planned.Cohorts, sample=sample)


def step_by_real_batch() -> None:
    """The noisy sum of a record-level step is divided by the real size of its batch."""
    from dpfed.mechanisms.records import RecordLevel

    before = RecordLevel.slope

    def slope(self, slopes, batch, *, size, expected, path):
        return before(self, slopes, batch, size=size, expected=max(len(batch), 1), path=path)

    put(RecordLevel, slope=slope)


def scores_write() -> None:
    """The evaluated network is bound to the server's own weights, and nothing is tried or put back."""
    no_trial()
    scores, made = inspect.unwrap(evaluate.evaluate), {}
    source, copied = inspect.getsource(scores), "weights.clone(), "
    assert copied in source
    source = source.replace(copied, "weights, ")
    exec(source, vars(evaluate), made)
    scores.__code__ = inspect.unwrap(made["evaluate"]).__code__


def no_trial() -> None:
    """Custom networks and losses are neither tried nor put back between clients."""
    put(experiment, training_after_custom_trial=lambda config, clients, broadcast, dataset, start: clients)
    put(experiment, require_records_apart=lambda *given, **named: None)
    put(InitialState, restore=lambda self: None)
    put(State, restore=lambda self, *given: None)
    for module in (trial, training):
        put(module, training_after_trial=lambda clients, *given, **named: clients)


PLANTS = (
    Plant("clip bypassed for one client, whoever is changed", clip_bypassed),
    Plant("mask from 137 private samples", private_mask, "fed-smp-topk-digits"),
    Plant("server half adds a noiseless row", noiseless_row),
    Plant("a hundredth of a row beside the sum, under its noise", row_beside_the_sum),
    Plant("divisor is the realised cohort", realised_divisor),
    Plant("adaptive count without noise", count_without_noise, settings=ADAPTIVE),
    Plant("adaptive count whose noise is 0", count_noise_of_zero, settings=ADAPTIVE),
    Plant("validation samples stay with clients", validation_stays, settings=ROUNDS | {"data.validation": 137}),
    Plant("private data choose the server's step", private_step),
    Plant("noise seeded by the sum", seeded_noise),
    Plant("no noise", no_noise),
    Plant("rows added twice", rows_added_twice),
    Plant("a row grown behind its bound", row_grown_behind_its_bound),
    Plant("a client half takes the group's mean away", mean_taken_away),
    Plant("clients are drawn by their labels", drawn_by_size),
)
"""Faults in the package's own code."""


# ---- networks, losses and record mixtures of one's own


def _points(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def twenty_clients() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    pairs = [_points(10, generator) for _ in range(20)]
    return dpfed.data.from_clients(pairs, test=_points(30, generator), classes=3)


class WritesItsWeights(nn.Module):
    """An embedding whose forward pass shortens its weights, in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.o = nn.Embedding(30, 6, max_norm=0.1), nn.Linear(6, 3)

    def forward(self, x):
        return self.o(self.e(x.long()).mean(1))


class MinusBatchMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(6, 3)

    def forward(self, x):
        return self.o(x - x.mean(0))


class OneRecord(MinusBatchMean):
    def forward(self, x):
        return self.o(x)


_ALL = {
    "federation.rounds": 2,
    "federation.cohort": 20,
    "federation.sampling": "all",
    "privacy.epsilon": None,
    "privacy.noise_multiplier": 1e-4,
    "privacy.clip_norm": 0.1,
}
_LOOP = _ALL | {"local.strategy": "loop"}
_RECORDS = {
    "federation.rounds": 2,
    "federation.cohort": 20,
    "federation.sampling": "all",
    "local.record.clip_norm": 1.0,
    "local.record.noise_multiplier": 1e-3,
    "local.batch_size": 10,
    "local.epochs": None,
    "local.steps": 2,
}


def _network(name: str, made: type, settings: Any, *, loss: Any = None, plant: Any = no_trial, base: str = "") -> Plant:
    def given() -> dict[str, Any]:
        return {"data": twenty_clients(), "model": made(), **({} if loss is None else {"loss": loss()})}

    return Plant(name, plant, base or "dp-fedavg-digits", settings, given)


def sequences() -> Dataset:
    generator = torch.Generator().manual_seed(1)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randint(0, 20, (count, 12), generator=generator)
        return inputs, (inputs.sum(1) % 3).long()

    return dpfed.data.from_clients([some(10) for _ in range(40)], test=some(30), classes=3)


NETWORKS = (
    _network("hidden state kept from batch to batch", HiddenState, _ALL),
    _network("network fitted on its first batch", FittedOnFirstBatch, _LOOP),
    _network("running mean in a hook", RunningMeanInHook, _LOOP),
    _network("noise of numpy's global generator", NumpyNoise, _LOOP),
    _network("fixed parameter written", FixedParameterWritten, _LOOP),
    _network("loss that counts classes", Plain, _LOOP | {"local.batch_size": 2}, loss=ClassCounts),
    Plant(
        "evaluation writes to the weights",
        scores_write,
        settings={"federation.rounds": 3, "federation.cohort": 20, "local.strategy": "loop"},
        given=lambda: {"data": sequences(), "model": WritesItsWeights()},
    ),
)
RECORDS = (
    _network(
        "records: a step divided by the real batch", OneRecord, _RECORDS, base="fedavg-digits", plant=step_by_real_batch
    ),
)
SOUND = (
    _network("plain network", Plain, _ALL),
    _network("plain network, tried", Plain, _ALL, plant=nothing),
    _network("records: plain", OneRecord, _RECORDS, base="fedavg-digits", plant=trial_of_varying_length),
    Plant("adaptive clip", nothing, settings=ADAPTIVE),
    Plant("validation samples", nothing, settings=ROUNDS | {"data.validation": 137}),
)
