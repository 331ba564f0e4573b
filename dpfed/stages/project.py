"""Public maps of a round, from a client's update to the values that are sent, and the stage that applies them.

Public linear maps from a client's update in R^d to the values that are sent, with their adjoints.

A map is fixed for a round before any client trains. Its adjoint maps the (noisy) sum of sent values to a vector of
R^d; the server divides that by the cohort size.

Fed-SMP's masks: all clients of a round send the same k coordinates, drawn at random or chosen by public data.

FedScalar with one set of public directions per round: p numbers that can be summed before they are decoded.

Values as Bernoulli samples of a public size: stochastic signs, FedMRNS with shared noise, moves of a mask.

Shared layers: their entries are sent; personal layers (local.personal) stay with their clients.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.counter import client_seeds
from dpfed.compress.mask_schemes import random_noise
from dpfed.compress.payload import Payloads
from dpfed.compress.rotation import FedScalar
from dpfed.compress.sparse import largest_indices
from dpfed.data.dataset import floats_hold
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds
from dpfed.stages.clip import largest_magnitudes
from dpfed.stages.stage import Map, Round, Stage

FLOAT_BITS = 32
SEED_BITS = 64


class MapChoice(Protocol):
    """Choice of a round's map from public things only: the broadcast weights, seeds, public data.

    `sent` is the number of values that a client sends; `downlink_bits` counts the bits that it receives: weights and
    mask.
    """

    @property
    def sent(self) -> int: ...

    @property
    def downlink_bits(self) -> int: ...

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map: ...


@dataclass(frozen=True, kw_only=True)
class Identity(Map):
    """Map that sends every entry unchanged."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates

    def adjoint(self, total: Tensor) -> Tensor:
        return total

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast


@dataclass(frozen=True, kw_only=True)
class SendAll(MapChoice):
    """No compression."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        return Identity(size=self.size)


_SHOWN = 4096


class Trainer(Protocol):
    """Training on given samples (`dpfed.clients.LocalTraining`)."""

    def train_on(
        self, inputs: Tensor, labels: Tensor, broadcast: Tensor, *, number: int, seeds: Seeds, purpose: str
    ) -> Tensor:
        """Return the update [d] from broadcast [d]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedMask:
    """Map to coordinates that are equal for all clients of the round, times `scale` (Fed-SMP, Algorithm 2).

    With uniformly random indices and scale d/k, the sent vector scattered back to R^d has the update as its mean over
    masks. With chosen indices (top-k of a public update) scale is 1. Rows are clipped after scaling, in the k values
    that are sent, so that their norm is the sensitivity. `chosen_by`: the fingerprint of the public samples that
    chose the indices, else None.
    """

    size: int
    indices: Tensor
    scale: float
    chosen_by: str | None = None

    @property
    def sent(self) -> int:
        return len(self.indices)

    @property
    def description(self) -> dict[str, object] | None:
        if self.chosen_by is None:
            return None
        return {"samples": self.chosen_by, "kept": len(self.indices), "shown": sampled_bits(self.indices, self.size)}

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates.index_select(1, self.indices).mul_(self.scale)

    def adjoint(self, total: Tensor) -> Tensor:
        return total.new_zeros(self.size).index_copy_(0, self.indices, total)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast.index_select(0, self.indices)


@dataclass(frozen=True, kw_only=True)
class RandomSharedMask:
    """Fed-SMP rand-k: k coordinates drawn from the round's public seed, times d/k.

    stays:  True: the coordinates of the first round are used in every round
    scaled: False: without the factor d/k, as for Bernoulli samples, whose values are public
    """

    size: int
    kept: int
    stays: bool = False
    scaled: bool = True

    @property
    def sent(self) -> int:
        return self.kept

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + SEED_BITS

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        at = 0 if self.stays else number
        if weights.device.type == "cpu":
            indices = random_indices(self.size, self.kept, seeds, "mask.shared", at)
        else:  # drawn on the CPU, so that all devices have equal coordinates, while the device trains the round before
            indices = _drawn_beside(self.size, self.kept, seeds, at).result().to(weights.device)
            _drawn_beside(self.size, self.kept, seeds, at + (not self.stays))
        scale = self.size / self.kept if self.scaled else 1.0
        return SharedMask(size=self.size, indices=indices, scale=scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicTopMask:
    """Fed-SMP top-k: the k largest magnitudes of an update trained by the server on public data."""

    size: int
    kept: int
    trainer: Trainer
    inputs: Tensor
    labels: Tensor

    @property
    def sent(self) -> int:
        return self.kept

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + min(self.size, self.kept * (self.size - 1).bit_length())

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        update = self.trainer.train_on(
            self.inputs, self.labels, weights, number=number, seeds=seeds, purpose="public.shuffle"
        )
        indices = top_indices(update[None], self.kept)[0]
        return SharedMask(size=self.size, indices=indices, scale=1.0, chosen_by=self._fingerprint)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.inputs, self.labels)


def sampled_bits(indices: Tensor, size: int) -> str:
    """Return one bit for each of the coordinates 0, s, 2s, ... (at most 8,191), set if it is among the indices, in
    hexadecimal."""
    kept = torch.zeros(size, dtype=torch.bool, device=indices.device)
    kept[indices] = True
    return np.packbits(kept[:: max(1, size // _SHOWN)].cpu().numpy()).tobytes().hex()


def random_indices(size: int, kept: int, seeds: Seeds, purpose: str, *path: int) -> Tensor:
    """Return `kept` of `size` coordinates, uniformly without replacement, sorted, int64."""
    chosen = np.zeros(size, dtype=np.bool_)
    chosen[seeds.generator(purpose, *path).choice(size, kept, replace=False, shuffle=False)] = True
    return torch.from_numpy(np.flatnonzero(chosen))  # a sort takes 30 times as long


@lru_cache(maxsize=2)
def _drawn_beside(size: int, kept: int, seeds: Seeds, number: int) -> Future[Tensor]:
    """Return the coordinates of a round, which another thread draws."""
    return _BESIDE.submit(random_indices, size, kept, seeds, "mask.shared", number)


_BESIDE = ThreadPoolExecutor(1)


def top_indices(updates: Tensor, kept: int) -> Tensor:
    """Return indices of the `kept` largest magnitudes of each row of [c, d], sorted, int64 [c, kept].

    Ties go to the lower index and NaN counts as zero.
    """
    return largest_indices(updates.nan_to_num(nan=0.0), kept)


def fingerprint(inputs: Tensor, labels: Tensor) -> str:
    """Return the SHA-256 of samples in their order; integers and equal floats have equal digests."""
    if not inputs.is_floating_point() and floats_hold(inputs.cpu().numpy()):
        inputs = inputs.float()
    found = hashlib.sha256(f"{list(inputs.shape)} {inputs.dtype} {labels.dtype}".encode())
    for one in (inputs, labels):
        found.update(one.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def kept_coordinates(size: int, *, keep: float | None, k: int | None) -> int:
    """Return k, or the fraction `keep` of d coordinates; ConfigError unless exactly one is given and 1 <= k <= d."""
    if (keep is None) == (k is None):
        raise ConfigError(f"method.keep={keep}, method.k={k}: give exactly one, a fraction or a number of coordinates.")
    if keep is not None and not 0 < keep <= 1:
        raise ConfigError(f"method.keep={keep}: must be a fraction in (0, 1].")
    kept = k if k is not None else max(1, round(size * (keep or 0)))
    if not 1 <= kept <= size:
        raise ConfigError(f"method.k={kept}: must be from 1 to the model's d={size} coordinates.")
    return kept


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


@dataclass(frozen=True, kw_only=True, eq=False)
class _MapOfMap(Map):
    """Map before or after a map `inside`, with as many values to send."""

    inside: Map

    @property
    def sent(self) -> int:
        return self.inside.sent

    @property
    def description(self) -> dict[str, Any] | None:
        return self.inside.description


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedProbabilities(_MapOfMap):
    """Values x as moves of Bernoulli probabilities from 1/2: x signs / (2 bound).

    A Bernoulli sample with this probability, read as ±bound times its sign, has mean x.

    Used by stochastic signs with a public bound (signs 1), FedMRNS with noise ±bound shared by all clients, and private
    FedPM whose samples estimate the moves of its probabilities.
    """

    signs: Tensor
    bound: float

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


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedEntries(_MapOfMap):
    """Map of the entries `shared` [m] of updates [c, d] by the map `inside`; its adjoint is 0 at all other entries."""

    size: int
    shared: Tensor

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return self.inside.forward(updates[:, self.shared], clients)

    def adjoint(self, total: Tensor) -> Tensor:
        shared = self.inside.adjoint(total)
        return shared.new_zeros(self.size).index_copy_(0, self.shared, shared)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return self.inside.restrict(broadcast[self.shared])


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLayers(MapChoice):
    """Choice of a map `inside` of the shared entries; the server's personal entries keep their first values."""

    size: int
    shared: Tensor
    inside: MapChoice

    @property
    def sent(self) -> int:
        return self.inside.sent

    @property
    def downlink_bits(self) -> int:
        return self.inside.downlink_bits

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        inside = self.inside.for_round(weights[self.shared], number, seeds)
        return SharedEntries(size=self.size, shared=self.shared, inside=inside)


@dataclass(frozen=True, kw_only=True, eq=False)
class Project(Stage):
    """Map [c, d] -> [c, k] that `choice` fixes before any client trains; its adjoint maps the sum back to R^d.

    The map is linear and public, so it is post-processing at the sum; the mapped rows are clipped and sent.
    """

    choice: MapChoice

    @property
    def sent(self) -> int:
        """k."""
        return self.choice.sent

    @property
    def remembers_clients(self) -> bool:
        """True if a client keeps the layers that are not sent for its next round (local.personal)."""
        return isinstance(self.choice, SharedLayers)

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return now.projection.forward(rows, ids)

    def server(self, total: Tensor, now: Round) -> Tensor:
        return now.projection.adjoint(total)
