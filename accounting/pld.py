"""Privacy loss distributions: an adapter to dp-accounting (imported when first needed).

Every mechanism's dominating pair is discretised by connecting the dots (Doroshenko et al. 2022), which is an
upper bound on every grid; composition is by FFT. Sampled and plain Gaussians use dp-accounting's own pairs,
fixed-size sampling the pair of `accounting.fixed_size`.
"""

import math
from functools import singledispatch
from typing import Any

import numpy as np

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.fixed_size import round_profile
from accounting.mechanisms import (
    Adjacency,
    Composed,
    FixedSizeSampling,
    Gaussian,
    Mechanism,
    PoissonSampling,
    Subsampled,
)

SMALLEST_DELTA = 1e-12
"""Below this the rounding of the FFT and the truncated tails (about 1e-15) could matter; use RDP there."""

# Gaussian mass beyond this many standard deviations is 1e-19; it goes to an infinite loss, which stays an upper bound.
_TAIL = 9.0
_LARGEST_GRID = 2_000_000


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """The smallest epsilon at `delta` of the composed privacy loss distribution.

    Direction of error: upper bound (pessimistic discretisation, truncated tails counted as infinite loss).
    Tolerance on the default grid: about 1e-4 relative. Domain: delta of at least SMALLEST_DELTA.
    Adjacency: the mechanism's own, both orders of the neighbours.
    """
    target = require.open_probability(delta=delta)
    if target < SMALLEST_DELTA:
        raise InvalidParameter(
            f"delta={target} with accountant='pld': must be at least {SMALLEST_DELTA}, below it the rounding of the "
            "numerical convolution matters. Use accountant='rdp'."
        )
    return float(distribution(mechanism, grid_interval(mechanism)).get_epsilon_for_delta(target))


def grid_interval(mechanism: Mechanism) -> float:
    """Grid spacing of the losses: fine against one release's spread, coarse enough for the memory.

    Any spacing gives an upper bound; this one keeps it within about 1e-4 of the limit.
    """
    parts = mechanism.parts if isinstance(mechanism, Composed) else ((mechanism, 1),)
    spreads = [_spread(part) for part, _ in parts]
    variance = sum(count * spread**2 for (_, count), spread in zip(parts, spreads, strict=True))
    total_range = variance + 2 * _TAIL * math.sqrt(variance)
    widest = max([total_range, *(2 * _largest_loss(part) for part, _ in parts)])
    wanted = min(1e-4, min(spreads) / 20)
    return max(wanted, widest / _LARGEST_GRID)


def _sampling_and_mu(part: Any) -> tuple[float, float]:
    """Sampling probability and the largest shift, over noise std, that one round can show."""
    if isinstance(part, Gaussian):
        return 1.0, part.mu
    shift = 2.0 if isinstance(part.sampling, FixedSizeSampling) else part.adjacency.sensitivity_in_clips
    return part.sampling.probability, shift / part.mechanism.noise_multiplier


def _spread(part: Any) -> float:
    """About the standard deviation of one release's privacy loss."""
    q, mu = _sampling_and_mu(part)
    return max(min(mu, q * math.sqrt(math.expm1(min(mu * mu, 50.0)))), 1e-9)


def _largest_loss(part: Any) -> float:
    q, mu = _sampling_and_mu(part)
    unsampled = mu * mu / 2 + _TAIL * mu
    return unsampled + math.log(q) if q > 0 and unsampled > 30 else math.log1p(q * math.expm1(min(unsampled, 700.0)))


@singledispatch
def distribution(mechanism: Mechanism, interval: float) -> Any:
    """dp-accounting's PrivacyLossDistribution of `mechanism`, dominating it on a grid of `interval`."""
    raise UnsupportedMechanism(f"{type(mechanism).__name__}: no privacy loss distribution is implemented.")


@distribution.register
def _(mechanism: Gaussian, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as library

    return library.from_gaussian_mechanism(1 / mechanism.mu, value_discretization_interval=interval)


@distribution.register
def _(mechanism: Composed, interval: float) -> Any:
    composed = None
    for part, count in mechanism.parts:
        if isinstance(part, Gaussian):  # T shifts of mu are one of mu sqrt(T), exactly
            together = Gaussian(noise_multiplier=part.noise_multiplier / math.sqrt(count), adjacency=part.adjacency)
            repeated = distribution(together, interval)
        else:
            repeated = distribution(part, interval).self_compose(count)
        composed = repeated if composed is None else composed.compose(repeated)
    return composed


@distribution.register
def _(mechanism: Subsampled, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as library

    q = mechanism.sampling.probability
    if q == 0:
        return library.identity(interval)
    if isinstance(mechanism.sampling, PoissonSampling):
        relation = library.NeighborRel.REPLACE_ONE
        if mechanism.adjacency is not Adjacency.REPLACE_ONE:  # zero-out has add-remove's pair of output laws
            relation = library.NeighborRel.ADD_OR_REMOVE_ONE
        return library.from_gaussian_mechanism(
            mechanism.mechanism.noise_multiplier,
            value_discretization_interval=interval,
            sampling_prob=q,
            neighboring_relation=relation,
        )
    return _fixed_size_distribution(mechanism, interval)


def _fixed_size_distribution(mechanism: Subsampled, interval: float) -> Any:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    steps = math.ceil(_largest_loss(mechanism) / interval) + 1
    profile = np.clip(round_profile(np.arange(-steps, steps + 1) * interval, mechanism), 0.0, 1.0)
    return library.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -steps, steps, profile)
    )
