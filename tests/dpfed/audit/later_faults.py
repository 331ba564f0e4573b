"""Sixteen faults of whole rounds that no check was written for: broken over rounds, by place, or in few coordinates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from dpfed.audit.round.one_round import OneRound
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.stages.clip import Clip, clip_rows, count_clipped

from ...rounds import with_after
from .broken_parts import ClipsOthers, WrongNormals, fields_of, with_part
from .broken_rounds import changed_draws, other_draws, other_stage
from .fault_layers import Case, case

WIDE = "model.hidden=[8]"


# --- noise


def last_ten(values):
    """No noise in the last ten coordinates."""
    return values.index_fill(0, torch.arange(len(values))[-10:], 0.0)


def sixth(values):
    """No noise in coordinate 5."""
    return values.index_fill(0, torch.tensor([5]), 0.0)


def sometimes_none(values):
    """Every hundredth draw, by chance, is zero; the others are larger, so that the variance is as claimed."""
    return torch.where(values.abs() * 1e4 % 100 < 1, 0.0, values) / 0.99**0.5


class Anticorrelated(WrongNormals):
    """The noise of every odd round is the negative noise of the round before."""

    def normal(self, count, purpose, *path, device="cpu"):
        number = path[0] if path else 0
        sign = -1.0 if number % 2 else 1.0
        return sign * self.source.normal(count, purpose, number - number % 2, *path[1:], device=device)


class PartlyAnticorrelated(WrongNormals):
    """The noise of a round has correlation -0.5 with that of the round before."""

    def normal(self, count, purpose, *path, device="cpu"):
        number = path[0] if path else 0
        one, other = (
            self.source.normal(count, purpose, at, *path[1:], device=device) for at in (number, max(number - 1, 0))
        )
        return one if number == 0 else (one - other) / 2**0.5


class NoneInRoundSeven(WrongNormals):
    def normal(self, count, purpose, *path, device="cpu"):
        return self.source.normal(count, purpose, *path, device=device) * (0.0 if path and path[0] == 7 else 1.0)


class Neighbouring(WrongNormals):
    """Neighbouring coordinates have correlation 0.5, at the claimed size."""

    def normal(self, count, purpose, *path, device="cpu"):
        drawn = self.source.normal(count + 1, purpose, *path, device=device)
        return (drawn[1:] + drawn[:-1]) / 2**0.5


class SmallerForLargeSums(GaussianNoise):
    """Half of the noise where the sum is longer than the clip norm."""

    def server(self, total, now):
        loud = bool(torch.linalg.vector_norm(total) > now.clip_norm)
        return _with(self, 0.5 if loud else 1.0).server(total, now)


class SeededByTheCount(GaussianNoise):
    """Noise whose seed has the number of rows inside the clip norm."""

    def server(self, total, now):
        drawn = GaussianNoise(**fields_of(self) | {"randomness": _ByCount(self.randomness, now.tally)})
        return drawn.server(total, now)


@dataclass(frozen=True)
class _ByCount(WrongNormals):
    tally: object = None

    def normal(self, count, purpose, *path, device="cpu"):
        return self.source.normal(count, purpose, *path, int(self.tally.inside), device=device)


def _with(noise, part):
    return GaussianNoise(**fields_of(noise) | {"noise": with_part(noise.noise, part)})


# --- rows


@dataclass(frozen=True, kw_only=True)
class CentresRows:
    """Subtracts a running mean of all bounded rows so far from a bounded row."""

    mean: list = field(default_factory=lambda: [0.0])

    def client(self, rows, ids, now):
        for row in rows:
            before = self.mean[0]
            self.mean[0] = 0.9 * before + 0.1 * row.clone()
            row -= before
        return rows

    def server(self, total, now):
        return total


@dataclass(frozen=True, kw_only=True)
class ErrorFeedbackByPlace:
    """Adds to a bounded row what the row at the same place of the last group lost by rounding."""

    kept: dict = field(default_factory=dict)

    def client(self, rows, ids, now):
        step = now.clip_norm / 10
        for place, row in enumerate(rows):
            row += self.kept.get(place, 0.0)
            rounded = torch.round(row / step) * step
            self.kept[place] = row - rounded
            row.copy_(rounded)
        return rows

    def server(self, total, now):
        return total


class KeepsNotFinite(ClipsOthers):
    def spared(self, rows, now):
        return torch.isnan(rows).any(dim=1)


class NoClipInRoundSeven(ClipsOthers):
    def spared(self, rows, now):
        return torch.full((len(rows),), now.number == 7)


class NoClipAbove(ClipsOthers):
    def spared(self, rows, now):
        return torch.linalg.vector_norm(rows, dim=1) > 5_000 * now.clip_norm


class ClipsByTheMean(Clip):
    """Clips a row to the mean norm of its group, where that is larger than the clip norm."""

    def client(self, rows, ids, now):
        mean = float(torch.linalg.vector_norm(rows, dim=1).nan_to_num(0.0, 0.0, 0.0).clamp(max=1e6).mean())
        return count_clipped(clip_rows(rows, max(now.clip_norm, 0.5 * mean)), now)


# --- rounds


def _after_clip(made):
    def make():
        twin = case("dp-fedavg", WIDE)
        return twin, twin.changing(lambda stages: with_after(stages, Clip, made()))

    return make


LATER_FAULTS = {
    "last ten coordinates without noise": changed_draws(last_ten, WIDE),
    "one coordinate without noise": changed_draws(sixth, WIDE),
    "noise 1% short": changed_draws(lambda values: 0.99 * values, WIDE),
    "noise of odd rounds is that of the round before, negative": other_draws(Anticorrelated, WIDE),
    "noise has correlation -0.5 with the round before": other_draws(PartlyAnticorrelated, WIDE),
    "no noise in round 7": other_draws(NoneInRoundSeven, WIDE),
    "neighbouring coordinates share half of their noise": other_draws(Neighbouring, WIDE),
    "every hundredth draw of noise is zero": changed_draws(sometimes_none, WIDE),
    "half of the noise where the sum is long": other_stage(GaussianNoise, SmallerForLargeSums, WIDE),
    "noise seeded by the number of rows inside the clip": other_stage(GaussianNoise, SeededByTheCount, WIDE),
    "rows centred by a running mean": _after_clip(CentresRows),
    "error feedback kept by place": _after_clip(ErrorFeedbackByPlace),
    "rows with NaN are kept": other_stage(Clip, KeepsNotFinite, WIDE),
    "no clip in round 7": other_stage(Clip, NoClipInRoundSeven, WIDE),
    "rows above 5,000 clip norms are not clipped": other_stage(Clip, NoClipAbove, WIDE),
    "clipped to half the mean norm of the group": other_stage(Clip, ClipsByTheMean, WIDE),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenRound(OneRound):
    """A round that stays broken when its source of randomness is replaced, as the audit does."""

    origin: Case

    def with_randomness(self, randomness):
        return replace(self, method=self.origin.drawing_from(randomness).method)


def audited_round(origin):
    """The round of a case, as `audit_round` takes it."""
    one = origin.one_round
    return BrokenRound(method=one.method, state=one.state, seeds=one.seeds, clients=one.clients, origin=origin)
