"""The Skellam mechanism: integers plus the difference of two Poisson variables. Sums of shares are Skellam exactly."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting.gaussian import subsampling
from accounting.integers.fixed_point import rounded_l1
from accounting.integers.skellam_steps import shift_above
from accounting.mechanisms.account import Account
from accounting.mechanisms.integers import Skellam
from accounting.mechanisms.samplings import Sampling

Floats = NDArray[np.float64]


def renyi(orders: ArrayLike, mechanism: Skellam) -> Floats:
    """Renyi divergence of neighbouring sums, unsampled, at real orders above 1.

    At whole orders a >= 2, with D the sensitivity, V the variance, D1 = min(sqrt(d) D, D^2) the L1 norm that an
    integer vector of L2 norm D can have:
        a D^2 / 2V + min{ ((2a - 1) D^2 + 6 D1) / 4V^2,  3 D1 / 2V }          (Agarwal, Kairouz, Liu 2021, Thm 3.5)
    Between them chords of (a - 1) times that, which is convex for every pair of laws and 0 at a = 1.
    Adjacency: the mechanism's; the law is symmetric, so both orders of the worlds. Direction of error: upper bound.
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
    """The generic bounds of `gaussian.subsampling`, at whole orders."""
    base = replace(noise, adjacency=subsampling.lemma_adjacency(noise.adjacency, sampling))

    def curve(at: Floats) -> Floats:
        return renyi(at, base)

    return subsampling.amplified(orders, curve, noise.adjacency, sampling, largest=subsampling.LARGEST_ORDER)


def gaussian_above(noise: Skellam, in_clips: float, lost: float) -> float | None:
    """mu of a Gaussian pair above one release (`integers.skellam_steps`): nearly that of equal variance."""
    return shift_above(noise.variance, in_clips * noise.l2_bound, lost)


ACCOUNT = Account(renyi=renyi, sampled=sampled, above=gaussian_above)
