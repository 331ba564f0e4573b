"""Sound networks, losses, stages and settings, drawn by a seed: free of state by construction."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dpfed

from .plants import no_trial, twenty_clients


class Scaled(nn.Module):
    """A fixed function of its inputs: a parameter that is not trained."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, size), requires_grad=False)

    def forward(self, x):
        return x * self.scale


class Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, size), nn.Tanh())

    def forward(self, x):
        return x + self.inner(x)


class Gated(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x):
        return self.a(x) * torch.sigmoid(self.b(x))


LAYERS = (
    lambda size: nn.Sequential(nn.Linear(size, size), nn.ReLU()),
    lambda size: nn.Sequential(nn.Linear(size, size), nn.GELU()),
    lambda size: nn.LayerNorm(size),
    lambda size: nn.GroupNorm(1, size),
    lambda size: nn.Dropout(0.3),
    Scaled,
    Residual,
    Gated,
)


def _smoothed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def _focal(outputs, targets):
    rows = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return rows * (1 - torch.exp(-rows)) ** 2


def _squared(outputs, targets):
    return (torch.softmax(outputs, -1) - nn.functional.one_hot(targets, outputs.shape[-1])).square().sum(-1)


LOSSES = (None, None, _smoothed, _focal, _squared)
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"federation.sampling": "poisson"},
    {"federation.sampling": "fixed"},
    {"federation.sampling": "all", "federation.cohort": 20},
    {"federation.sampling": "cyclic"},
    {"federation.sampling": "balls-and-bins"},
)
NOISES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"privacy.noise": "discrete-gaussian", "aggregation.kind": "masked"},
    {"privacy.noise": "skellam", "aggregation.kind": "masked"},
    {"privacy.adaptive.quantile": 0.5, "privacy.adaptive.rate": 0.2},
    {"privacy.release": "uploads", "privacy.adjacency": "zero-out"},
)
METHODS = ("dp-fedavg-digits", "dp-fedavg-digits", "fed-smp-randk-digits")
OPTIMISERS: tuple[dict[str, Any], ...] = (
    {},
    {"local.momentum": 0.9},
    {"server.momentum": 0.9},
    {"local.strategy": "loop"},
)


class SoundPiece:
    """The piece number `seed`, as a `call` of a replay audit.

    bare: without the trial before round 1, the restoring of state and the report, which take nine tenths of a run
    """

    def __init__(self, seed: int, *, bare: bool = False, pairs: int | None = None) -> None:
        self._bare, self.pairs = bare, pairs
        draw = np.random.default_rng([seed, 20261126])
        chosen = [int(draw.integers(len(LAYERS))) for _ in range(int(draw.integers(1, 4)))]
        self._layers = chosen
        self._loss = LOSSES[int(draw.integers(len(LOSSES)))]
        self._preset = METHODS[int(draw.integers(len(METHODS)))]
        parts = [some[int(draw.integers(len(some)))] for some in (SAMPLERS, NOISES, OPTIMISERS)]
        self.settings: dict[str, Any] = {
            "federation.rounds": 2,
            "federation.cohort": 8,
            "privacy.epsilon": None,
            "privacy.noise_multiplier": 1.0,
            "local.batch_size": int(draw.integers(2, 12)),
            "local.learning_rate": float(draw.choice([0.05, 0.5])),
            "run.seed": seed,
        }
        for part in parts:
            self.settings |= part
        self.name = f"{seed}: {self._preset}, layers {chosen}, {parts}"

    def network(self) -> nn.Module:
        layers = [LAYERS[one](8) for one in self._layers]
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))

    def __call__(self, data: Any, out: Path) -> None:
        torch.manual_seed(0)
        if self._bare:
            no_trial()
            importlib.import_module("dpfed.api.run").write_report = lambda outcome: None
        loss = {} if self._loss is None else {"loss": self._loss}
        settings = self.settings | ({"run.evaluate_every": 1} if data.reporting else {})
        dpfed.run(self._preset, settings, data=twenty_clients(), model=self.network(), out=out, progress=False, **loss)
