"""Privacy loss distributions: an adapter to dp-accounting (imported when first needed).

The profile of each mechanism's dominating pair (`accounting.poisson`, `accounting.fixed_size`) is discretised by
connecting the dots (Doroshenko et al. 2022), an upper bound on every grid; composition is dp-accounting's FFT.
"""

import itertools
import math
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
from scipy.special import ndtri

from accounting import poisson, require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.fixed_size import round_profile
from accounting.half_lines import Floats
from accounting.mechanisms import (
    Adjacency,
    Composed,
    FixedSizeSampling,
    Gaussian,
    Mechanism,
    Subsampled,
)

SMALLEST_DELTA = 1e-12
"""Below this the rounding of the FFT and the truncated tails (about 1e-15) could matter; use RDP there."""

# Mass that may go to an infinite loss, an upper bound still: one release's, at most this.
_TAIL_MASS = 1e-19
_LARGEST_GRID = 1_000_000


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
    slack = composition_slack(sum(count for _, count in _parts(mechanism)))
    if slack > target / 2:
        raise InvalidParameter(
            f"delta={target} with accountant='pld': too small for this many rounds, whose numerical convolution is "
            f"good to {slack:.1e}. Use accountant='rdp'."
        )
    with np.errstate(over="ignore"):  # dp-accounting's tail bounds try orders that overflow, and skip them
        return float(distribution(mechanism, grid_interval(mechanism)).get_epsilon_for_delta(target - slack))


def composition_slack(compositions: int) -> float:
    """Probability that rounding of the FFT and truncated tails may misplace: delta is tightened by it."""
    return 2e-16 * (compositions + 20)


def _parts(mechanism: Mechanism) -> tuple[tuple[Any, int], ...]:
    return mechanism.parts if isinstance(mechanism, Composed) else ((mechanism, 1),)


def grid_interval(mechanism: Mechanism) -> float:
    """Grid spacing of the losses: fine against one release's spread, coarse enough for the memory.

    Any spacing gives an upper bound; this one keeps it within about 1e-4 of the limit.
    """
    parts = _parts(mechanism)
    spreads = [_spread(part) for part, _ in parts]
    variance = sum(count * spread**2 for (_, count), spread in zip(parts, spreads, strict=True))
    total_range = variance + 20 * math.sqrt(variance)
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
    """A loss that one release exceeds with probability at most _TAIL_MASS."""
    q, mu = _sampling_and_mu(part)
    if q == 0:
        return 0.0
    tail = float(-ndtri(min(0.5, _TAIL_MASS / q)))
    return float(np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + mu * mu / 2 + tail * mu))


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
    steps = math.ceil(_largest_loss(mechanism) / interval) + 1
    losses = np.arange(-steps, steps + 1) * interval
    if isinstance(mechanism.sampling, FixedSizeSampling):
        return library.PrivacyLossDistribution(_dots(interval, round_profile(losses, mechanism)))
    round_ = {"sampling_probability": q, "noise_multiplier": mechanism.mechanism.noise_multiplier}
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        return library.PrivacyLossDistribution(_dots(interval, poisson.replacement_profile(losses, **round_)))
    # Zero-out has add-remove's pair of output laws; the two orders are composed apart, the worse one counts.
    removal = _dots(interval, poisson.removal_profile(losses, **round_))
    return library.PrivacyLossDistribution(removal, _dots(interval, poisson.addition_profile(losses, **round_)))


def _dots(interval: float, profile: Floats) -> Any:
    """The loss distribution on the grid -m..m that connects the dots of a profile given there."""
    from dp_accounting.pld import pld_pmf

    steps = len(profile) // 2
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -steps, steps, np.clip(profile, 0.0, 1.0))


def epsilons(mechanism: Gaussian | Subsampled, *, delta: float, rounds: int) -> Iterator[float]:
    """Epsilon after 1, 2, ... rounds of `mechanism`, on the grid of `rounds` rounds; each an upper bound.

    One convolution a round; may be drawn beyond `rounds`. Domain and direction of error: those of `epsilon`.
    """
    require.open_probability(delta=delta)
    one = distribution(mechanism, grid_interval(Composed(parts=((mechanism, rounds),))))
    total = one
    for count in itertools.count(1):
        target = delta - 2 * composition_slack(count)
        yield float(total.get_epsilon_for_delta(target)) if target > 0 else math.inf
        with np.errstate(over="ignore"):
            total = total.compose(one, tail_mass_truncation=1e-15)
