"""Uploads whose law is known: delta(epsilon) of two given uploads without sampling.

Masks, randomly rounded levels and masked noise are made of independent coordinates, each with a few outcomes of known
probability. Their privacy losses add up, so the law of the sum is a convolution.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.bernoulli.exact import LARGEST_LAW, channel_epsilon, channel_profile
from accounting.compose.pld import LossLaws
from accounting.compose.profiles import Profile, profile_of_distribution
from accounting.errors import UnsupportedMechanism
from dpfed.audit.loss_sums import spacing, sum_of_losses
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

_EXACT_OUTCOMES = 20_000


@dataclass(frozen=True, kw_only=True)
class KnownPair:
    """Two laws of independent coordinates: outcome k of coordinate i has probability p[i, k] or q[i, k].

    [d, outcomes], rows that sum to 1. The worlds are unordered: everything here is the worse of both orders.
    """

    p: Floats
    q: Floats

    def __post_init__(self) -> None:
        p, q = (np.atleast_2d(np.asarray(table, dtype=float)) for table in (self.p, self.q))
        if p.shape != q.shape or p.ndim != 2 or not p.size:
            raise ConfigError(f"p of shape {p.shape}, q of shape {q.shape}: must be tables [d, outcomes] of one shape.")
        for name, table in (("p", p), ("q", q)):
            if not np.all(table >= 0) or not np.allclose(table.sum(axis=1), 1.0, rtol=0, atol=1e-9):
                raise ConfigError(f"{name}: rows must be probabilities that sum to 1.")
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "q", q)

    @property
    def delta_at_infinity(self) -> float:
        """The probability of an outcome that the other world cannot have: 1 - prod_i (1 - P_i(Q_i = 0))."""

        def impossible(p: Floats, q: Floats) -> float:
            with np.errstate(divide="ignore"):
                return float(-np.expm1(np.log1p(-np.minimum(np.where(q == 0, p, 0.0).sum(axis=1), 1.0)).sum()))

        return max(impossible(self.p, self.q), impossible(self.q, self.p))

    @property
    def is_exact(self) -> bool:
        """Whether the law is small enough to be enumerated: coins of few different pairs (p, q)."""
        return self.p.shape[1] == 2 and _outcomes(self.p[:, 1], self.q[:, 1]) <= min(LARGEST_LAW, _EXACT_OUTCOMES)

    def profile(self) -> Profile:
        """delta at every epsilon. Exact to rounding if `is_exact`; else an upper bound, see `epsilon`."""
        if self.is_exact:
            ones = {"p": self.p[:, 1], "q": self.q[:, 1]}
            return Profile(above_zero=lambda eps: channel_profile(eps, **ones), method="exact")
        laws, slack = self._composed()
        return profile_of_distribution(laws, slack=slack, method="pld")

    def epsilon(self, *, delta: float) -> float:
        """The smallest epsilon >= 0 at `delta`, both orders.

        Exact where `is_exact` (the count of ones in each group of equal coordinates says all). Otherwise the composed
        losses on a grid: an atom between two grid points is split so that both its probabilities are kept, so the atom
        is a function of its parts and the split pair dominates. Direction of error: upper bound, about 1e-4 relative
        (the split adds at most spacing^2 / 4 to a coordinate's variance of loss). Errors: UnsupportedMechanism where
        no epsilon is finite, which says how large delta stays.
        """
        target = require.open_probability(delta=delta)
        beyond = self.delta_at_infinity
        if beyond > target:
            raise UnsupportedMechanism(
                f"no finite epsilon: delta(inf) = {beyond:.4g}, the probability of an upload that the other world "
                f"cannot send, is above delta = {target:g}. Keep every outcome's probability above a floor."
            )
        if self.is_exact:
            return channel_epsilon(target, p=self.p[:, 1], q=self.q[:, 1])
        laws, slack = self._composed()
        if target <= 2 * slack:
            raise UnsupportedMechanism(f"delta={target:g}: the convolution is good to {slack:.1e}. Raise delta.")
        return laws.smallest_epsilon(target - slack)

    def _composed(self) -> tuple[LossLaws, float]:
        at = spacing(self.p, self.q)
        laws = LossLaws(orders=(sum_of_losses(self.p, self.q, at), sum_of_losses(self.q, self.p, at)))
        return laws, 1e-14 + 2e-16 * len(self.p)


def masks(p: ArrayLike, q: ArrayLike) -> KnownPair:
    """Masks of independent coins with P(1) = p [d] in one world, q [d] in the other (FedPM: both in [c, 1-c])."""
    ones = [np.atleast_1d(np.asarray(given, dtype=float)) for given in (p, q)]
    if any(given.ndim != 1 or not np.all((given >= 0) & (given <= 1)) for given in ones):
        raise ConfigError("p, q: must be probabilities in [0, 1], one a coordinate.")
    return KnownPair(p=np.stack([1 - ones[0], ones[0]], axis=1), q=np.stack([1 - ones[1], ones[1]], axis=1))


def rounded(x: ArrayLike, y: ArrayLike) -> KnownPair:
    """Stochastic rounding to whole numbers of x [d] and of y [d], in units of the step; the scale is public.

    floor(x) + Bern(x - floor(x)). Without noise an epsilon is finite only where both lie strictly inside one step.
    """
    one, other = (np.atleast_1d(np.asarray(given, dtype=float)) for given in (x, y))
    if one.shape != other.shape or one.ndim != 1 or not np.isfinite(one).all() or not np.isfinite(other).all():
        raise ConfigError(f"x of shape {one.shape}, y of shape {other.shape}: must be finite numbers, equally many.")
    # Outcomes: x's two levels, then y's two where they are not x's.
    lower, below = np.floor(one), np.floor(other)
    p = np.stack([1 - (one - lower), one - lower, np.zeros_like(one), np.zeros_like(one)], axis=1)
    q = np.zeros_like(p)
    for level, mass in ((below, 1 - (other - below)), (below + 1, other - below)):
        column = np.where(level == lower, 0, np.where(level == lower + 1, 1, np.where(level == below, 2, 3)))
        q[np.arange(len(q)), column] += mass
    used = np.any((p > 0) | (q > 0), axis=0)
    used[:2] = True
    return KnownPair(p=p[:, used], q=q[:, used])


def masked_noise(
    x: ArrayLike, y: ArrayLike, noise: ArrayLike, *, signed: bool = False, floor: float = 0.0
) -> KnownPair:
    """FedMRN masks of updates x and y [d] over the same public noise n [d]: P(1) = clip(u/n, floor, 1 - floor).

    signed: (u + n) / (2 n) in place of u / n. floor=0 usually leaves no finite epsilon: an update of 0 never gives a 1.
    """
    n = np.asarray(noise, dtype=float)
    if not 0 <= require.real("a number in [0, 1/2]", floor=floor) <= 0.5 or not np.all(n != 0):
        raise ConfigError(f"floor={floor}, noise: the floor must be in [0, 1/2] and no entry of the noise 0.")
    ratios = [np.asarray(update, dtype=float) / n for update in (x, y)]
    ones = [np.clip((ratio + 1) / 2 if signed else ratio, floor, 1 - floor) for ratio in ratios]
    return masks(*ones)


def _outcomes(p: Floats, q: Floats) -> float:
    _, counts = np.unique(np.stack([p, q], axis=1)[p != q], axis=0, return_counts=True)
    return math.prod(float(n) + 1 for n in counts)
