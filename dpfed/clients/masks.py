"""Local training of masks: scores of frozen weights (FedPM), and masks of random noise (FedMRN)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.clients.optimisers import (
    Moments,
    Schedule,
    constant,
    learning_rate_of_round,
    longest_way,
)
from dpfed.clients.task import ClientUniforms, RoundStart, Walk
from dpfed.compress.mask_schemes import mask_probabilities, mask_weights
from dpfed.errors import ConfigError
from dpfed.models.frozen import FrozenNetwork
from dpfed.seeds import Seeds

NOISE_PURPOSE = "fedmrn.noise"


class SeededNoise(Protocol):
    """Noise vectors by seed; the encoder and the decoder draw them again from the seeds."""

    def __call__(self, seeds: Tensor, *, count: int) -> Tensor:
        """Return noise float32 [c, count], without zeros, for seeds int64 [c]."""


def noise_seeds(seeds: Seeds, number: int, clients: NDArray[np.int64], *, shared: bool) -> list[int]:
    """Return the noise seeds of a round, one per client or one for all. The encoder must receive equal seeds."""
    if shared:
        return [seeds.integer(NOISE_PURPOSE, number)]
    return [seeds.integer(NOISE_PURPOSE, number, int(client)) for client in clients]


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedNoise:
    """Progressive stochastic masking: an update u is trained while a growing part of u is replaced by masked noise n.

    The broadcast w is frozen, u = 0 at the start of the round, n = noise(seed). With S(u, n) = n m,
        binary:  m = 1 with probability clip(u / n, 0, 1), else 0;        u_bar = n clip(u / n, 0, 1)
        signed:  m = 1 with probability clip((u + n) / 2n, 0, 1), else -1;  u_bar = n clip(u / n, -1, 1)
    batch t of T is taken at w + u_hat (Li et al., FedMRN, equations 6 to 10, with corrected brackets in equation 7):
        u_hat = (1 - P) u_bar + P S(u, n),  P ~ Bern(t / T), fresh for each entry;   u = u - lr d loss / d u_hat
    SGD differentiates straight through S and the clip; u is never clamped. The paper has no momentum and no decay.

    Only the entries `masked` of the vector [d] are masked; the others (normalisation, statistics) are trained by `Sgd`.
    Noise entry j belongs to masked[j]. Training returns [c, d]: u, not yet masked, at `masked` and the plain update
    elsewhere. The encoder draws the final mask from u and the same noise n.

    masked: int64 [m], sorted, on the device to train on; FlatModel.compressible
    signed: masks -1, 1 (FedMRNS) instead of 0, 1
    shared_noise: one seed per round instead of one per client, see `noise_seeds`
    progressive: False: P = 1 in every batch ("without PM")
    stochastic: False: m = 1 where u and n have one sign ("without SM"); training then returns S(u, n) at `masked`, from
        which the encoder's Bernoulli samples have probability 0 or 1
    train_masked: False: plain SGD, masks are applied after training only ("FedAvg with SM")

    A client without samples returns zeros; any other client returns zeros only if every gradient was 0. A row of zeros
    must be left out of the sum, because its signed mask would be ±n. Bernoulli samples depend on (seeds, round, client)
    only. Raises ConfigError.
    """

    size: int
    masked: Tensor
    noise: SeededNoise
    learning_rate: float
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    schedule: Schedule = constant
    signed: bool = False
    shared_noise: bool = False
    progressive: bool = True
    stochastic: bool = True
    train_masked: bool = True

    def __post_init__(self) -> None:
        if not len(self.masked) or self.masked.min() < 0 or self.masked.max() >= self.size:
            raise ConfigError(f"masked: {len(self.masked)} entries; must be at least one of 0..{self.size - 1}.")

    def begin(self, start: RoundStart) -> MaskedNoiseWalk:
        return MaskedNoiseWalk(self, start)


class MaskedNoiseWalk(Walk):
    """Clients in training: updates u and noise [c, m], and the stream of Bernoulli samples of each client."""

    def __init__(self, course: MaskedNoise, start: RoundStart) -> None:
        broadcast, clients, number, seeds = start.broadcast, start.clients, start.number, start.seeds
        device = broadcast.device
        self._course, self._start, self._rate = course, broadcast, learning_rate_of_round(course, number)
        self._frozen = broadcast[course.masked]
        self.weights = broadcast.repeat(len(clients), 1)
        self._updates = torch.zeros(len(clients), len(course.masked), device=device)
        self._velocity = torch.zeros_like(self.weights) if course.momentum else None
        words = noise_seeds(seeds, number, clients, shared=course.shared_noise)
        noise = course.noise(torch.tensor(words, dtype=torch.int64, device=device), count=len(course.masked))
        self._noise = noise.expand_as(self._updates)
        self._steps = torch.from_numpy(start.steps).to(device)
        self._coins = ClientUniforms(start, "local.masked_noise")

    def place_weights(self, active: int, step: int) -> None:
        if self._course.train_masked:
            self.weights[:active].index_copy_(1, self._course.masked, self._frozen + self._masked_update(active, step))

    def step(self, active: int, step: int, slope: Tensor) -> None:
        direction = slope
        if self._velocity is not None:
            direction = self._velocity[:active].mul_(self._course.momentum).add_(slope)
        self._updates[:active].sub_(direction.index_select(1, self._course.masked), alpha=self._rate)
        self.weights[:active].sub_(direction, alpha=self._rate)

    def finish(self) -> Tensor:
        updates = self._updates
        if not self._course.stochastic:
            certain = self._mask_factors(_sign_masks(updates, self._noise)).mul_(self._noise)
            updates = torch.where(updates.isfinite() & (self._steps > 0)[:, None], certain, updates)
        return self.weights.sub_(self._start).index_copy_(1, self._course.masked, updates)

    def _masked_update(self, active: int, step: int) -> Tensor:
        """Return u_hat [active, m], the update that the network uses in this batch.

        One uniform v gives both Bernoulli samples: P = 1[v < t / T], and given P = 1, v T / t is uniform again, so that
        m = 1[v < (t / T) p] has probability p given P.
        """
        course, updates, noise = self._course, self._updates[:active], self._noise[:active]
        chances = mask_probabilities(updates, noise, signed=course.signed)
        share = (step + 1) / self._steps[:active, None] if course.progressive else self._steps.new_ones(active, 1)
        uniforms = self._coins.next_uniforms(updates)
        masks = uniforms < share * chances if course.stochastic else _sign_masks(updates, noise)
        clipped = mask_weights(chances, signed=course.signed)
        return torch.where(uniforms < share, self._mask_factors(masks), clipped).mul_(noise)

    def _mask_factors(self, masks: Tensor) -> Tensor:
        """Return the masks as factors of the noise: float32, 0 and 1, or -1 and 1."""
        return mask_weights(masks.to(self._noise.dtype), signed=self._course.signed)


def _sign_masks(updates: Tensor, noise: Tensor) -> Tensor:
    """Return deterministic masks: 1 where update and noise have the same sign, 0 at u = 0."""
    return updates.sign() == noise.sign()


Gradient = Literal["straight-through", "published"]
Optimizer = Literal["sgd", "adam"]
Forward = Literal["coins", "threshold", "mean"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskTraining:
    """Training of mask scores s in R^n; p = sigmoid(s) are the probabilities of a mask over the frozen weights w.

    Every round starts at s = logit(clip(theta, edge, 1 - edge)) of the broadcast theta. Per batch (Isik et al. 2023,
    Algorithm 1):
        m ~ Bern(p), fresh (`coins`, FedPM), m = 1[p >= 1/2] ("threshold", FedMask) or m = p ("mean");
        g = d loss / d m at the weights w * m
        ds = g p (1 - p)   "straight-through": m passes for p;   ds = g p p (1 - p)   "published": as FedPM's code does
    then SGD (with momentum) or Adam on s, state fresh every round. Training returns the move sigmoid(s) - theta, 0 for
    a client without samples. Masks depend on (seeds, round, client) only.
    """

    network: FrozenNetwork
    learning_rate: float
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    schedule: Schedule = constant
    optimizer: Optimizer = "sgd"
    gradient: Gradient = "straight-through"
    forward: Forward = "coins"
    edge: float = 0.01

    @property
    def size(self) -> int:
        return self.network.size

    def begin(self, start: RoundStart) -> MaskWalk:
        return MaskWalk(self, start)

    def standstill(self, steps: int, *, rounds: int, masks: float | None = None) -> str | None:
        """Return a warning if, in rounds of at most `steps` steps, no client can flip any entry after round 1, or none
        at the end of its range; else None.

        Only FedMask's masks under Adam have such a bound: its `steps` steps move a score by at most learning_rate *
        `longest_way(steps)`, if training stays finite. SGD's steps have no bound, and a sampled mask can always flip.

        masks: m, if theta is (i + (m - K) / 2) / m after round 1, i the ones among an odd number K of masks; else None.
            Then |theta - 1/2| >= 1 / 2m, and each score starts at log((m + 1) / (m - 1)) or further from 0. If no
            client flips an entry, theta moves away from 1/2, so the bound holds in all later rounds.
        """
        if self.forward != "threshold" or self.optimizer != "adam":
            return None
        try:
            rate = max(learning_rate_of_round(self, number) for number in range(min(rounds, _MOST_ROUNDS)))
        except OverflowError:
            return None
        # 1.0001 and 1e-5 cover the rounding of scores and probabilities to float32.
        way, end = 1.0001 * rate * longest_way(steps) + 1e-5, -math.log(self.edge / (1 - self.edge))
        nearest = 0.0 if masks is None else end if masks == 1 else min(end, math.log((masks + 1) / (masks - 1)))
        if way >= end or rounds > _MOST_ROUNDS:
            return None
        moved = (
            f"local.learning_rate={self.learning_rate} and at most {steps} steps a round move a mask's score by at "
            f"most {way:.3g}, and "
        )
        advice = "Take more steps (a smaller local.batch_size, more local.epochs) or a larger rate"
        if way < nearest:
            return (
                f"{moved}after round 1 every score starts {nearest:.3g} or further from 0: no client can flip an entry "
                f"of its mask in any later round. {advice}."
            )
        return (
            f"{moved}an entry at the end of its range starts {end:.3g} from 0 (mask.edge={self.edge}): no client can "
            f"flip it. {advice}, or a larger mask.edge."
        )


_MOST_ROUNDS = 100_000
"""Largest number of rounds whose learning rates are compared."""


class MaskWalk(Walk):
    """Clients in training: scores [c, n], the optimiser's state, and the stream of uniforms for each client's masks."""

    def __init__(self, course: MaskTraining, start: RoundStart) -> None:
        self._course, self._start, self._rate = course, start.broadcast, learning_rate_of_round(course, start.number)
        device, clients = start.broadcast.device, start.clients
        scores = torch.logit(start.broadcast.clamp(course.edge, 1 - course.edge))
        self._scores = scores.repeat(len(clients), 1)
        self._probabilities = torch.sigmoid(self._scores)
        self._coins = ClientUniforms(start, "local.coins")
        self._velocity = torch.zeros_like(self._scores) if course.momentum and course.optimizer == "sgd" else None
        self._moments = Moments(self._scores) if course.optimizer == "adam" else None
        self._idle = torch.from_numpy(start.steps == 0).to(device)
        self.weights = torch.empty(len(clients), course.network.model.size, device=device)

    def place_weights(self, active: int, step: int) -> None:
        probabilities = self._probabilities[:active]
        torch.sigmoid(self._scores[:active], out=probabilities)
        self._course.network.weights(self._draw_mask(probabilities), out=self.weights[:active])

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        """Return ds, the gradient of the scores."""
        p = self._probabilities[:active]
        slope = self._course.network.to_mask_gradient(gradient).mul_(p).mul_(1 - p)
        return slope.mul_(p) if self._course.gradient == "published" else slope

    def step(self, active: int, step: int, slope: Tensor) -> None:
        self._scores[:active].sub_(self._direction(slope, step), alpha=self._rate)

    def finish(self) -> Tensor:
        moves = torch.sigmoid(self._scores).sub_(self._start)
        moves[self._idle] = 0.0
        return moves

    def _draw_mask(self, probabilities: Tensor) -> Tensor:
        if self._course.forward == "mean":
            return probabilities
        if self._course.forward == "threshold":
            return probabilities.ge(0.5).to(probabilities.dtype)
        return self._coins.next_uniforms(probabilities).lt(probabilities).to(probabilities.dtype)

    def _direction(self, slope: Tensor, step: int) -> Tensor:
        """Return the optimiser's direction: slope [active, n], with momentum or by Adam."""
        if self._moments is not None:
            return self._moments.direction(slope, step)
        if self._velocity is None:
            return slope
        return self._velocity[: len(slope)].mul_(self._course.momentum).add_(slope)
