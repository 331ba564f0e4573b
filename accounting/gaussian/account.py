"""Renyi accounts for `accounting.compose`: Gaussian noise on sums, as one draw or in shares, sampled or unsampled."""

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import sampled_renyi
from accounting.gaussian.subsampling import refuse_replacement_under_poisson
from accounting.mechanisms import Sampling
from accounting.mechanisms.gaussian import Gaussian, GaussianShares
from accounting.mechanisms.kinds import Account

_SAMPLED = {"poisson": sampled_renyi.poisson_renyi, "fixed": sampled_renyi.fixed_size_renyi}


def renyi(orders: Floats, noise: Gaussian | GaussianShares) -> Floats:
    """Return the exact Renyi divergence alpha mu^2 / 2 of unsampled noise (Mironov 2017, Prop. 7)."""
    return np.asarray(orders * (noise.mu**2 / 2))


def sampled(orders: Floats, noise: Gaussian | GaussianShares, sampling: Sampling) -> Floats:
    """Return upper bounds on the Renyi divergence of a sampled round.

    Poisson sampling uses `gaussian.sampled_renyi` (add-remove; zero-out has the same pair of output distributions).
    Fixed-size sampling uses `gaussian.sampled_renyi` (replace-one, shift 2C; under zero-out the displaced client also
    moves the sum by 2C).
    """
    if sampling.name not in _SAMPLED:
        raise UnsupportedMechanism(f"sampling={sampling!r}: no Renyi curve is implemented.")
    refuse_replacement_under_poisson(noise.adjacency, sampling, "Use accountant 'pld' (exact for this case), or")
    curve = _SAMPLED[sampling.name]
    return curve(orders, sampling_probability=sampling.probability, noise_multiplier=noise.noise_multiplier)


GAUSSIAN = Account(renyi=renyi, sampled=sampled)


def _whole_noise(noise: GaussianShares, count: int) -> tuple[Gaussian, float]:
    """Return the Gaussian noise of the full sum, with closeness 0; overflow is charged separately."""
    return noise.gaussian, 0.0


SHARES = Account(renyi=renyi, sampled=sampled, twin=_whole_noise)


def closeness_penalty(orders: ArrayLike, closeness: float) -> Floats:
    """Return the increase closeness (2a - 1)/(a - 1) of a Renyi divergence bound if a distribution is replaced by one
    within e^±closeness.
    """
    a = np.asarray(orders, dtype=float)
    return np.asarray(closeness * (2 * a - 1) / (a - 1))
