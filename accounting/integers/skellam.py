"""Account of the Skellam mechanism: integers plus the difference of two Poisson variables. Sums of shares are exactly
Skellam.

A shift by k integers is dominated by a Gaussian shift of s k (docs/theory.md, section 7). With y(x) = -Phi^-1(Pr[X >=
x]) for X of the Skellam distribution of variance V, s is the largest step y(x) - y(x - 1), nearly 1/sqrt(V).
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian import subsampling
from accounting.integers.fixed_point import rounded_l1
from accounting.mechanisms import Sampling
from accounting.mechanisms.integers import Skellam
from accounting.mechanisms.kinds import Account
from accounting.roots import smallest_passing


def renyi(orders: ArrayLike, mechanism: Skellam) -> Floats:
    """Return the Renyi divergence of neighbouring sums, unsampled, at real orders above 1.

    At integer orders a >= 2, with D the sensitivity, V the variance, D1 = min(sqrt(d) D, D^2) the largest L1 norm of an
    integer vector of L2 norm D:

        a D^2 / 2V + min{ ((2a - 1) D^2 + 6 D1) / 4V^2,  3 D1 / 2V }        (Agarwal, Kairouz, Liu 2021, Thm 3.5)

    Between integer orders it is given by chords of (a - 1) times this bound; (a - 1) times the divergence is convex and
    0 at a = 1.
    Adjacency: the mechanism's, both orders of the neighbours, because the distribution is symmetric.
    Direction of error: upper bound.
    """
    a = np.asarray(orders, dtype=float)
    below, variance = np.floor(a), mechanism.variance
    l2 = mechanism.sensitivity
    l1 = rounded_l1(l2, mechanism.dimension)

    def cumulant(whole: Floats) -> Floats:
        correction = np.minimum(((2 * whole - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
        return (whole - 1) * (whole * l2**2 / (2 * variance) + correction)

    share = a - below
    return np.asarray(((1 - share) * cumulant(below) + share * cumulant(below + 1)) / (a - 1))


def sampled(orders: Floats, noise: Skellam, sampling: Sampling) -> Floats:
    """Return the Renyi divergence of a sampled round by the generic bounds of `gaussian.subsampling`, at integer
    orders.
    """
    base = replace(noise, adjacency=sampling.base_adjacency(noise.adjacency))
    return subsampling.amplified_curve(
        orders, lambda at: renyi(at, base), noise.adjacency, sampling, largest=subsampling.LARGEST_ORDER
    )


def dominating_mu(noise: Skellam, in_clips: float, lost: float) -> float | None:
    """Return mu of a Gaussian pair that dominates one release: approximately that of Gaussian noise with this
    variance.
    """
    return mu_of_shift(noise.variance, in_clips * noise.l2_bound, lost)


ACCOUNT = Account(renyi=renyi, sampled=sampled, dominating_mu=dominating_mu)


_ROUNDING = 1 + 1e-12
_EXPANDED = 1e4
_COARSE = 1e6
_LARGEST_VARIANCE = 1e11
_SMALLEST_VARIANCE = 1e-2
_LARGEST_EXPONENT = 600.0


def mu_of_shift(variance: float, sensitivity: float, lost: float) -> float | None:
    """Return mu of a Gaussian pair that dominates shifts of integer vectors under Skellam noise of this variance.

    Claim: for integer shifts k of L2 norm at most `sensitivity` and every gamma >= 0, H_gamma of X + k from X is at
    most H_gamma of N(mu) from N(0) plus `lost`, in both orders, because the distribution is symmetric. mu = s
    sensitivity, s the largest step of y up to a tail point. At that point the tail mass, summed over all coordinates
    that can move (at most sensitivity^2), is `lost`.
    Direction of error: upwards. Returns None if the tail is out of the range of doubles.
    """
    if not _SMALLEST_VARIANCE <= variance <= _LARGEST_VARIANCE or not 0 < lost < 1:
        return None
    coarse = _variance_rounded_down(variance)
    log_mass = math.log(lost / (sensitivity**2 + 1))
    tail_point = smallest_passing(lambda x: _exponent(x, coarse) >= -log_mass)  # Pr[X >= tail_point] <= e^log_mass
    far = tail_point + math.floor(sensitivity * _ROUNDING) + 1
    if _exponent(far, coarse) > _LARGEST_EXPONENT:
        return None
    return largest_step(coarse, far) * sensitivity * _ROUNDING


def _variance_rounded_down(variance: float) -> float:
    """Round a large variance down to twelve bits, so that similar variances share a cached result. Less noise gives an
    upper bound.
    """
    if variance < _COARSE:
        return variance
    unit = 2.0 ** (math.floor(math.log2(variance)) - 12)
    return math.floor(variance / unit) * unit


def _exponent(x: float, variance: float) -> float:
    """Return Chernoff's exponent V h(x / V), h(r) = r asinh r - sqrt(1 + r^2) + 1: Pr[X >= x] <= exp(-V h(x / V))."""
    r = x / variance
    return variance * (r * math.asinh(r) - r * r / (1 + math.sqrt(1 + r * r)))


@lru_cache(maxsize=256)
def largest_step(variance: float, far: int) -> float:
    """Return an upper bound on the largest y(x) - y(x - 1) for x from 2 - far to far. As y(1 - x) = -y(x), x >= 1
    suffices.

    Rounding errors are covered: masses are accurate to 1e-13 or 4e-16 V (Bessel functions), sums to one unit in the
    last place per term. A relative error e of a tail changes y by at most 1.26 e.
    """
    # I_(x+1)(V) / I_x(V) <= e^-asinh(x/V), so the part omitted from the tails up to `far` is below rounding.
    number_of_masses = far + 2 + math.ceil(45 / math.asinh(far / variance))
    masses = _masses(np.arange(number_of_masses + 1, dtype=float), variance)
    tails = np.cumsum(masses[::-1])[::-1][: far + 1]
    tails[0] = (1 + masses[0]) / 2
    y = -scipy.special.ndtri(tails)
    error = 1e-13 + 1.2e-16 * len(masses) + (4e-16 * variance if variance < _EXPANDED else 0.0)
    return float(np.diff(y).max()) + 2 * 1.26 * error


def _masses(x: Floats, variance: float) -> Floats:
    """Return the probabilities e^-V I_x(V) for x >= 0. For large V they use Debye's expansion (Olver 1974, ch. 10,
    section 7), whose fourth term is below 1e-16.
    """
    if variance < _EXPANDED:
        return np.asarray(scipy.special.ive(x, variance))
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
