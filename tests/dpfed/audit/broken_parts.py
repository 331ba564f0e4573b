"""Parts of a round that do not do what they say. They exist in the tests only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from accounting.adjacency import Adjacency
from accounting.mechanisms import Gaussian
from dpfed.compress.fixed_point import Encoded
from dpfed.privacy.clip import clip_rows, drop_not_finite
from dpfed.sampling import FixedSizeCohorts, PoissonCohorts

KEPT = 40


class Claimed:
    """Does what one privacy does, and charges what another would."""

    def __init__(self, acts, claims):
        self._acts, self._claims = acts, claims

    def __getattr__(self, name):
        return getattr(self._acts, name)

    def release(self, *arguments):
        return self._claims.release(*arguments)


class Delegating:
    def __init__(self, inner, *rest):
        self._inner, self._rest = inner, rest

    def __getattr__(self, name):
        return getattr(self._inner, name)


class ClipsBeforeTheScale(Delegating):
    """Clips updates, then takes them times d/k."""

    def bound(self, rows, norm):
        (scale,) = self._rest
        clipped = clip_rows(rows.div_(scale), norm)
        clipped.rows.mul_(scale)
        return clipped


class ClipsEveryLayer(Delegating):
    """The whole clip norm for every layer."""

    def bound(self, rows, norm):
        (layout,) = self._rest
        for block in layout:
            rows[:, block.start : block.stop] = clip_rows(rows[:, block.start : block.stop].clone(), norm).rows
        return drop_not_finite(rows)


class Unbounded(Delegating):
    def bound(self, rows, norm):
        return drop_not_finite(rows)


class ClipsBeforeTheMap(Delegating):
    """A round's map that clips the update, in place of what is sent."""

    def for_round(self, *arguments):
        return ClippedFirst(self._inner.for_round(*arguments), *self._rest)


class ClippedFirst(Delegating):
    def forward(self, updates, clients):
        return self._inner.forward(clip_rows(updates, *self._rest).rows, clients)


class ChosenBeforeTheNoise(Delegating):
    """Keeps the k largest entries of the row as it was before the noise."""

    def share(self, rows, clients, norm, round):
        kept = torch.zeros_like(rows).scatter_(1, rows.abs().topk(KEPT, dim=1).indices, 1.0)
        return self._inner.share(rows, clients, norm, round) * kept


class ChargesNothingForNobody(Delegating):
    def release(self, norm, round, sent, uploads):
        return self._inner.release(norm, round, sent, uploads) if uploads else None


class HalfCharged(Delegating):
    """Counts C as what replacing a client changes."""

    def release(self, *arguments):
        release = self._inner.release(*arguments)
        half = Gaussian(noise_multiplier=2 * release.mechanism.noise_multiplier, adjacency=Adjacency.REPLACE_ONE)
        return replace(release, mechanism=half)


class ForgetsTheRound(Delegating):
    """Randomness that is the same in every round."""

    def normal(self, count, purpose, *path, device="cpu"):
        return self._inner.normal(count, purpose, *path[1:], device=device)


class RoundsAwayFromZero(Delegating):
    """Rounds every entry up in magnitude, and redraws nothing."""

    def encode(self, rows, *, clip_norm, rotation_seed, randomness, clients, round):
        signs = self._inner._signs(rotation_seed, rows)
        turned = torch.stack([self._inner._rotated(row, signs) for row in rows]) * self._inner.steps_per_unit
        return Encoded(integers=(turned.sign() * turned.abs().ceil()).int(), gave_up=0)


@dataclass(frozen=True, kw_only=True)
class FixedSizeCalledPoisson:
    clients: int
    cohort: int

    @property
    def law(self):
        return PoissonCohorts(clients=20, cohort=self.cohort).law

    @property
    def expected(self):
        return float(self.cohort)

    def sample(self, randomness, round):
        return FixedSizeCohorts(clients=self.clients, cohort=self.cohort).sample(randomness, round)


class PoissonOfFixedRate(FixedSizeCalledPoisson):
    """The twin: a client more or less leaves everybody's coin as it was."""

    def sample(self, randomness, round):
        return np.flatnonzero(randomness.uniform(self.clients, "cohort", round) < self.law.probability)
