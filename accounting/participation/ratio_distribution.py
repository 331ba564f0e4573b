"""Hockey-stick divergences of one block (`participation.blocks`), from above, in both orders.

Under Q the likelihood ratio S = w_0 + sum w_b Y_b is a sum of independent lognormals. Every summand up to a threshold M
is put on a grid, its mass in every cell split between the cell's ends so that mass and mean stay: a mean-preserving
spread, under which E_Q (S - gamma)_+ and E_Q (1 - gamma S)_+, convex in S, can only grow. So every grid gives an upper
bound. Sums are one transform. A single Y_b above M, which a uniform grid could not reach, is added separately; two of
them, and everything beyond the grids, are charged to the divergence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.gaussian import poisson
from accounting.participation.blocks import OnceInBlock

_FINENESS = 0.01
"""Spacing over the standard deviation of one summand (over its weight, if less): widens the variance by 2e-5 of it."""
_TWO_JUMPS = 1e-12
"""Largest probability of two values above the threshold."""
_CUT = 1e-17
"""Probability beyond each end of the window of the sum."""
_TAIL = 9.5
"""Standard deviations beyond which a value above the threshold counts as infinite."""
_JUMP_GROUPS = 8
_MOST_JUMPS = 1000
"""Most values of one jump; limits the fineness for s above 2, too."""
_LARGEST_GRID = 1 << 18
"""Most steps to the threshold; limits the fineness for s above 2, where the bound becomes loose."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sum:
    """Distribution of T = w_0 + sum of the values below the threshold under Q, each mass with its largest rounding
    error.

    So rounding is charged to E_Q (S - gamma)_+ at points above gamma, not to every gamma alike.
    """

    points: Floats
    masses: Floats

    def above(self, at: Floats) -> Floats:
        """Return E (T - x)_+ at each x: linear between the points and before the first, so exact."""
        before = np.minimum(at - self.points[0], 0.0) * self.masses.sum()
        return np.asarray(np.interp(at, self.points, self._above_points) - before)

    def below(self, at: Floats) -> Floats:
        """Return E (x - T)_+ at each x up to the last point."""
        return np.asarray(np.interp(at, self.points, self._below_points))

    @cached_property
    def _above_points(self) -> Floats:
        mass, moment = (np.cumsum(part[::-1])[::-1] for part in (self.masses, self.masses * self.points))
        return np.asarray(np.maximum(moment - self.points * mass, 0.0))

    @cached_property
    def _below_points(self) -> Floats:
        mass, moment = np.cumsum(self.masses), np.cumsum(self.masses * self.points)
        return np.asarray(np.maximum(self.points * mass - moment, 0.0))


def divergences(block: OnceInBlock, shift: float, losses: Floats) -> tuple[Floats, Floats]:
    """Return H_gamma(P || Q) and H_gamma(Q || P) of one block at gamma = e^losses, losses >= 0.

    shift: s = clip norm over noise standard deviation. Shapes: that of `losses`. Adjacency: zero-out, add-remove.
    Direction of error: upper bound, for s up to 2 within about 1e-4 relative in the variance of the loss; looser above,
    where `of_public_round` may be less.
    """
    block = block.with_few_weights
    threshold = _threshold(block, shift)
    law = _sum(block.weights, 1 - block.taking_part, shift, threshold)
    gammas = np.exp(np.minimum(losses, 690.0))
    forth = law.above(gammas) + _one_jump(block, shift, threshold, law, gammas)
    forth += _CUT + _two_jumps(block, shift, threshold) + block.taking_part * _survival(_TAIL)
    back = gammas * law.below(1 / gammas) + _CUT  # without jumps S is smaller: more of (1 - gamma S)_+
    return np.minimum(forth, 1.0), np.minimum(back, 1.0)


def of_public_round(block: OnceInBlock, shift: float, losses: Floats) -> tuple[Floats, Floats]:
    """Return the divergences as if it were public which round it would be: Poisson sampling with the block's
    probability.

    An upper bound by joint convexity (docs/theory-participation.md); less than `divergences` for large s and a grid
    that is too coarse.
    """
    noise = {"sampling_probability": block.taking_part, "noise_multiplier": 1 / shift}
    return poisson.removal_profile(losses, **noise), poisson.addition_profile(losses, **noise)


def moments(block: OnceInBlock, shift: float) -> tuple[float, float]:
    """Return mean and variance of a block's loss, roughly, for choosing a grid."""
    variance = math.log1p(block.squares * math.expm1(min(shift * shift, 600.0)))
    return variance / 2, variance


def largest_loss(block: OnceInBlock, shift: float, mass: float) -> float:
    """Return a loss that the block exceeds with about this probability at most; larger ones count as infinite."""
    tail = float(-scipy.special.ndtri(mass))
    width = 9.0 * math.sqrt(min(moments(block, shift)[1], 1.0))
    return float(np.logaddexp(width, math.log(block.largest) + shift * shift / 2 + tail * shift))


def _survival(x: float) -> float:
    return float(scipy.special.ndtr(-x))


def _two_jumps(block: OnceInBlock, shift: float, threshold: float) -> float:
    """Return the P-probability of two values above the threshold: one may be that of the client's round."""
    quiet, loud = block.rounds * _survival(threshold), _survival(threshold - shift)
    return loud * quiet + quiet * quiet


def _threshold(block: OnceInBlock, shift: float) -> float:
    """Return the x above which a value is a jump: so large that two of them have negligible probability."""
    x = shift
    while _two_jumps(block, shift, x) > _TWO_JUMPS and x < shift + _TAIL:
        x += 0.05
    return x


def _value(x: Floats | float, shift: float) -> Floats:
    return np.exp(shift * np.asarray(x) - shift * shift / 2)


def _sum(weights: Sequence[tuple[float, int]], kept: float, shift: float, threshold: float) -> _Sum:
    """Return the distribution of kept + sum of weighted values below the threshold."""
    rounds = sum(count for _, count in weights)
    squares = sum(weight * weight * count for weight, count in weights)
    spacing = _FINENESS * math.sqrt(squares / rounds * min(math.expm1(min(shift * shift, 600.0)), 1.0))
    largest = max(weight for weight, _ in weights)
    spacing = max(spacing, float(_value(threshold, shift)) * largest / _LARGEST_GRID)
    laws = [(_spread(weight, shift, threshold, spacing), weight, count) for weight, count in weights]
    first, last = _window(laws, kept, spacing)
    length = scipy.fft.next_fast_len(max(last - first + 1, *(len(masses) for masses, _, _ in laws)), real=True)
    transform = np.ones(length // 2 + 1, dtype=complex)
    for masses, _, count in laws:
        transform *= scipy.fft.rfft(masses, length) ** count
    masses = np.roll(scipy.fft.irfft(transform, length), -(first % length))[: last - first + 1]
    points: Floats = kept + spacing * np.arange(first, last + 1, dtype=float)
    rounding = 2.3e-16 * (rounds + 4 * math.log2(length)) * float(np.abs(transform).mean())
    return _Sum(points=points, masses=np.maximum(masses, 0.0) + rounding)


def _spread(weight: float, shift: float, threshold: float, spacing: float) -> Floats:
    """Return the distribution of w Y given Y below the threshold, on the grid, mass and mean kept."""
    cells = max(math.ceil(float(_value(threshold, shift)) * weight / spacing), 1)
    edges = np.arange(1, cells) * (spacing / weight)
    x = np.concatenate([[-np.inf], (np.log(edges) + shift * shift / 2) / shift, [threshold]])
    mass, mean = _cells(x), _cells(x - shift)
    upper = np.clip(mean * (weight / spacing) - np.arange(cells) * mass, 0.0, mass)
    masses = np.zeros(cells + 1)
    masses[:-1] += mass - upper
    masses[1:] += upper
    return np.asarray(masses / (1 - _survival(threshold)))


def _cells(x: Floats) -> Floats:
    """Return normal masses between the x, each from the tail in which it does not cancel."""
    left, right = np.diff(scipy.special.ndtr(x)), -np.diff(scipy.special.ndtr(-x))
    return np.asarray(np.where(x[1:] > 0, right, left))


def _window(laws: list[tuple[Floats, float, int]], kept: float, spacing: float) -> tuple[int, int]:
    """Return grid steps between which the sum is, except for _CUT: Chernoff's bound, at the upper end of E[S; S above
    it].
    """
    wanted = math.log(1 / _CUT)
    first, last = 0, sum((len(masses) - 1) * count for masses, _, count in laws)
    widest = max(len(masses) for masses, _, _ in laws)
    variance = sum(count * _variance(masses) for masses, _, count in laws)
    normal, largest = math.sqrt(2 * wanted / max(variance, 1e-9)), 600.0 / widest
    near = np.concatenate([normal * np.array([0.3, 0.6, 1.0, 1.5]), largest * 4.0 ** -np.arange(7)])
    for exponent in near[near <= largest]:
        low, up, mean = 0.0, 0.0, kept
        for masses, _, count in laws:
            steps = np.arange(len(masses), dtype=float)
            grown = masses * np.exp(exponent * steps)
            moment = float(grown.sum())
            low += count * math.log(float((masses * np.exp(-exponent * steps)).sum()))
            up += count * math.log(moment)
            mean += count * spacing * float((grown * steps).sum()) / moment
        first = max(first, math.floor((-low - wanted) / exponent))
        last = min(last, math.ceil((up + math.log(max(mean, 1.0)) + wanted) / exponent))
    return first, max(last, first + 1)


def _variance(masses: Floats) -> float:
    steps = np.arange(len(masses), dtype=float)
    mean = float((masses * steps).sum())
    return float((masses * (steps - mean) ** 2).sum())


def _one_jump(block: OnceInBlock, shift: float, threshold: float, law: _Sum, gammas: Floats) -> Floats:
    """Return the sum over rounds of E[(w Y_b + T - gamma)_+; Y_b above the threshold], T of the other rounds.

    For different weights T is that of all rounds, which is larger.
    """
    ratio = 0.02 * min(shift, 1.0)
    last = max(shift + _TAIL, threshold + ratio)
    step = max(ratio / shift, (last - threshold) / _MOST_JUMPS)
    x = np.arange(threshold, last + step, step)
    mass, mean, values = _cells(x), _cells(x - shift), _value(x, shift)
    upper = np.clip((mean - values[:-1] * mass) / np.diff(values), 0.0, mass)
    masses = np.zeros(len(x))
    masses[:-1] += mass - upper
    masses[1:] += upper
    total = np.zeros(len(gammas))
    if len(block.weights) == 1:
        ((weight, rounds),) = block.weights
        kept, others = 1 - block.taking_part, [(weight, rounds - 1)]
        law = _sum(others, kept, shift, threshold) if rounds > 1 else _constant(kept)
    for weight, count in _grouped(block):
        for value, chance in zip(values * weight, masses, strict=True):
            total += count * chance * law.above(gammas - value)
    return total


def _constant(value: float) -> _Sum:
    return _Sum(points=np.array([value]), masses=np.ones(1))


def _grouped(block: OnceInBlock) -> list[tuple[float, int]]:
    """Return the weights in at most _JUMP_GROUPS groups, each with its largest weight: from above."""
    ordered = sorted(block.weights, reverse=True)
    size = -(-len(ordered) // _JUMP_GROUPS)
    parts = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [(part[0][0], sum(count for _, count in part)) for part in parts]
