"""Stages and other parts of a round that do not do what they say. They exist in the tests only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch

from accounting.mechanisms import Gaussian
from accounting.mechanisms.adjacency import Adjacency
from dpfed.compress.fixed_point import EncodedRows, FixedPoint
from dpfed.mechanisms.bernoulli import PrivateCoins, bernoulli_draws
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.randomness import Randomness
from dpfed.server.rules import Averaging
from dpfed.stages.clip import Clip, clip_rows, count_clipped, drop_not_finite
from dpfed.stages.project import Project, PublicTopMask, SharedMask, top_indices

KEPT = 40


def fields_of(part):
    """What a dataclass is made of, to make one of another kind of it."""
    return {one.name: getattr(part, one.name) for one in fields(part)}


def kept_as_it_is(rows, now):
    """Without a bound."""
    return count_clipped(drop_not_finite(rows), now)


# --- bounds


@dataclass(frozen=True, kw_only=True)
class ClipsBeforeTheScale(Clip):
    """Clips updates, then takes them times d/k."""

    scale: float

    def client(self, rows, ids, now):
        return super().client(rows.div_(self.scale), ids, now).mul_(self.scale)


@dataclass(frozen=True, kw_only=True)
class ClipsEveryLayer(Clip):
    """The whole clip norm for every layer."""

    layout: tuple

    def client(self, rows, ids, now):
        for block in self.layout:
            part = rows[:, block.start : block.stop].clone()
            rows[:, block.start : block.stop] = clip_rows(part, now.clip_norm).rows
        return kept_as_it_is(rows, now)


class ClipsWithSlack(Clip):
    """The clip norm and 1% of it."""

    def client(self, rows, ids, now):
        return count_clipped(clip_rows(rows, 1.01 * now.clip_norm), now)


class ClipsOthers(Clip):
    """Leaves the rows that `spared` names as they are."""

    def client(self, rows, ids, now):
        before = rows.clone()
        spared, rows = self.spared(before, now), super().client(rows, ids, now)
        rows[spared] = before[spared]
        return rows


class LetsALittleMoreThrough(ClipsOthers):
    """Clips only what is more than 1% beyond the bound."""

    def spared(self, rows, now):
        return torch.linalg.vector_norm(rows, dim=1) <= 1.01 * now.clip_norm


class ForgetsTheLastClient(Clip):
    """Clips all clients of a group but the last."""

    def client(self, rows, ids, now):
        if len(rows) > 1:
            clip_rows(rows[:-1], now.clip_norm)
        return kept_as_it_is(rows, now)


class Unbounded(Clip):
    """Clips nothing."""

    def client(self, rows, ids, now):
        return kept_as_it_is(rows, now)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClipsBeforeTheMap(Project):
    """Clips the update, in place of what is sent."""

    norm: float

    def client(self, rows, ids, now):
        return super().client(clip_rows(rows, self.norm).rows, ids, now)


class ShowsTheCount(Clip):
    """The next clip norm from the count as it is."""

    def next_state(self, state, now):
        return replace(
            state, clip_norm=self.adaptive.moved_norm(now.clip_norm, now.tally.inside - now.tally.counted / 2)
        )


# --- noise, and what is charged for it


def with_part(noise, part):
    """Gaussian noise with this part of its multiplier."""
    return replace(noise, noise_multiplier=part * noise.noise_multiplier)


class ChosenBeforeTheNoise(GaussianNoise):
    """Keeps the k largest entries of the row as it was before the noise."""

    def client(self, rows, ids, now):
        kept = torch.zeros_like(rows).scatter_(1, rows.abs().topk(KEPT, dim=1).indices, 1.0)
        return super().client(rows, ids, now) * kept


class ChargesNothingForNobody(GaussianNoise):
    def release(self, now):
        return super().release(now) if now.uploads else None


class HalfCharged(GaussianNoise):
    """Counts C as what replacing a client changes."""

    def release(self, now):
        half = Gaussian(noise_multiplier=2 * self.noise.noise_multiplier, adjacency=Adjacency.REPLACE_ONE)
        return replace(super().release(now), mechanism=half)


class WithoutFloor(PrivateCoins):
    """Coins of any probability, charged as those of probabilities between floor and 1 - floor."""

    @property
    def edge(self):
        return 0.0


class DrawsWithoutFloor(PrivateCoins):
    """Coins of any probability, of a stage that states its floor wherever it is asked."""

    def _draw_samples(self, reference, row, purpose, *path):
        return bernoulli_draws(reference, row, 0.0, self.randomness, purpose, *path)


# --- a sum that goes past the noise


@dataclass(frozen=True, kw_only=True)
class RemembersTheSum:
    """A stage that keeps the sum as it passes at the server, before the noise."""

    kept: list = field(default_factory=list)

    def client(self, rows, ids, now):
        return rows

    def server(self, total, now):
        self.kept[:] = [total.clone()]
        return total


@dataclass(frozen=True, kw_only=True, eq=False)
class AddsTheSumItself(Averaging):
    """A server that adds a part of the mean without noise on top."""

    kept: list
    part: float

    def step(self, state, mean_move, *, count):
        return super().step(state, mean_move + self.part * self.kept[0] / count, count=count)


# --- randomness


@dataclass(frozen=True)
class WrongNormals:
    """Other normal draws than those of the source; nothing else is drawn."""

    source: Randomness

    def normal(self, count, purpose, *path, device="cpu"):
        raise NotImplementedError


@dataclass(frozen=True)
class Changed(WrongNormals):
    """Normal draws, changed by a function of them."""

    change: Callable

    def normal(self, count, purpose, *path, device="cpu"):
        return self.change(self.source.normal(count, purpose, *path, device=device))


def tiled(values):
    """Half as many draws as coordinates, each of them twice."""
    return values[: len(values) // 2].repeat(2) if len(values) > 1 and len(values) % 2 == 0 else values


def clamped(values):
    """Normal draws that end at 3.5."""
    return values.clamp(-3.5, 3.5)


class ForgetsTheRound(WrongNormals):
    """The same draws in every round."""

    def normal(self, count, purpose, *path, device="cpu"):
        return self.source.normal(count, purpose, *path[1:], device=device)

    def bits(self, count, purpose, *path):
        return self.source.bits(count, purpose, *path[1:])


class MaskOfPrivateSamples(PublicTopMask):
    """Trains for the mask on the clients' own samples."""

    def for_round(self, weights, number, seeds):
        size, own = len(self.labels), self.trainer
        update = own.train_on(
            own.inputs[:size], own.labels[:size], weights, number=number, seeds=seeds, purpose="public.shuffle"
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


class RoundsAwayFromZero(FixedPoint):
    """Rounds every entry up in magnitude, and redraws nothing."""

    def encode(self, rows, *, rotation_seed, **_):
        signs = self._signs(rotation_seed, rows)
        turned = torch.stack([self._rotate_row(row, signs) for row in rows]) * self.steps_per_unit
        return EncodedRows(integers=(turned.sign() * turned.abs().ceil()).int(), zeroed_rows=0)
