"""FedScalar with one set of public directions per round: p numbers that can be summed before they are decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.payload import Payloads
from dpfed.compress.projection import FedScalar
from dpfed.seeds import Seeds
from dpfed.stages.clip import largest_magnitudes
from dpfed.stages.maps import FLOAT_BITS, SEED_BITS, Map


@dataclass(frozen=True, kw_only=True)
class SharedProjection:
    """Map r_k = <x, v_k> for the round's p public directions v_k; its adjoint of a sum r is (1/p) Σ_k r_k v_k.

    ||x|| <= C does not bound r (only C √(p d) does), so privacy clips r itself: the sensitivity is the norm of the p
    sent numbers, and noise is added to their sum. For x of norm C_x and random directions that norm is about C_x √p.
    stays: True: the directions of the first round are used in every round.
    """

    size: int
    scheme: FedScalar
    purpose: str
    stays: bool = False

    @property
    def sent(self) -> int:
        return self.scheme.projections

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + SEED_BITS

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        shared = replace(self.scheme, shared_seed=seeds.integer(self.purpose, 0 if self.stays else number))
        return _Directions(size=self.size, scheme=shared)


@dataclass(frozen=True, kw_only=True)
class _Directions(Map):
    size: int
    scheme: FedScalar

    @property
    def sent(self) -> int:
        return self.scheme.projections

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        wrong = ~largest_magnitudes(updates).isfinite()
        if not bool(wrong.any()):
            return self.scheme.inner_products(updates)
        products = self.scheme.inner_products(updates.masked_fill(wrong[:, None], 0.0))
        return products.masked_fill(wrong[:, None], float("nan"))

    def adjoint(self, total: Tensor) -> Tensor:
        return self.scheme.mean(Payloads.of(self.scheme, self.size, scalars=total[None]))

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast.new_zeros(self.sent)
