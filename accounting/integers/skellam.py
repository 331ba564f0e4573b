"""Skellam mechanism: integers plus the difference of two Poisson variables. Sums of shares are Skellam exactly.

A shift by k integers is below a Gaussian shift of s k (docs/theory.md, section 7): with y(x) = -Phi^-1(Pr[X >= x]) for
X of the Skellam distribution of variance V, s is the largest step y(x) - y(x - 1), nearly 1/sqrt(V).
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian import subsampling
from accounting.integers.fixed_point import rounded_l1
from accounting.mechanisms.integers import Skellam
from accounting.mechanisms.kinds import Account
from accounting.mechanisms.samplings import Sampling
from accounting.roots import first_whole


def renyi(orders: ArrayLike, mechanism: Skellam) -> Floats:
    """Return the Renyi divergence of neighbouring sums, unsampled, at real orders above 1.

    At whole orders a >= 2, with D the sensitivity, V the variance, D1 = min(sqrt(d) D, D^2) the largest L1 norm of an
    integer vector of L2 norm D:
        a D^2 / 2V + min{ ((2a - 1) D^2 + 6 D1) / 4V^2,  3 D1 / 2V }          (Agarwal, Kairouz, Liu 2021, Thm 3.5)
    Between them chords of (a - 1) times that, which is convex for every pair of distributions and 0 at a = 1.
    Adjacency: the mechanism's; the distribution is symmetric, so both orders of the neighbours. Direction of error:
    upper bound.
    """
    a = np.asarray(orders, dtype=float)
    below, variance = np.floor(a), mechanism.variance
    l2 = mechanism.sensitivity
    l1 = rounded_l1(l2, mechanism.dimension)

    def cumulant(whole: Floats) -> Floats:
        beyond = np.minimum(((2 * whole - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
        return (whole - 1) * (whole * l2**2 / (2 * variance) + beyond)

    share = a - below
    return np.asarray(((1 - share) * cumulant(below) + share * cumulant(below + 1)) / (a - 1))


def sampled(orders: Floats, noise: Skellam, sampling: Sampling) -> Floats:
    """Return the generic bounds of `gaussian.subsampling`, at whole orders."""
    base = replace(noise, adjacency=subsampling.lemma_adjacency(noise.adjacency, sampling))

    def curve(at: Floats) -> Floats:
        return renyi(at, base)

    return subsampling.amplified(orders, curve, noise.adjacency, sampling, largest=subsampling.LARGEST_ORDER)


def gaussian_above(noise: Skellam, in_clips: float, lost: float) -> float | None:
    """Return mu of a Gaussian pair above one release (`integers.skellam`): nearly that of equal variance."""
    return shift_above(noise.variance, in_clips * noise.l2_bound, lost)


ACCOUNT = Account(renyi=renyi, sampled=sampled, above=gaussian_above)


_ROUNDING = 1 + 1e-12
_EXPANDED = 1e4
_COARSE = 1e6
_LARGEST_VARIANCE = 1e11
_SMALLEST_VARIANCE = 1e-2
_LARGEST_EXPONENT = 600.0


def shift_above(variance: float, sensitivity: float, lost: float) -> float | None:
    """Return mu of a Gaussian pair above shifts of integer vectors with independent Skellam noise of this variance.

    Claim: for integer shifts k of L2 norm at most `sensitivity` and every gamma >= 0, H_gamma of X + k from X is at
    most H_gamma of N(mu) from N(0) plus `lost`; the distribution is symmetric, so in both orders. mu = s sensitivity, s
    the largest step of y up to the point where the distribution's tail, once for each coordinate that can move (at most
    sensitivity^2), is `lost`. Direction of error: upwards. None if doubles do not reach that far.
    """
    if not _SMALLEST_VARIANCE <= variance <= _LARGEST_VARIANCE or not 0 < lost < 1:
        return None
    coarse = _rounded_down(variance)
    far = _tail(coarse, math.log(lost / (sensitivity**2 + 1))) + math.floor(sensitivity * _ROUNDING) + 1
    if _exponent(far, coarse) > _LARGEST_EXPONENT:
        return None
    return largest_step(coarse, far) * sensitivity * _ROUNDING


def _rounded_down(variance: float) -> float:
    """Return large variances rounded down to twelve bits, so that similar ones share a result; less noise is an upper
    bound.
    """
    if variance < _COARSE:
        return variance
    unit = 2.0 ** (math.floor(math.log2(variance)) - 12)
    return math.floor(variance / unit) * unit


def _exponent(x: float, variance: float) -> float:
    """Return V h(x / V), h(r) = r asinh r - sqrt(1 + r^2) + 1: Pr[X >= x] <= exp of minus this (Chernoff)."""
    r = x / variance
    return variance * (r * math.asinh(r) - r * r / (1 + math.sqrt(1 + r * r)))


def _tail(variance: float, log_mass: float) -> int:
    """Return a whole x with Pr[X >= x] at most e^log_mass."""
    return first_whole(lambda x: _exponent(x, variance) >= -log_mass)


@lru_cache(maxsize=256)
def largest_step(variance: float, far: int) -> float:
    """Return the largest y(x) - y(x - 1) for x from 2 - far to far, from above: x >= 1 suffice, as y(1 - x) = -y(x).

    Rounding: masses are accurate to 1e-13 or 4e-16 V (Bessel functions), their sums to as many units as terms; a
    relative error of a tail moves y by at most 1.26 of it.
    """
    # I_(x+1)(V) / I_x(V) <= e^-asinh(x/V): what is left out of the tails up to `far` is below rounding.
    beyond = far + 2 + math.ceil(45 / math.asinh(far / variance))
    masses = _masses(np.arange(beyond + 1, dtype=float), variance)
    tails = np.cumsum(masses[::-1])[::-1][: far + 1]
    tails[0] = (1 + masses[0]) / 2
    y = _quantiles(tails)
    error = 1e-13 + 1.2e-16 * len(masses) + (4e-16 * variance if variance < _EXPANDED else 0.0)
    return float(np.diff(y).max()) + 2 * 1.26 * error


def _quantiles(tails: Floats) -> Floats:
    from scipy.special import ndtri

    return np.asarray(-ndtri(tails))


def _masses(x: Floats, variance: float) -> Floats:
    """Return e^-V I_x(V) for x >= 0, by Debye's expansion (Olver 1974, ch. 10, section 7) if its fourth term is below
    1e-16.
    """
    if variance < _EXPANDED:
        from scipy.special import ive

        return np.asarray(ive(x, variance))
    r = x / variance
    root = np.sqrt(1 + r * r)
    radius, p = variance * root, (r / root) ** 2
    series = (
        1
        + (3 - 5 * p) / (24 * radius)
        + (81 - 462 * p + 385 * p**2) / (1152 * radius**2)
        + (30375 - 369603 * p + 765765 * p**2 - 425425 * p**3) / (414720 * radius**3)
    )
    exponent = -variance * (r * np.arcsinh(r) - r * r / (1 + root))
    return np.asarray(np.exp(exponent) / np.sqrt(2 * math.pi * radius) * series)
