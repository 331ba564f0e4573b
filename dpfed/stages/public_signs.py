"""Updates as coins of a public size: stochastic signs, and FedMRNS with the round's shared noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.counter import client_seeds
from dpfed.compress.masked_noise import random_noise
from dpfed.seeds import Seeds
from dpfed.stages.maps import FLOAT_BITS, SEED_BITS, Map


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedProbabilities:
    """Updates as moves of coins from 1/2: x signs / (2 bound), so that a coin of that mean, read as ±bound times its
    sign, has the mean x.

    Stochastic signs with a public bound (signs 1), and FedMRNS with noise ±bound that all clients share.
    """

    size: int
    signs: Tensor
    bound: float

    @property
    def sent(self) -> int:
        return self.size

    @property
    def facts(self) -> None:
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates.mul_(self.signs).div_(2 * self.bound)

    def adjoint(self, total: Tensor) -> Tensor:
        return total * self.signs * (2 * self.bound)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return torch.full_like(broadcast, 0.5)


@dataclass(frozen=True, kw_only=True)
class PublicSigns:
    """What coins of an update are read with: +bound and -bound, or the round's shared noise ±bound (FedMRNS)."""

    size: int
    bound: float
    noise_purpose: str | None

    @property
    def sent(self) -> int:
        return self.size

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + (SEED_BITS if self.noise_purpose else 0)

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        signs = torch.ones(1, device=weights.device)
        if self.noise_purpose is not None:
            own = client_seeds([seeds.integer(self.noise_purpose, number)], 1).to(weights.device)
            signs = random_noise(own, "bernoulli", 1.0, self.size)[0]
        return SignedProbabilities(size=self.size, signs=signs, bound=self.bound)
