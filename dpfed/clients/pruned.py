"""Local training of FedSparsify: SGD or Adam on a model whose purged weights stay zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfed.clients.optimisers import Adam, Sgd
from dpfed.clients.task import RoundStart, Walk
from dpfed.compress.sparse import Sparsity, purge
from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class PrunedSgd:
    """SGD (or Adam) on a model with purged weights (Stripelis, Gupta, Ver Steeg, Ambite 2022, FedSparsify).

    An entry of `prunable` that is 0 in the broadcast is purged: before every batch, and after the last, it is set to
    0 again. Gradients and velocities are not masked. A client without samples returns 0.

    Global variant (`sparsity` None): clients keep the broadcast's zeros, and the server purges after averaging
    (`dpfed.server.rules`). Local variant: each client of round t (from 0) purges its own model to sparsity(t + 1)
    after training, so that after R rounds the sparsity is sparsity(R).

    Training returns the move: local minus broadcast model. At a purged entry the move is minus the broadcast, so that
    broadcast + move is exactly 0. The encoder sends that sum (zeros left out); the server adds the mean of the sums
    minus the broadcast.

    prunable: int64 [m], sorted, on the device to train on; FlatModel.indices("weight")

    Raises ConfigError.
    """

    sgd: Sgd | Adam
    prunable: Tensor
    sparsity: Sparsity | None = None

    def __post_init__(self) -> None:
        if not len(self.prunable) or self.prunable.min() < 0 or self.prunable.max() >= self.size:
            raise ConfigError(f"prunable: {len(self.prunable)} entries; must be at least one of 0..{self.size - 1}.")

    @property
    def size(self) -> int:
        return self.sgd.size

    def begin(self, start: RoundStart) -> PrunedWalk:
        return PrunedWalk(self, self.sgd.begin(start), start)


class PrunedWalk(Walk):
    """Clients in training by SGD with purged entries held at zero."""

    def __init__(self, course: PrunedSgd, walk: Walk, start: RoundStart) -> None:
        self._course, self._walk, self._start = course, walk, start
        self.weights, self.rate = walk.weights, walk.rate
        self._purged = course.prunable[start.broadcast[course.prunable] == 0]

    def place_weights(self, active: int, step: int) -> None:
        self.weights[:active].index_fill_(1, self._purged, 0.0)

    def step(self, active: int, step: int, slope: Tensor) -> None:
        self._walk.step(active, step, slope)

    def finish(self) -> Tensor:
        course, models = self._course, self.weights
        models.index_fill_(1, self._purged, 0.0)
        if course.sparsity is not None:
            purge(models, course.prunable, course.sparsity(self._start.number + 1))
            models[torch.from_numpy(self._start.steps == 0).to(models.device)] = self._start.broadcast
        return self._walk.finish()
