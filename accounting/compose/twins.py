"""Compositions as Gaussians: noise that is Gaussian, nearly Gaussian or dominated by it, and the part of delta for
that.
"""

import math
from dataclasses import dataclass
from typing import Any

from accounting import require
from accounting.compose import loss_grid
from accounting.errors import UnsupportedMechanism
from accounting.factorisation.toeplitz import squares
from accounting.mechanisms import (
    CappedPoissonSampling,
    Composed,
    Gaussian,
    Mechanism,
    SingleRelease,
    Subsampled,
    parts_of,
    plain_gaussian,
    sampling_of,
    schedule_of,
    unsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.kinds import account_of
from accounting.mechanisms.samplings import CappedByPairs
from accounting.rounding import upwards

_LOSS_SHARE = 1e-3
_ROUNDING = 1 + 1e-12
_PAIRWISE = ("poisson", "capped-poisson", "fixed", "all", "cyclic")
"""Samplers for which domination by a Gaussian pair is proven to suffice. In a public order a participation is a release
without sampling, and every other round is equal for both neighbours."""


@dataclass(frozen=True, kw_only=True)
class Dominating(Composed):
    """Gaussian releases whose pairs dominate those of other releases, one by one: their adjacencies may differ.

    The loss distribution of each part is that of its own pair, in the same order of the neighbours, so composition
    needs no common adjacency.
    """

    def __post_init__(self) -> None:
        """Accept parts of a `Composed` with their releases replaced."""


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """Mechanism of Gaussians near another; `closeness`: log-ratio of the other's distributions to post-processings of
    it.

    So delta(epsilon) <= e^closeness delta_continuous(epsilon - 2 closeness) + lost, for every pair of neighbours.
    pairwise: True if some release is only known to be below its Gaussian for every pair of neighbours: accounts that
    compare three vectors of a round (the adaptive one of fixed-size sampling) do not apply.
    """

    mechanism: Mechanism
    closeness: float
    lost: float = 0.0
    pairwise: bool = False


def continuous(mechanism: Mechanism, *, lost: float | None = None) -> Continuous:
    """Return `mechanism` with every release replaced by a Gaussian near or above it, if there is one.

    Releases with a twin (discrete Gaussians), sampled or not, become that Gaussian; with `lost`, the part of delta of
    each release, those dominated by a Gaussian (`Account.above`) become that one; other parts stay.
    Claim: that of each kind's twin, or of `Account.above`. Every sampler is a mixture over cohorts, which keeps the
    ratio; the closeness of a composition is the sum, and so is the part of delta (docs/theory-bernoulli.md, Theorem 7).
    Direction of error: upper bound. Errors: UnsupportedMechanism for a twin at infinite distance.
    """
    parts = parts_of(mechanism)
    replaced = [_replaced(part, count, lost) for part, count in parts]
    if all(one.mechanism is part for one, (part, _) in zip(replaced, parts, strict=True)):
        return Continuous(mechanism=mechanism, closeness=0.0)
    counted: Any = tuple((one.mechanism, count) for one, (_, count) in zip(replaced, parts, strict=True))
    order = mechanism.order if isinstance(mechanism, Composed) else ()
    return Continuous(
        mechanism=Dominating(parts=counted, order=order),
        closeness=math.fsum(one.closeness for one in replaced) * _ROUNDING,
        lost=math.fsum(one.lost for one in replaced) * _ROUNDING,
        pairwise=any(one.pairwise for one in replaced),
    )


def _replaced(part: SingleRelease, count: int, lost: float | None) -> Continuous:
    """Return the release in place of this one, and the closeness of `count` of them."""
    account = account_of(unsampled(part))
    if account.twin is not None:
        twin, closeness = _twin(part, count)
        return Continuous(mechanism=twin, closeness=closeness)
    if account.above is not None and lost is not None:
        above = _dominating_gaussian(part, lost)
        if above is not None:
            return Continuous(mechanism=above, closeness=0.0, lost=count * lost, pairwise=True)
    return Continuous(mechanism=part, closeness=0.0)


def _dominating_gaussian(part: SingleRelease, lost: float) -> SingleRelease | None:
    """Return the Gaussian that dominates one release; None if there is none.

    Under fixed-size sampling it is that of replacing a client, 2 clips apart, also for zero-out: the client drawn
    instead may send anything. The same holds in full rounds under a cap. Under Poisson sampling with replace-one a pair
    does not suffice (docs/theory.md, Theorem 3).
    """
    noise, sampling = unsampled(part), sampling_of(part)
    adjacency = Adjacency.REPLACE_ONE if sampling.name == "fixed" else noise.adjacency
    drawn = sampling.name in ("poisson", "capped-poisson")
    if sampling.name not in _PAIRWISE or (drawn and adjacency is Adjacency.REPLACE_ONE):
        return None
    multiplier = _multiplier_above(noise, adjacency.sensitivity_in_clips, lost)
    if multiplier is None:
        return None
    gaussian = Gaussian(noise_multiplier=multiplier, adjacency=adjacency)
    if isinstance(sampling, CappedPoissonSampling):
        displaced = _multiplier_above(noise, Adjacency.REPLACE_ONE.sensitivity_in_clips, lost)
        if displaced is None:
            return None
        sampling = CappedByPairs(**vars(sampling), full_noise_multiplier=displaced)
    return gaussian if noise is part else Subsampled(mechanism=gaussian, sampling=sampling)


def _multiplier_above(noise: Any, in_clips: float, lost: float) -> float | None:
    """Return the noise multiplier of the Gaussian above `noise` for neighbours `in_clips` clips apart; None without
    one.
    """
    above = account_of(noise).above
    assert above is not None  # the caller has asked
    mu = above(noise, in_clips, lost)
    if mu is None or not require.SMALLEST_NOISE < in_clips / mu < require.LARGEST_NOISE:
        return None
    return in_clips / mu / _ROUNDING


def _twin(part: SingleRelease, count: int) -> tuple[SingleRelease, float]:
    noise = unsampled(part)
    find = account_of(noise).twin
    assert find is not None  # the caller has asked
    twin: Gaussian
    twin, one_release = find(noise, count)
    if noise is part:
        return twin, count * one_release
    never = sampling_of(part).probability == 0  # then both neighbours are the same
    return Subsampled(mechanism=twin, sampling=sampling_of(part)), 0.0 if never else count * one_release


def nearly_gaussian(mechanism: Mechanism, delta: float) -> tuple[Continuous, float]:
    """Return the mechanism with continuous noise, and the delta for its epsilon: that plus 2 closeness is a bound."""
    for part, _ in parts_of(mechanism):
        account_of(unsampled(part))  # refuses what is no mechanism
    left = without_overflow(mechanism, delta)
    near = continuous(mechanism, lost=allowed_loss(left, sum(count for _, count in parts_of(mechanism))))
    target = (left - near.lost) * math.exp(-near.closeness)
    if target < 1e-300:
        raise UnsupportedMechanism(
            f"discrete noise within e^{near.closeness:.3g} of a Gaussian: too far for any delta. Raise the scale."
        )
    return near, target


def allowed_loss(delta: float, releases: int) -> float:
    """Return the share of delta that each of `rounds` releases may take: a thousandth in all.

    Rounded down to a power of ten, so that similar compositions have equal shares.
    """
    return 10.0 ** math.floor(math.log10(_LOSS_SHARE * delta / releases))


def overflow(mechanism: Mechanism) -> float:
    """Return the part of delta for failures: the probability that some release draws more clients than its sum has
    uploads.

    The account does not cover that event. It is the only one that an account of sums leaves to probability: wrap-around
    of a ring is post-processing (docs/theory.md, section 7), norms of integers are checked. Direction of error: upper
    bound (union over the releases).
    """
    return math.fsum(count * unsampled(part).overflow for part, count in parts_of(mechanism))


def without_overflow(mechanism: Mechanism, delta: float) -> float:
    """Return delta minus the part for failures."""
    target = delta - overflow(mechanism)
    if target <= 0:
        raise UnsupportedMechanism(
            f"delta={delta}: the cohort exceeds the uploads of a sum with probability "
            f"{upwards(overflow(mechanism))} over the run, which alone is more. Raise that number of uploads."
        )
    return target


def plain_shift(mechanism: Mechanism) -> float | None:
    """Return mu of Gaussians, plain or in a public order, which are one Gaussian together; None if anything is
    secret.
    """
    shifts = [_squared_shift(part, count) for part, count in parts_of(mechanism)]
    known = [one for one in shifts if one is not None]
    return math.sqrt(sum(known)) if len(known) == len(shifts) else None


def _squared_shift(part: SingleRelease, count: int) -> float | None:
    """Return mu^2 of `count` such releases; None if anything is secret."""
    if (plain := plain_gaussian(part)) is not None:
        return count * plain.mu**2
    schedule, public = schedule_of(part), loss_grid.public_order(part)
    return None if schedule is None or public is None else squares(schedule, count) * public.mu**2
