"""Sound training loops in numpy and torch that are not dpfed's, drawn by a seed, for tests of false alarms."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfed.audit import mechanism


def _norm_clip(row: np.ndarray) -> np.ndarray:
    return row / max(1.0, float(np.linalg.norm(row)))


def _entry_clip(row: np.ndarray) -> np.ndarray:
    return np.clip(np.nan_to_num(row), -1, 1) / len(row) ** 0.5


SAMPLERS = ("all", "marked", "global vector", "own generator", "one by one", "torch", "permutation")
NOISES = ("numpy", "own generator", "torch", "random")
FORMS = ("array", "tuple", "dict", "mapping of clients", "vector")


class StrangersLoop:
    """Loop number `seed`: every value outside its mechanism follows from noisy sums, constants and fresh draws.

    coupled: True if no draw depends on the number of clients or samples other than a marked one
    """

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng([seed, 20261128])
        self.sampler, self.noise, self.form = (str(draw.choice(one)) for one in (SAMPLERS, NOISES, FORMS))
        self.shuffles, self.logs = bool(draw.integers(2)), bool(draw.integers(2))
        self.clip = (_norm_clip, _entry_clip)[int(draw.integers(2))]
        self.clients, self.width, self.seed = int(draw.integers(4, 14)), int(draw.integers(2, 9)), seed
        sizes = draw.integers(2, 9, size=self.clients)
        arrays = [draw.normal(size=(n, self.width)) for n in sizes]
        labels = [draw.integers(3, size=n) for n in sizes]
        self.people: Any = {
            "array": arrays,
            "tuple": list(zip(arrays, labels, strict=True)),
            "dict": [{"x": x, "y": y} for x, y in zip(arrays, labels, strict=True)],
            "mapping of clients": {f"client {i}": one for i, one in enumerate(arrays)},
            "vector": [one[0] for one in arrays],
        }[self.form]
        self.coupled = self.sampler in ("all", "marked") and not (self.shuffles and self.form != "vector")
        self.name = f"{seed}: {self.sampler}, {self.noise}, {self.form}, shuffles {self.shuffles}"

    def _participants(self, data: Any, count: int, rng: np.random.Generator) -> np.ndarray:
        match self.sampler:
            case "marked":
                return data.coins(count, 0.6)
            case "global vector":
                return np.random.rand(count) < 0.6  # noqa: NPY002
            case "own generator":
                return rng.random(count) < 0.6
            case "one by one":
                return np.array([random.random() < 0.6 for _ in range(count)])
            case "torch":
                return (torch.rand(count) < 0.6).numpy()
            case "permutation":
                return np.isin(np.arange(count), rng.permutation(count)[: self.clients // 2])
        return np.ones(count, dtype=bool)

    def _noisy(self, total: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        match self.noise:
            case "numpy":
                return total + np.random.normal(size=total.shape)  # noqa: NPY002
            case "own generator":
                return total + rng.normal(size=total.shape)
            case "torch":
                return total + torch.randn(total.shape, dtype=torch.float64).numpy()
        return total + np.array([random.gauss(0, 1) for _ in total])

    def _row(self, client: Any, model: np.ndarray) -> np.ndarray:
        rows = client["x"] if isinstance(client, dict) else client[0] if isinstance(client, tuple) else client
        if rows.ndim == 1:
            return self.clip(rows - model)
        if not len(rows):
            return np.zeros_like(model)
        order = np.random.permutation(len(rows)) if self.shuffles else np.arange(len(rows))  # noqa: NPY002
        local = model.copy()
        for place in order:
            local += 0.3 * (rows[place] - local)
        return self.clip(local - model)

    def __call__(self, data: Any, out: Path) -> np.ndarray:
        given, rng = data(self.people), np.random.default_rng(self.seed)
        own = list(given.values()) if isinstance(given, dict) else given
        model = np.random.normal(size=self.width)  # noqa: NPY002
        release = mechanism(lambda total: self._noisy(total, rng), sensitivity=1.0)
        for number in range(3):
            here = self._participants(data, len(own), rng)
            rows = [self._row(client, model) for client, chosen in zip(own, here, strict=True) if chosen]
            model = model + release(np.sum([np.zeros(self.width), *rows], axis=0)) / self.clients
            if self.logs:
                with (out / "log.txt").open("a") as log:
                    log.write(f"round {number}: norm {float(np.linalg.norm(model))}\n")
        return model
