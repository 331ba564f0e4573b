"""Values as Bernoulli samples of a public size: stochastic signs, FedMRNS with shared noise, moves of a mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.counter import client_seeds
from dpfed.compress.mask_schemes import random_noise
from dpfed.seeds import Seeds
from dpfed.stages.maps import SEED_BITS, Map, MapChoice


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedProbabilities:
    """Values x as moves of Bernoulli probabilities from 1/2: x signs / (2 bound).

    A Bernoulli sample with this probability, read as ±bound times its sign, has mean x.

    Used by stochastic signs with a public bound (signs 1), FedMRNS with noise ±bound shared by all clients, and private
    FedPM whose samples estimate the moves of its probabilities.
    """

    inside: Map
    signs: Tensor
    bound: float

    @property
    def sent(self) -> int:
        return self.inside.sent

    @property
    def description(self) -> dict[str, object] | None:
        return self.inside.description

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return self.inside.forward(updates, clients).mul_(self.signs).div_(2 * self.bound)

    def adjoint(self, total: Tensor) -> Tensor:
        return self.inside.adjoint(total * self.signs * (2 * self.bound))

    def restrict(self, broadcast: Tensor) -> Tensor:
        return torch.full_like(self.inside.restrict(broadcast), 0.5)


@dataclass(frozen=True, kw_only=True)
class PublicSigns:
    """Public values of Bernoulli samples: +bound and -bound, or the shared noise ±bound of the round (FedMRNS)."""

    choice: MapChoice
    bound: float
    noise_purpose: str | None = None

    @property
    def sent(self) -> int:
        return self.choice.sent

    @property
    def downlink_bits(self) -> int:
        return self.choice.downlink_bits + (SEED_BITS if self.noise_purpose else 0)

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        signs = torch.ones(1, device=weights.device)
        if self.noise_purpose is not None:
            own = client_seeds([seeds.integer(self.noise_purpose, number)], 1).to(weights.device)
            signs = random_noise(own, "bernoulli", 1.0, self.sent)[0]
        return SignedProbabilities(inside=self.choice.for_round(weights, number, seeds), signs=signs, bound=self.bound)
