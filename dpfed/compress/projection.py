"""FedScalar: a client sends one number, the projection of its update on a random direction, whatever d is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpfed.compress import counter
from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import Floats
from dpfed.compress.payload import Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates
from dpfed.compress.tf32 import tf32
from dpfed.errors import ConfigError

_DIRECTIONS = {"rademacher": counter.rademacher, "gaussian": counter.normal}
_AT_ONCE = 1 << 20  # numbers of a direction drawn at a time: fewer calls gain more than fitting a core's cache
_AT_ONCE_GPU = 1 << 24
_MOST_NUMBERS = 1 << 32  # entries of all directions of a message: ten seconds on a core
_NEXT_DIRECTION = 1 << 32  # direction k takes numbers k 2^32 ... of the stream


@dataclass(frozen=True, kw_only=True)
class FedScalar(Scheme):
    """r_k = <x, v_k> for k = 1 .. p; decoded to (1/p) Σ_k r_k v_k, v drawn again from the seed (FedScalar, Alg. 1).

    Unbiased, as E v v^T = I. The covariance of one decoded vector with p = 1 is ||x||^2 I + x x^T for Gaussian v, and
    that minus 2 diag(x^2) for signs: relative error (d + 1) / p and (d - 1) / p, so a step must be O(p / d). With
    separate seeds a mean over clients reduces the error. With `shared_seed` it does not, but the clients' numbers can
    be summed before decoding.

    vectors:     "rademacher" (signs) or "gaussian".
    projections: p, 32 bits each.
    shared_seed: seed of the round's direction for every client, chosen by the server; None: a separate seed per client.

    A client that chooses its seed can search for a favourable one, so the server chooses it, after the update is fixed.
    A projection hides nothing, as v is public; ||x|| <= C does not bound r (only C √d does).
    """

    name: ClassVar[str] = "fedscalar"
    unbiased: ClassVar[bool] = True

    vectors: str = "rademacher"
    projections: int = 1
    shared_seed: int | None = None

    def __post_init__(self) -> None:
        if self.vectors not in _DIRECTIONS:
            raise ConfigError(f"fedscalar: vectors={self.vectors!r}: must be one of {', '.join(_DIRECTIONS)}.")
        if not 1 <= self.projections <= 1 << 16:
            raise ConfigError(f"fedscalar: projections={self.projections}: must be from 1 to {1 << 16}.")
        if self.shared_seed is not None:
            client_seeds([self.shared_seed], 1)

    @property
    def linear(self) -> bool:
        return self.shared_seed is not None

    def layout(self, dimension: int) -> Layout:
        if self.projections * dimension > _MOST_NUMBERS:
            raise ConfigError(
                f"fedscalar: projections={self.projections} of d={dimension}: directions have "
                f"{self.projections * dimension:,} numbers, must have at most {_MOST_NUMBERS:,}. Use fewer projections."
            )
        return {"scalars": Floats(count=self.projections)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        seeds = self._seeds(client_seeds(seed, len(x)).to(x.device))
        scalars = self.inner_products(x, seeds)
        return Payloads.of(self, x.shape[1], seeds=None if self.linear else seeds, scalars=scalars)

    def inner_products(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        """Return r_k = <x, v_k>, float32 [c, p], along the directions of the seeds [c], or of the shared seed."""
        own = self._seeds(client_seeds(0, len(x)).to(x.device)) if seeds is None else seeds
        scalars = torch.zeros(len(x), self.projections, dtype=torch.float64, device=x.device)
        for rows, columns, number, vectors in self._directions(own, len(x), x.shape[1]):
            scalars[rows, number] += (x[rows, columns] * vectors).sum(dim=1, dtype=torch.float64)
        return scalars.float()

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        decoded = sent["scalars"].new_zeros(len(sent), sent.dimension)
        for rows, columns, number, vectors in self._directions(self._seeds(sent.seeds), len(sent), sent.dimension):
            decoded[rows, columns] += sent["scalars"][rows, number, None] * vectors
        return decoded.div_(self.projections)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        scalars = sent["scalars"] / (len(sent) * self.projections)
        if self.linear:
            scalars = scalars.sum(dim=0, keepdim=True)
        total = scalars.new_zeros(sent.dimension)
        for rows, columns, number, vectors in self._directions(self._seeds(sent.seeds), len(scalars), sent.dimension):
            with tf32(False, total.device):
                total[columns] += scalars[rows, number] @ vectors.expand(len(scalars[rows]), -1)
        return total

    def _seeds(self, seeds: Tensor) -> Tensor:
        """Return the seeds of the directions: [c], or the one shared by all clients [1]."""
        if self.shared_seed is None:
            return seeds
        return client_seeds([self.shared_seed], 1).to(seeds.device)

    def _directions(self, seeds: Tensor, clients: int, dimension: int) -> Iterator[tuple[slice, slice, int, Tensor]]:
        """Yield ranges of clients and of coordinates, the direction's number, and the direction [rows or 1,
        coordinates]."""
        draw = _DIRECTIONS[self.vectors]
        room = _AT_ONCE if seeds.device.type == "cpu" else _AT_ONCE_GPU
        width = min(dimension, max(room, 1 << 16))
        height = max(1, room // width)
        for row in range(0, clients, height):
            rows = slice(row, min(row + height, clients))
            for first in range(0, dimension, width):
                columns = slice(first, min(first + width, dimension))
                for number in range(self.projections):
                    start = number * _NEXT_DIRECTION + first
                    own = seeds if self.linear else seeds[rows]
                    yield rows, columns, number, draw(own, "projection", columns.stop - first, start=start)
