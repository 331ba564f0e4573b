"""Upper bounds on the hockey-stick divergences of one block (`participation.blocks`), in both orders.

Under Q the likelihood ratio S = w_0 + sum w_b Y_b is a sum of independent lognormals. Every summand up to a threshold M
is rounded to a grid: its mass in a cell is split between the cell's ends so that mass and mean are kept. This is a
mean-preserving spread, so E_Q (S - gamma)_+ and E_Q (1 - gamma S)_+, which are convex in S, do not decrease. Hence
every grid gives an upper bound. The distribution of the sum is one Fourier transform. A single Y_b above M, which is
beyond a uniform grid, is added separately. The probability of two such values, and of values beyond the grids, is added
to the divergence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import sampled_profiles
from accounting.participation.blocks import OnceInBlock

_FINENESS = 0.01
"""Grid spacing relative to the standard deviation of one summand, or to its weight if that is smaller. It increases the
variance by a relative 2e-5.
"""
_TWO_JUMPS = 1e-12
"""Largest allowed probability of two values above the threshold."""
_CUT = 1e-17
"""Probability beyond each end of the window for the sum."""
_TAIL = 9.5
"""Standard deviations beyond which a value above the threshold is treated as infinite."""
_JUMP_GROUPS = 8
_MOST_JUMPS = 1000
"""Largest number of grid points above the threshold, which limits the resolution for s above 2."""
_LARGEST_GRID = 1 << 18
"""Largest number of grid steps up to the threshold, which limits the resolution for s above 2, where the bound becomes
loose.
"""

_LARGEST_LOG = 300.0
"""Largest log likelihood ratio of the first rounds; its square does not overflow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _SumDistribution:
    """Distribution under Q of T = w_0 + the sum of the values below the threshold. Each mass includes its largest
    rounding error.

    So rounding errors increase E_Q (S - gamma)_+ only through points above gamma.
    """

    points: Floats
    masses: Floats

    def mean_excess(self, at: Floats) -> Floats:
        """Return E (T - x)_+ at each x, exactly, because it is linear between the points and before the first."""
        before = np.minimum(at - self.points[0], 0.0) * self.masses.sum()
        return np.asarray(np.interp(at, self.points, self._excess_at_points) - before)

    def mean_shortfall(self, at: Floats) -> Floats:
        """Return E (x - T)_+ at each x that is not above the last point."""
        return np.asarray(np.interp(at, self.points, self._shortfall_at_points))

    @cached_property
    def _excess_at_points(self) -> Floats:
        mass, moment = (np.cumsum(part[::-1])[::-1] for part in (self.masses, self.masses * self.points))
        return np.asarray(np.maximum(moment - self.points * mass, 0.0))

    @cached_property
    def _shortfall_at_points(self) -> Floats:
        mass, moment = np.cumsum(self.masses), np.cumsum(self.masses * self.points)
        return np.asarray(np.maximum(self.points * mass - moment, 0.0))


def divergences(block: OnceInBlock, shift: float, losses: Floats) -> tuple[Floats, Floats]:
    """Return H_gamma(P || Q) and H_gamma(Q || P) of one block at gamma = e^losses, losses >= 0.

    shift: s = clip norm over noise standard deviation.
    Shapes: as `losses`.
    Adjacency: zero-out, add-remove.
    Direction of error: upper bound. For s up to 2 the variance of the loss is within about a relative 1e-4; for larger
    s the bound is looser, and `divergences_with_public_round` may be smaller.
    """
    block = block.with_few_weights
    threshold = _threshold(block, shift)
    distribution = _sum_distribution(block.weights, 1 - block.taking_part, shift, threshold)
    gammas = np.exp(np.minimum(losses, 690.0))
    forth = distribution.mean_excess(gammas) + _divergence_of_one_jump(block, shift, threshold, distribution, gammas)
    forth += _CUT + _probability_of_two_jumps(block, shift, threshold) + block.taking_part * _survival(_TAIL)
    # Omitting jumps decreases S, so (1 - gamma S)_+ does not decrease.
    back = gammas * distribution.mean_shortfall(1 / gammas) + _CUT
    return np.minimum(forth, 1.0), np.minimum(back, 1.0)


def divergences_with_public_round(block: OnceInBlock, shift: float, losses: Floats) -> tuple[Floats, Floats]:
    """Return the divergences if the client's round is public and only its participation is secret: those of Poisson
    sampling.

    They are upper bounds by joint convexity (docs/theory-participation.md), and below `divergences` for large s, where
    its grid is too coarse.
    """
    noise = {"sampling_probability": block.taking_part, "noise_multiplier": 1 / shift}
    return sampled_profiles.removal_profile(losses, **noise), sampled_profiles.addition_profile(losses, **noise)


def divergence_of_first_rounds(probabilities: Sequence[float], shift: float, least: float) -> Callable[[float], float]:
    """Return the larger of H_gamma(P || Q) and H_gamma(Q || P) of two or three rounds, as a function of log gamma >= 0.

    probabilities[j]: probability that a client takes part in j given rounds and in no other round, for any such j.
    shift: clip norm over noise standard deviation. least: smallest divergence of interest.
    The likelihood ratio S is the sum over sets of rounds of their probability times the product of their Y_b. This pair
    dominates adaptive rounds: their outputs are a randomised function of one N(s, 1) or N(0, 1) per round. Given all
    Y_b but one, S = a + b Y, with a closed form. It is convex in each other Y_b, whose mass in a cell is split between
    the cell's ends so that mass and mean are kept.
    Adjacency: zero-out, add-remove.
    Direction of error: upper bound; epsilon by about 1e-5 for two rounds, 1e-3 for three, relative.
    Errors: UnsupportedMechanism for so little noise that a likelihood ratio overflows.
    """
    others = len(probabilities) - 2
    tail = float(-scipy.special.ndtri(1e-6 * least / others))
    if not (others + 1) * shift * (shift / 2 + tail) < _LARGEST_LOG:
        raise UnsupportedMechanism("the account of the first rounds is for more noise.")
    x = np.append(-np.inf, np.linspace(-tail, shift + tail, {1: 3000, 2: 200}[others]))
    values = _likelihood_ratio(x, shift)
    masses = _masses_of_values(x, values, shift)
    symmetric = [np.ones(1), values]  # elementary symmetric polynomials of the other rounds' Y_b
    if others == 2:
        i, j = np.triu_indices(len(values))
        symmetric = [np.ones(1), values[i] + values[j], values[i] * values[j]]
        masses = masses[i] * masses[j] * np.where(i == j, 1, 2)
    steady = probabilities[0] + np.asarray(sum(probabilities[j] * symmetric[j] for j in range(1, others + 1)))
    slope = np.asarray(sum(probabilities[j + 1] * symmetric[j] for j in range(others + 1))) + np.zeros_like(steady)

    def divergence(loss: float) -> float:
        gamma = math.exp(min(loss, _LARGEST_LOG))
        room, back_room = gamma - steady, 1 - gamma * steady
        with np.errstate(divide="ignore", invalid="ignore"):
            at, back_at = np.log(room / slope) / shift, np.log(back_room / (gamma * slope)) / shift
        normal, half = scipy.special.ndtr, shift / 2
        forth = np.where(room > 0, slope * normal(half - at) - room * normal(-half - at), slope - room)
        back = np.where(back_room > 0, back_room * normal(back_at + half) - gamma * slope * normal(back_at - half), 0.0)
        return max(float(masses @ forth), float(masses @ back)) * (1 + 1e-9) + others * _survival(tail)

    return divergence


def approximate_loss_moments(block: OnceInBlock, shift: float) -> tuple[float, float]:
    """Return approximate mean and variance of a block's privacy loss, for choosing a grid."""
    variance = math.log1p(block.squares * math.expm1(min(shift * shift, 600.0)))
    return variance / 2, variance


def largest_loss(block: OnceInBlock, shift: float, mass: float) -> float:
    """Return a privacy loss that the block exceeds with probability at most about `mass`. Larger losses are treated as
    infinite.
    """
    tail = float(-scipy.special.ndtri(mass))
    width = 9.0 * math.sqrt(min(approximate_loss_moments(block, shift)[1], 1.0))
    return float(np.logaddexp(width, math.log(block.largest) + shift * shift / 2 + tail * shift))


def _survival(x: float) -> float:
    return float(scipy.special.ndtr(-x))


def _probability_of_two_jumps(block: OnceInBlock, shift: float, threshold: float) -> float:
    """Return the probability under P of two values above the threshold. One of them may belong to the client's
    round.
    """
    quiet, loud = block.rounds * _survival(threshold), _survival(threshold - shift)
    return loud * quiet + quiet * quiet


def _threshold(block: OnceInBlock, shift: float) -> float:
    """Return the threshold x for jumps, such that two jumps have negligible probability."""
    x = shift
    while _probability_of_two_jumps(block, shift, x) > _TWO_JUMPS and x < shift + _TAIL:
        x += 0.05
    return x


def _likelihood_ratio(x: Floats | float, shift: float) -> Floats:
    return np.exp(shift * np.asarray(x) - shift * shift / 2)


def _sum_distribution(
    weights: Sequence[tuple[float, int]], constant_part: float, shift: float, threshold: float
) -> _SumDistribution:
    """Return the distribution of `constant_part` + the sum of weighted values below the threshold."""
    rounds = sum(count for _, count in weights)
    squares = sum(weight * weight * count for weight, count in weights)
    spacing = _FINENESS * math.sqrt(squares / rounds * min(math.expm1(min(shift * shift, 600.0)), 1.0))
    largest = max(weight for weight, _ in weights)
    spacing = max(spacing, float(_likelihood_ratio(threshold, shift)) * largest / _LARGEST_GRID)
    spread_masses = [(_rounded_to_grid(weight, shift, threshold, spacing), weight, count) for weight, count in weights]
    first, last = _window(spread_masses, constant_part, spacing)
    length = scipy.fft.next_fast_len(max(last - first + 1, *(len(masses) for masses, _, _ in spread_masses)), real=True)
    transform = np.ones(length // 2 + 1, dtype=complex)
    for masses, _, count in spread_masses:
        transform *= scipy.fft.rfft(masses, length) ** count
    masses = np.roll(scipy.fft.irfft(transform, length), -(first % length))[: last - first + 1]
    points: Floats = constant_part + spacing * np.arange(first, last + 1, dtype=float)
    rounding = 2.3e-16 * (rounds + 4 * math.log2(length)) * float(np.abs(transform).mean())
    return _SumDistribution(points=points, masses=np.maximum(masses, 0.0) + rounding)


def _rounded_to_grid(weight: float, shift: float, threshold: float, spacing: float) -> Floats:
    """Return the distribution of w Y given Y below the threshold, on the grid, with mass and mean kept."""
    cells = max(math.ceil(float(_likelihood_ratio(threshold, shift)) * weight / spacing), 1)
    edges = np.arange(1, cells) * (spacing / weight)
    x = np.concatenate([[-np.inf], (np.log(edges) + shift * shift / 2) / shift, [threshold]])
    mass, mean = normal_cell_masses(x), normal_cell_masses(x - shift)
    upper = np.clip(mean * (weight / spacing) - np.arange(cells) * mass, 0.0, mass)
    return _split_to_edges(mass, upper) / (1 - _survival(threshold))


def _split_to_edges(mass: Floats, upper: Floats) -> Floats:
    """Return the masses of the edges of cells, to whose upper edges the part `upper` of their mass is moved."""
    masses = np.append(mass - upper, 0.0)
    masses[1:] += upper
    return masses


def _masses_of_values(x: Floats, values: Floats, shift: float) -> Floats:
    """Return the masses of likelihood ratios: each cell between points x is split so that mass and mean are kept."""
    mass, mean = normal_cell_masses(x), normal_cell_masses(x - shift)
    return _split_to_edges(mass, np.clip((mean - values[:-1] * mass) / np.diff(values), 0.0, mass))


def normal_cell_masses(x: Floats) -> Floats:
    """Return the normal masses of the intervals between the points x, computed in the tail without cancellation."""
    left, right = np.diff(scipy.special.ndtr(x)), -np.diff(scipy.special.ndtr(-x))
    return np.asarray(np.where(x[1:] > 0, right, left))


def _window(spread_masses: list[tuple[Floats, float, int]], constant_part: float, spacing: float) -> tuple[int, int]:
    """Return (first, last) grid step of a window for the sum. By Chernoff's bound the probability below it, and E[S; S
    above it], are at most _CUT.
    """
    log_tail = math.log(1 / _CUT)
    first, last = 0, sum((len(masses) - 1) * count for masses, _, count in spread_masses)
    widest = max(len(masses) for masses, _, _ in spread_masses)
    variance = sum(count * _grid_variance(masses) for masses, _, count in spread_masses)
    normal, largest = math.sqrt(2 * log_tail / max(variance, 1e-9)), 600.0 / widest
    near = np.concatenate([normal * np.array([0.3, 0.6, 1.0, 1.5]), largest * 4.0 ** -np.arange(7)])
    for exponent in near[near <= largest]:
        low, up, mean = 0.0, 0.0, constant_part
        for masses, _, count in spread_masses:
            steps = np.arange(len(masses), dtype=float)
            grown = masses * np.exp(exponent * steps)
            moment = float(grown.sum())
            low += count * math.log(float((masses * np.exp(-exponent * steps)).sum()))
            up += count * math.log(moment)
            mean += count * spacing * float((grown * steps).sum()) / moment
        first = max(first, math.floor((-low - log_tail) / exponent))
        last = min(last, math.ceil((up + math.log(max(mean, 1.0)) + log_tail) / exponent))
    return first, max(last, first + 1)


def _grid_variance(masses: Floats) -> float:
    steps = np.arange(len(masses), dtype=float)
    mean = float((masses * steps).sum())
    return float((masses * (steps - mean) ** 2).sum())


def _divergence_of_one_jump(
    block: OnceInBlock, shift: float, threshold: float, distribution: _SumDistribution, gammas: Floats
) -> Floats:
    """Return the sum over rounds of E[(w Y_b + T - gamma)_+; Y_b above the threshold], T the sum of the remaining
    rounds.

    If weights differ, T is replaced by the sum of all rounds, which is larger.
    """
    ratio = 0.02 * min(shift, 1.0)
    last = max(shift + _TAIL, threshold + ratio)
    step = max(ratio / shift, (last - threshold) / _MOST_JUMPS)
    x = np.arange(threshold, last + step, step)
    values = _likelihood_ratio(x, shift)
    masses = _masses_of_values(x, values, shift)
    total = np.zeros(len(gammas))
    if len(block.weights) == 1:
        ((weight, rounds),) = block.weights
        constant_part = 1 - block.taking_part
        distribution = _SumDistribution(points=np.array([constant_part]), masses=np.ones(1))
        if rounds > 1:
            distribution = _sum_distribution([(weight, rounds - 1)], constant_part, shift, threshold)
    for weight, count in _grouped_weights(block):
        for value, chance in zip(values * weight, masses, strict=True):
            total += count * chance * distribution.mean_excess(gammas - value)
    return total


def _grouped_weights(block: OnceInBlock) -> list[tuple[float, int]]:
    """Return pairs (largest weight, number of rounds) for at most _JUMP_GROUPS groups of weights, which gives an upper
    bound.
    """
    ordered = sorted(block.weights, reverse=True)
    size = -(-len(ordered) // _JUMP_GROUPS)
    parts = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [(part[0][0], sum(count for _, count in part)) for part in parts]
