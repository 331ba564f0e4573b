"""Trials of one round in two neighbouring worlds, and the scores that an adversary would give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.audit import thresholds
from dpfed.audit.claims import Claim
from dpfed.audit.coin_ratios import CoinRatio
from dpfed.audit.neighbours import Neighbours
from dpfed.audit.one_round import PUBLIC_SEEDS, OneRound
from dpfed.audit.thresholds import Thresholds
from dpfed.compress.coins import Coins

Floats = NDArray[np.float64]

_AT_ONCE = 250
_PILOT = 500


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A batch of trials: what is released [n, k], what the code was given [n, k], and the sum before decoding."""

    released: Tensor
    coded: Tensor
    total: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoWorlds:
    """One pair of worlds. `noisy` draws afresh in every trial; `gap` is that of the noiseless releases over the claimed
    sensitivity, 1 where the pair reaches it."""

    pair: Neighbours
    claim: Claim
    noisy: OneRound
    base: Tensor
    direction: Tensor
    rest: Tensor | None
    ratio: CoinRatio | None
    gap: float

    @classmethod
    def of(cls, one: OneRound, claim: Claim, pair: Neighbours) -> TwoWorlds:
        """Prepare the pair: noiseless releases, scores. `one` draws from a source that is fresh in every call."""
        if pair.broadcast is not None:
            one = replace(one, state=replace(one.state, broadcast=pair.broadcast))
        ids = np.arange(PUBLIC_SEEDS)
        rest = None if one.tossed or claim.seen == "uploads" else one.others(pair.rest, ids)
        if claim.coins is not None:
            return _of_coins(cls, one, claim, pair)
        quiet = one.quiet
        if claim.seen == "uploads":
            sides = [_rows(quiet, update, ids) for update in (pair.other, pair.one)]
        else:
            beside = quiet.others(pair.rest, ids)
            sides = [quiet.released(quiet.own(update, ids) + beside) for update in (pair.other, pair.one)]
        difference = (sides[1] - sides[0]).double()
        lengths = torch.linalg.vector_norm(difference, dim=1)
        return cls(
            pair=pair,
            claim=claim,
            noisy=one,
            base=sides[0].double(),
            direction=difference / lengths.clamp_min(1e-300)[:, None],
            rest=rest,
            ratio=None,
            gap=float(lengths.mean()) / claim.sensitivity,
        )

    def scores(self, world: int, trials: int) -> dict[str, Floats]:
        """Of each kind that the pair asks for, one score a trial [trials]."""
        update, found = (self.pair.other, self.pair.one)[world], []
        for first in range(0, trials, _AT_ONCE):
            ids = np.arange(first, min(first + _AT_ONCE, trials)) % PUBLIC_SEEDS
            seen = self._trials(update, ids)
            found.append({kind: self._score(kind, seen, torch.from_numpy(ids)) for kind in self.pair.scores})
        return {kind: np.concatenate([batch[kind] for batch in found]) for kind in self.pair.scores}

    def cuts(self, kind: str, trials: int, alpha: float, delta: float | None) -> Thresholds:
        """Where to cut: by the claimed law; for what a lossy code lets through, by a pilot that is not counted."""
        centre, scale, mu = 0.0, 1.0, self.claim.mu
        if kind == "ratio":
            assert self.ratio is not None
            low, high, scale = self.ratio.moments
            centre, mu = low, (high - low) / scale if scale else None
        elif kind != "filter":
            pilot = [self.scores(world, min(_PILOT, trials))[kind] for world in (0, 1)]
            centre, scale = float(pilot[0].mean()), float(np.std(np.concatenate(pilot))) or 1.0
            mu = float(pilot[1].mean() - centre) / scale
        if mu is None or not 1e-6 < abs(mu) < math.inf or not math.isfinite(scale):
            return Thresholds(values=(0.0,), origin="no noise, or nothing to separate")
        if mu > 0 and scale == 1.0 and centre == 0.0:
            return thresholds.claimed_gaussian(mu, trials=trials, alpha=alpha, delta=delta)
        unit = thresholds.claimed_gaussian(abs(mu), trials=trials, alpha=alpha, delta=delta)
        sign = 1.0 if mu > 0 else -1.0
        values = tuple(centre + scale * sign * value for value in unit.values)
        return Thresholds(values=values, origin="a pilot" if kind != "ratio" else "the claimed coins")

    def _trials(self, update: Tensor | None, ids: NDArray[np.int64]) -> Seen:
        one = self.noisy
        if self.claim.seen == "uploads":
            given = torch.zeros_like(self.pair.one) if update is None else update
            sent = one.upload(given.expand(len(ids), -1), ids * one.clients)
            return Seen(released=sent.arrived, coded=sent.coded, total=sent.arrived)
        own = one.own(update, ids)
        total = own + (one.others(self.pair.rest, ids) if self.rest is None else self.rest[torch.from_numpy(ids)])
        released = total if self.ratio is not None else one.released(total)
        return Seen(released=released, coded=own, total=total)

    def _score(self, kind: str, seen: Seen, ids: Tensor) -> Floats:
        if kind == "ratio":
            assert self.ratio is not None
            return self.ratio.scores(seen.total)
        if kind == "support":
            kept = (seen.released != 0).double()
            scores = kept @ torch.sign(self.direction[0])
        else:
            rows = seen.coded if kind == "filter" and self.claim.seen == "uploads" else seen.released
            scores = ((rows.double() - self.base[ids]) * self.direction[ids]).sum(dim=1) / self.claim.noise_std
        return np.asarray(scores.numpy(), dtype=np.float64)


def _rows(one: OneRound, update: Tensor | None, ids: NDArray[np.int64]) -> Tensor:
    """What the code is given of an update, once a trial."""
    given = torch.zeros(one.parts.local.course.size) if update is None else update
    return one.upload(given.expand(len(ids), -1), ids * one.clients).coded


def _of_coins(make: Callable[..., TwoWorlds], one: OneRound, claim: Claim, pair: Neighbours) -> TwoWorlds:
    """The law of sums of coins is known: the claimed one, from the bounded moves."""
    code, mechanism = one.parts.code, claim.coins
    assert isinstance(code, Coins)
    assert mechanism is not None
    assert pair.other is not None
    client = np.zeros(1, dtype=np.int64)
    ends = [
        one.origin.double() + one.upload(update[None], client).bounded[0].double()
        for update in (pair.one, pair.other, pair.rest)
    ]
    others = one.clients - 1 if claim.seen == "sum" else 0
    moved = ends[0].clamp(code.edge, 1 - code.edge) - ends[1].clamp(code.edge, 1 - code.edge)
    gaps = [
        float(norm) / limit
        for norm, limit in (
            (moved.norm(), mechanism.sensitivity(mechanism.l2_clip)),
            (moved.abs().max(), mechanism.sensitivity(mechanism.linf_clip)),
        )
        if limit is not None
    ]
    return make(
        pair=pair,
        claim=claim,
        noisy=one,
        base=torch.zeros(0),
        direction=torch.zeros(0),
        rest=None,
        ratio=CoinRatio.of(code, ends[0], ends[1], ends[2], others),
        gap=max(gaps),
    )
