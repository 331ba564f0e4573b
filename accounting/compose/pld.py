"""Account by privacy loss distributions (PLDs).

The profile of each mechanism's dominating pair (`gaussian.sampled_profiles`, `gaussian.sampled_profiles`) is
discretised by connecting the dots (Doroshenko et al. 2022), an upper bound on every grid, and composed by
`compose.loss_distribution`.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.compose import loss_grid
from accounting.compose.loss_distribution import LossDistribution, certain_loss, composed, tilted_for
from accounting.compose.twins import Continuous
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import privacy_profile, sampled_profiles
from accounting.mechanisms import Adjacency, Mechanism, SingleRelease, gaussian_of, parts_of, sampling_of, unsampled

SMALLEST_DELTA = 1e-12
"""Smallest delta of this account. Below it rounding errors of the FFT and truncated tails (about 1e-15) could
matter; use RDP.
"""

_TILTED_ABOVE = 1e-4
"""Rounding error as a share of delta above which a second, tilted composition is computed."""
MOST_ROUNDS = 10**8
"""Largest number of rounds. For more the grid would be coarser than the losses of one round."""


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Return the smallest epsilon at `delta` of the composed privacy loss distribution.

    Direction of error: upper bound (pessimistic discretisation, truncated tails count as infinite losses).
    Tolerance on the default grid: about 1e-4 relative. Domain: delta of at least SMALLEST_DELTA.
    Adjacency: the mechanism's, both orders of the neighbours.
    """
    target = require.open_probability(delta=delta)
    if target < SMALLEST_DELTA:
        raise InvalidParameter(
            f"delta={target} with accountant='pld': must be at least {SMALLEST_DELTA}, because rounding errors of the "
            "numerical convolution matter below it. Use accountant='rdp'."
        )
    parts = parts_of(mechanism)
    for part, _ in parts:
        if gaussian_of(part) is None:
            name = type(unsampled(part)).__name__
            raise UnsupportedMechanism(
                f"accountant='pld' with {name}: no privacy loss distribution is implemented. Use accountant 'rdp'."
            )
    rounds = sum(count for _, count in parts)
    if rounds > MOST_ROUNDS:
        raise InvalidParameter(
            f"rounds={rounds} with accountant='pld': must be at most {MOST_ROUNDS}, because grids for more rounds do "
            "not fit in memory. Use accountant='rdp'."
        )
    slack, interval = composition_slack(rounds), loss_grid.interval(mechanism)
    held = distribution(mechanism, interval, held_for=target) if slack > _TILTED_ABOVE * target else None
    found = distribution(mechanism, interval).charged_epsilon(target, slack, held)
    if found == math.inf and slack > target / 2:
        raise InvalidParameter(
            f"delta={target} with accountant='pld': too small for this number of rounds, for which the numerical "
            f"convolution has error {slack:.1e}. Use accountant='rdp'."
        )
    return found


def supports(mechanism: Mechanism) -> bool:
    """Return True if this account supports every release: Gaussians, sampled or unsampled."""
    return all(gaussian_of(part) is not None for part, _ in parts_of(mechanism))


def composition_slack(compositions: int) -> float:
    """Return a bound on the mass misplaced by rounding errors of the FFT and truncated tails; it is subtracted from
    delta.
    """
    return 2e-16 * (compositions + 20)


@dataclass(frozen=True, kw_only=True, eq=False)
class LossDistributions:
    """Privacy loss distributions of both orders of the neighbours, or one distribution if they are equal.

    The orders are composed separately, because the order does not change between rounds. So the maximum over orders is
    taken once at the end.
    """

    orders: tuple[LossDistribution, ...]

    def repeated(self, count: int) -> "LossDistributions":
        """Return the distributions of `count` independent releases of this kind."""
        return LossDistributions(orders=tuple(law.repeated(count) for law in self.orders))

    def plus(self, other: "LossDistributions") -> "LossDistributions":
        """Return the distributions of the composition with other releases."""
        both = range(max(len(self.orders), len(other.orders)))  # orders[-1] is the only one if both are equal
        return LossDistributions(orders=tuple(self.orders[-k].plus(other.orders[-k]) for k in both))

    def smallest_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 that both orders meet at `delta`."""
        return max(law.smallest_epsilon(delta) for law in self.orders) * (1 + 1e-12)

    def charged_epsilon(self, delta: float, slack: float, held: "LossDistributions | None" = None) -> float:
        """Return `smallest_epsilon` if transforms may have misplaced mass `slack`. held: tilted form of these
        distributions.

        For each order the smaller epsilon of the untilted and the tilted distribution is used. Direction of error:
        upper bound.
        """
        both = (self,) if held is None else (self, held)
        choices = list(zip(*(laws.orders for laws in both), strict=True))
        epsilons = [min(law.charged_epsilon(delta, slack) for law in some) for some in choices]
        return float(max(epsilons)) * (1 + 1e-12)

    def delta(self, epsilon: ArrayLike) -> Floats:
        """Return the larger delta of the two orders, elementwise."""
        return np.asarray(np.max([law.delta(epsilon) for law in self.orders], axis=0))


def tilt(mechanism: SingleRelease, rounds: int, interval: float, delta: float) -> float:
    """Return the exponential tilt for composing about `rounds` PLDs; 0 if rounding errors are small against delta
    without a tilt.
    """
    if 2 * composition_slack(rounds) <= _TILTED_ABOVE * delta:
        return 0.0
    held = [tilted_for([(law, rounds)], delta)[0][0] for law in distribution(mechanism, interval).orders]
    return max(held, key=lambda law: (rounds * law.scale - math.log(delta)) / law.tilt).tilt


@lru_cache(maxsize=4)
def distribution(
    mechanism: Mechanism, interval: float, *, held_for: float | None = None, tilt: float = 0.0
) -> LossDistributions:
    """Return the privacy loss distributions that dominate `mechanism`, on a grid of `interval`.

    held_for: a delta for which the distributions are tilted, so that rounding errors near it are small.
    tilt: the tilt itself, for composition with other distributions of this tilt. Distributions are tilted before they
    are composed, because later tilting would increase the rounding errors of the transform.
    Errors: UnsupportedMechanism for a mechanism without a PLD."""
    parts = [one for part, count in parts_of(mechanism) for one in _part_distributions(part, count, interval)]
    together = range(max(len(laws.orders) for laws, _ in parts))
    columns = [[(laws.orders[-k], count) for laws, count in parts] for k in together]
    if held_for is not None:
        columns = [tilted_for(column, held_for) for column in columns]
    elif tilt:
        columns = [[(law.tilted(tilt), count) for law, count in column] for column in columns]
    return LossDistributions(
        orders=tuple(column[0][0] if [n for _, n in column] == [1] else composed(column) for column in columns)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LossAccount(Continuous):
    """Account of releases by the loss distributions of the Gaussians that replace them.

    laws: the distributions, and their tilted form if rounding errors need it.
    """

    laws: tuple[LossDistributions, ...]

    @classmethod
    def of(cls, replacement: Continuous, interval: float, *, tilt: float = 0.0) -> "LossAccount":
        """Return the account of a replacement on a grid."""
        plain = distribution(replacement.mechanism, interval)
        laws = (plain, distribution(replacement.mechanism, interval, tilt=tilt)) if tilt else (plain,)
        return cls(laws=laws, **vars(replacement))

    @property
    def distributions(self) -> LossDistributions:
        """Distributions of the losses, not tilted."""
        return self.laws[0]

    def repeated(self, count: int) -> "LossAccount":
        """Return the account of `count` such releases."""
        laws = tuple(law.repeated(count) for law in self.laws)
        return replace(self, laws=laws, closeness=count * self.closeness, lost=count * self.lost)

    def after(self, before: "LossAccount | None") -> "LossAccount":
        """Return the account of earlier releases followed by these."""
        if before is None:
            return self
        laws = tuple(one.plus(two) for one, two in zip(before.laws, self.laws, strict=False))
        closeness, lost = self.closeness + before.closeness, self.lost + before.lost
        return replace(self, laws=laws, closeness=closeness, lost=lost)

    def epsilon(self, delta: float, slack: float) -> float:
        """Return the epsilon at `delta` if transforms may have misplaced mass `slack`. Direction of error: upper
        bound.
        """
        return self.distributions.charged_epsilon(self.delta_left(delta), slack, *self.laws[1:])

    def delta_left(self, delta: float) -> float:
        """Return the delta of the Gaussians that implies `delta` for the replaced releases."""
        return (delta - self.lost) * math.exp(-self.closeness)


def _part_distributions(part: SingleRelease, count: int, interval: float) -> list[tuple[LossDistributions, int]]:
    """Return the distributions of a part, each with its count. T unsampled Gaussians of mu are exactly one of mu
    sqrt(T).
    """
    if (squared := loss_grid.squared_shift(part, count)) is not None:
        return [(_unsampled_losses(math.sqrt(squared), interval), 1)]
    if sampling_of(part).probability == 0:
        return [(LossDistributions(orders=(certain_loss(0, spacing=interval),)), 1)]
    if found := loss_grid.blocks(part, count):
        blocks, shift = found
        return [
            (LossDistributions(orders=loss_grid.block_distributions(block, shift, interval)), times)
            for block, times in blocks
        ]
    return [(LossDistributions(orders=tuple(_distributions_of_orders(part, interval))), count)]


def _distributions_of_orders(mechanism: SingleRelease, interval: float) -> list[LossDistribution]:
    """Return the privacy loss distribution of one round for each order of the neighbours; one if both are equal."""
    forth, back = _profiles(mechanism, _grid_losses(loss_grid.largest_loss(mechanism), interval))
    pairs = [(forth, back)] if mechanism.adjacency is Adjacency.REPLACE_ONE else [(forth, back), (back, forth)]
    return [loss_grid.connect_dots(interval, *pair) for pair in pairs]


def _profiles(mechanism: SingleRelease, losses: Floats) -> tuple[Floats, Floats]:
    """Return the profiles of one round in both orders. Under Poisson sampling zero-out has the pair of add-remove."""
    noise, sampling = gaussian_of(mechanism), sampling_of(mechanism)
    assert noise is not None  # the caller has checked `supports`
    if sampling.cohort_cap is not None:
        return sampled_profiles.capped_profiles(
            losses, sampling=sampling, adjacency=mechanism.adjacency, noise_multiplier=noise.noise_multiplier
        )
    round_ = {"sampling_probability": sampling.probability, "noise_multiplier": noise.noise_multiplier}
    fixed, by = sampling.fixed_size, sampled_profiles
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        profile = (by.fixed_size_replacement_profile if fixed else by.poisson_replacement_profile)(losses, **round_)
        return profile, profile
    forth, back = (by.zeroing_profile, by.restoring_profile) if fixed else (by.removal_profile, by.addition_profile)
    return forth(losses, **round_), back(losses, **round_)


def _unsampled_losses(mu: float, interval: float) -> LossDistributions:
    profile = privacy_profile(_grid_losses(loss_grid.largest_shift_loss(1.0, mu), interval), mu=mu)
    return LossDistributions(orders=(loss_grid.connect_dots(interval, profile, profile),))


def _grid_losses(largest: float, interval: float) -> Floats:
    steps = math.ceil(largest / interval) + 1
    return interval * np.arange(steps + 1, dtype=float)
