"""Renyi accounts of Gaussian noise on sums, whole or in shares, sampled or not, for `accounting.compose`."""

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import fixed_size_rdp, poisson_rdp
from accounting.gaussian.subsampling import refuse_replacement_under_poisson
from accounting.mechanisms.gaussian import Gaussian, GaussianShares
from accounting.mechanisms.kinds import Account
from accounting.mechanisms.samplings import Sampling

_SAMPLED = {"poisson": poisson_rdp.renyi, "fixed": fixed_size_rdp.renyi}


def renyi(orders: Floats, noise: Gaussian) -> Floats:
    """Return alpha mu^2 / 2, exact (Mironov 2017, Prop. 7)."""
    return np.asarray(orders * (noise.mu**2 / 2))


def sampled(orders: Floats, noise: Gaussian, sampling: Sampling) -> Floats:
    """Return Renyi bounds of a sampled round.

    `gaussian.poisson_rdp` (add-remove; zero-out has the same pair of output distributions), `gaussian.fixed_size_rdp`
    (replace-one, shift 2C; under zero-out the displaced client still moves the sum by 2C).
    """
    if sampling.name not in _SAMPLED:
        raise UnsupportedMechanism(f"sampling={sampling!r}: no Renyi curve is implemented.")
    refuse_replacement_under_poisson(noise.adjacency, sampling, "Use accountant 'pld' (exact for this case), or")
    curve = _SAMPLED[sampling.name]
    return curve(orders, sampling_probability=sampling.probability, noise_multiplier=noise.noise_multiplier)


GAUSSIAN = Account(renyi=renyi, sampled=sampled)


def _renyi_of_shares(orders: Floats, noise: GaussianShares) -> Floats:
    return renyi(orders, noise.gaussian)


def _sampled_shares(orders: Floats, noise: GaussianShares, sampling: Sampling) -> Floats:
    return sampled(orders, noise.gaussian, sampling)


def _whole_noise(noise: GaussianShares, count: int) -> tuple[Gaussian, float]:
    """Return the Gaussian of the whole sum, with closeness 0; overflow is charged separately."""
    return noise.gaussian, 0.0


SHARES = Account(renyi=_renyi_of_shares, sampled=_sampled_shares, twin=_whole_noise)


def penalty(orders: ArrayLike, closeness: float) -> Floats:
    """Return the penalty of a Renyi divergence for a distribution within e^±closeness: closeness (2a - 1)/(a - 1)."""
    a = np.asarray(orders, dtype=float)
    return np.asarray(closeness * (2 * a - 1) / (a - 1))
