"""Uploads whose law is known: delta(epsilon) of two given uploads without sampling.

Masks, randomly rounded levels and masked noise are made of independent coordinates, each with a few outcomes of known
probability. Their privacy losses add up, so the law of the sum is a convolution.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import loss_grid, require
from accounting.bernoulli_exact import LARGEST_LAW, channel_epsilon, channel_profile
from accounting.errors import UnsupportedMechanism
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

_LARGEST_GRID = 1_000_000
_BROADENING = 0.01  # grid spacing over the root mean square spread of one coordinate's loss
_CUT = 1e-16  # tails that one convolution moves to safer places
_EXACT_OUTCOMES = 200_000


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

    def profile(self, epsilon: ArrayLike) -> Floats:
        """delta at `epsilon` (real, any shape). Exact to rounding if `is_exact`; else an upper bound, see `epsilon`."""
        eps = np.asarray(epsilon, dtype=float)
        if np.isnan(eps).any():
            raise ConfigError("epsilon: must be real numbers, not NaN.")
        if self.is_exact:
            return np.asarray(channel_profile(eps, p=self.p[:, 1], q=self.q[:, 1]))
        law, slack = self._composed()
        values = [max(float(law.get_delta_for_epsilon(abs(e))), 0.0) for e in eps.ravel().tolist()]
        size, delta = np.abs(eps), np.minimum(np.array(values) + slack, 1.0).reshape(eps.shape)
        return np.asarray(np.where(eps >= 0, delta, -np.expm1(-size) + np.exp(-size) * delta))

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
        law, slack = self._composed()
        if target <= 2 * slack:
            raise UnsupportedMechanism(f"delta={target:g}: the convolution is good to {slack:.1e}. Raise delta.")
        return loss_grid.smallest_epsilon(law.get_delta_for_epsilon, target - slack) * (1 + 1e-12)

    def _composed(self) -> tuple[Any, float]:
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        spacing = _spacing(self.p, self.q)
        forth, back = _sum_of_losses(self.p, self.q, spacing), _sum_of_losses(self.q, self.p, spacing)
        return PrivacyLossDistribution(forth, back), 1e-14 + 2e-16 * len(self.p)


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


def _losses(p: Floats, q: Floats) -> Floats:
    """log p/q; +inf where only q is 0, -inf where p is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log(p) - np.log(q)
    return np.where(p > 0, loss, -np.inf)


def _spacing(p: Floats, q: Floats) -> float:
    """Fine against one coordinate's spread of loss, coarse enough for the sum's support to fit in memory."""
    widths, variances = [], []
    for one, other in ((p, q), (q, p)):
        loss = _losses(one, other)
        finite = np.where(np.isfinite(loss), loss, 0.0)
        mean = (one * finite).sum(axis=1, keepdims=True)
        variances.append(float((one * np.square(finite - mean) * np.isfinite(loss)).sum()))
        widths.append(float((finite.max(axis=1) - finite.min(axis=1)).sum()))
    spread = math.sqrt(max(variances) / len(p))
    return max(_BROADENING * spread, min(max(widths), 60 * math.sqrt(max(variances))) / _LARGEST_GRID, 1e-12)


def _sum_of_losses(p: Floats, q: Floats, spacing: float) -> Any:
    """The law under P of the summed loss, dominating it: equal coordinates by powers, then pairwise like a tree."""
    pairs, counts = np.unique(np.concatenate([p, q], axis=1), axis=0, return_counts=True)
    half = p.shape[1]
    laws = [_one_coordinate(row[:half], row[half:], spacing) for row in pairs]
    with np.errstate(over="ignore"):  # dp-accounting's tail bounds try orders that overflow, and skip them
        laws = [
            law.self_compose(int(n), tail_mass_truncation=_CUT) if n > 1 else law
            for law, n in zip(laws, counts, strict=True)
        ]
    while len(laws) > 1:
        laws = list(_neighbours_composed(laws))
    return laws[0]


def _neighbours_composed(laws: list[Any]) -> Iterator[Any]:
    for i in range(0, len(laws) - 1, 2):
        yield laws[i].compose(laws[i + 1], tail_mass_truncation=_CUT)
    if len(laws) % 2:
        yield laws[-1]


def _one_coordinate(p: Floats, q: Floats, spacing: float) -> Any:
    """The losses of one coordinate, each split over the two grid points around it.

    An atom (P, Q) of loss l between a = k spacing and b = a + spacing becomes (u, u e^-a) and (P - u, (P - u) e^-b)
    with u e^-a + (P - u) e^-b = Q, so u = P (e^(a-l) - e^(a-b)) / (1 - e^(a-b)).
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    loss = _losses(p, q)
    finite = np.isfinite(loss)
    if not finite.any():
        return DensePLDPmf(spacing, 0, np.zeros(1), 1.0, True)
    cells = np.floor(loss[finite] / spacing).astype(int)
    rest = np.clip(loss[finite] - cells * spacing, 0.0, spacing)
    share = np.exp(-rest) * np.expm1(rest - spacing) / np.expm1(-spacing)
    masses = np.zeros(int(cells.max() - cells.min()) + 2)
    np.add.at(masses, cells - cells.min(), p[finite] * share)
    np.add.at(masses, cells - cells.min() + 1, p[finite] * (1 - share))
    return DensePLDPmf(spacing, int(cells.min()), masses, float(p[np.isposinf(loss)].sum()), True)
