"""Privacy loss distributions; dp-accounting is imported when first needed.

The profile of each mechanism's dominating pair (`accounting.poisson`, `accounting.fixed_size`) is discretised by
connecting the dots (Doroshenko et al. 2022), an upper bound on every grid. Equal rounds are composed by
`accounting.self_composed`, different ones by dp-accounting.
"""

import itertools
import math
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np

from accounting import fixed_size, loss_grid, poisson, require
from accounting.adjacency import Adjacency
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import privacy_profile
from accounting.half_lines import Floats
from accounting.mechanisms import Composed, FixedSizeSampling, Gaussian, Mechanism, SingleRelease, Subsampled
from accounting.self_composed import LossLaw

SMALLEST_DELTA = 1e-12
"""Below this the rounding of the FFT and the truncated tails (about 1e-15) could matter; use RDP there."""

MOST_ROUNDS = 10**8
"""Beyond it the grid would be coarser than one round's losses."""


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
    parts = loss_grid.parts_of(mechanism)
    for part, _ in parts:
        if not _supported(part):
            name = type(part.mechanism if isinstance(part, Subsampled) else part).__name__
            raise UnsupportedMechanism(
                f"accountant='pld' with {name}: no privacy loss distribution is implemented. Use accountant 'rdp'."
            )
    rounds = sum(count for _, count in parts)
    if rounds > MOST_ROUNDS:
        raise InvalidParameter(
            f"rounds={rounds} with accountant='pld': must be at most {MOST_ROUNDS}, beyond it no grid fits in memory. "
            "Use accountant='rdp'."
        )
    slack = composition_slack(rounds)
    if slack > target / 2:
        raise InvalidParameter(
            f"delta={target} with accountant='pld': too small for this many rounds, whose numerical convolution is "
            f"good to {slack:.1e}. Use accountant='rdp'."
        )
    with np.errstate(over="ignore"):  # dp-accounting's tail bounds try orders that overflow, and skip them
        return _composed_epsilon(mechanism, target - slack)


def _composed_epsilon(mechanism: Mechanism, delta: float) -> float:
    interval = loss_grid.interval(mechanism)
    (part, count), *others = loss_grid.parts_of(mechanism)
    if others or not isinstance(part, Subsampled) or part.sampling.probability == 0:
        return smallest_epsilon(distribution(mechanism, interval), delta)
    epsilons = [law.repeated(count).smallest_epsilon(delta) for law in _orders(part, interval)]
    return max(epsilons) * (1 + 1e-12)


def _supported(part: Any) -> bool:
    return isinstance(part.mechanism if isinstance(part, Subsampled) else part, Gaussian)


def supports(mechanism: Mechanism) -> bool:
    """Whether every release of the mechanism has a privacy loss distribution here: Gaussians, sampled or not."""
    return all(_supported(part) for part, _ in loss_grid.parts_of(mechanism))


def smallest_epsilon(distribution: Any, delta: float) -> float:
    return loss_grid.smallest_epsilon(distribution.get_delta_for_epsilon, delta) * (1 + 1e-12)


def composition_slack(compositions: int) -> float:
    """Probability that rounding of the FFT and truncated tails may misplace: delta is tightened by it."""
    return 2e-16 * (compositions + 20)


@singledispatch
def distribution(mechanism: Mechanism, interval: float) -> Any:
    """dp-accounting's PrivacyLossDistribution of `mechanism`, dominating it on a grid of `interval`."""
    raise UnsupportedMechanism(f"{type(mechanism).__name__}: no privacy loss distribution is implemented.")


@distribution.register
def _(mechanism: Gaussian, interval: float) -> Any:
    return _plain(mechanism.mu, interval)


@distribution.register
def _(mechanism: Composed, interval: float) -> Any:
    composed = None
    for part, count in mechanism.parts:
        if isinstance(part, Gaussian):  # T shifts of mu are one of mu sqrt(T), exactly
            repeated = _plain(part.mu * math.sqrt(count), interval)
        else:
            repeated = distribution(part, interval).self_compose(count)
        composed = repeated if composed is None else composed.compose(repeated)
    return composed


@distribution.register
def _(mechanism: Subsampled, interval: float) -> Any:
    if mechanism.sampling.probability == 0:
        return _library().identity(interval)
    orders = [loss_grid.in_library(law) for law in _orders(mechanism, interval)]
    return _library().PrivacyLossDistribution(*orders)


def _orders(mechanism: Subsampled, interval: float) -> list[LossLaw]:
    """The loss law of each order of the worlds; one where they are alike.

    The worlds keep their order from round to round: the two orders are composed apart, the worse one counts.
    """
    forth, back = _profiles(mechanism, _losses(loss_grid.largest_loss(mechanism), interval))
    one = loss_grid.connect_dots(interval, forth, back)
    return (
        [one] if mechanism.adjacency is Adjacency.REPLACE_ONE else [one, loss_grid.connect_dots(interval, back, forth)]
    )


def _profiles(mechanism: Subsampled, losses: Floats) -> tuple[Floats, Floats]:
    """The one-round profiles of both orders. Poisson zero-out has add-remove's pair of output laws."""
    assert isinstance(mechanism.mechanism, Gaussian)  # `supports` has been asked
    round_ = {
        "sampling_probability": mechanism.sampling.probability,
        "noise_multiplier": mechanism.mechanism.noise_multiplier,
    }
    fixed = isinstance(mechanism.sampling, FixedSizeSampling)
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        profile = (fixed_size if fixed else poisson).replacement_profile(losses, **round_)
        return profile, profile
    if fixed:
        return fixed_size.zeroing_profile(losses, **round_), fixed_size.restoring_profile(losses, **round_)
    return poisson.removal_profile(losses, **round_), poisson.addition_profile(losses, **round_)


def _plain(mu: float, interval: float) -> Any:
    profile = privacy_profile(_losses(loss_grid.largest_shift_loss(1.0, mu), interval), mu=mu)
    return _library().PrivacyLossDistribution(loss_grid.in_library(loss_grid.connect_dots(interval, profile, profile)))


def _losses(largest: float, interval: float) -> Floats:
    steps = math.ceil(largest / interval) + 1
    return interval * np.arange(steps + 1, dtype=float)


def _library() -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution


def epsilons(mechanism: SingleRelease, *, delta: float, rounds: int, lost: float = 0.0) -> Iterator[float]:
    """Epsilon after 1, 2, ... rounds of `mechanism`, on the grid of `rounds` rounds; each an upper bound.

    `lost` is taken off delta for every round: what its account is silent about. One convolution a round; may be drawn
    beyond `rounds`. Domain and direction of error: those of `epsilon`.
    """
    require.open_probability(delta=delta)
    one = distribution(mechanism, loss_grid.interval(Composed(parts=((mechanism, rounds),))))
    total = one
    for count in itertools.count(1):
        target = delta - count * lost - 2 * composition_slack(count)
        yield smallest_epsilon(total, target) if target > 0 else math.inf
        with np.errstate(over="ignore"):
            total = total.compose(one, tail_mass_truncation=1e-15)
