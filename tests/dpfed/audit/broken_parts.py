"""Parts of a round that do not do what they say. They exist in the tests only."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from accounting.mechanisms import Gaussian
from accounting.mechanisms.adjacency import Adjacency
from dpfed.compress.fixed_point import Encoded
from dpfed.participation.sampling import FixedSizeCohorts, PoissonCohorts
from dpfed.stages.clip import clip_rows, drop_not_finite
from dpfed.stages.maps import SharedMask, top_indices
from dpfed.stages.masks import PublicTopMask

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


class ClipsWithSlack(Delegating):
    """The clip norm and 1% of it."""

    def bound(self, rows, norm):
        return clip_rows(rows, 1.01 * norm)


class LetsALittleMoreThrough(Delegating):
    """Clips only what is more than 1% beyond the bound."""

    def bound(self, rows, norm):
        before = rows.clone()
        clipped = clip_rows(rows, norm)
        near = torch.linalg.vector_norm(before, dim=1) <= 1.01 * norm
        rows[near] = before[near]
        return clipped


class ForgetsTheLastClient(Delegating):
    """Clips all clients of a group but the last."""

    def bound(self, rows, norm):
        if len(rows) > 1:
            clip_rows(rows[:-1], norm)
        return drop_not_finite(rows)


class TellsTheCount(Delegating):
    """The next clip norm from the count as it is."""

    def next_norm(self, norm, centred_count, round):
        return self._inner.adaptive.next_norm(norm, centred_count, 0.0, self._inner.sampler.expected)


class RemembersTheSum(Delegating):
    """A code that keeps what it decoded, before the noise."""

    def decode(self, *arguments):
        (kept,) = self._rest
        decoded = self._inner.decode(*arguments)
        kept["sum"] = decoded.clone()
        return decoded


class AddsTheSumItself(Delegating):
    """A server that adds a tenth of the mean without noise on top."""

    def apply(self, state, mean_move, *, count, clip_norm):
        (kept,) = self._rest
        leaked = mean_move + 0.1 * kept["sum"] / count
        return self._inner.apply(state, leaked, count=count, clip_norm=clip_norm)


class Clamped(Delegating):
    """Normal draws that end at 3.5."""

    def normal(self, count, purpose, *path, device="cpu"):
        return self._inner.normal(count, purpose, *path, device=device).clamp(-3.5, 3.5)


class Tiled(Delegating):
    """Half as many draws as coordinates, each of them twice."""

    def normal(self, count, purpose, *path, device="cpu"):
        half = self._inner.normal(-(-count // 2), purpose, *path, device=device)
        return half.repeat(2)[:count]


class MaskOfPrivateSamples(PublicTopMask):
    """Trains for the mask on the clients' own samples."""

    def for_round(self, weights, round, seeds):
        size, own = len(self.labels), self.trainer
        update = own.train_on(
            own.inputs[:size], own.labels[:size], weights, round=round, seeds=seeds, purpose="public.shuffle"
        )
        return SharedMask(size=self.size, indices=top_indices(update[None], self.kept)[0], scale=1.0)


class FromASeed:
    """Calls itself secure, and draws what a seed gives."""

    def bits(self, count, purpose, *path):
        return np.random.default_rng(len(purpose)).integers(0, 1 << 64, count, dtype=np.uint64)

    def subset(self, size, population, purpose, *path):
        return np.arange(size)


class Of32Bits(FromASeed):
    """Every draw from 32 bits of the operating system's."""

    def bits(self, count, purpose, *path):
        words = np.random.SeedSequence(int.from_bytes(os.urandom(4), "little")).generate_state(count, np.uint64)
        return np.asarray(words)


@dataclass(frozen=True, kw_only=True)
class FixedWithRepeats:
    """Draws with replacement."""

    clients: int
    cohort: int

    @property
    def law(self):
        return FixedSizeCohorts(clients=self.clients, cohort=self.cohort).law

    @property
    def expected(self):
        return float(self.cohort)

    def sample(self, randomness, round):
        drawn = randomness.uniform(self.cohort, "cohort", round) * self.clients
        return np.sort(drawn.astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class AlwaysTheSame(FixedWithRepeats):
    """Draws one cohort, for all rounds."""

    def sample(self, randomness, round):
        return FixedSizeCohorts(clients=self.clients, cohort=self.cohort).sample(randomness, 0)


@dataclass(frozen=True, kw_only=True)
class NeverEmpty:
    """Poisson sampling that tries again where nobody was drawn."""

    clients: int
    cohort: int

    @property
    def law(self):
        return PoissonCohorts(clients=self.clients, cohort=self.cohort).law

    @property
    def expected(self):
        return float(self.cohort)

    def sample(self, randomness, round):
        for again in range(1000):
            drawn = PoissonCohorts(clients=self.clients, cohort=self.cohort).sample(randomness, round + 1000 * again)
            if len(drawn):
                return drawn
        raise AssertionError("nobody")


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
