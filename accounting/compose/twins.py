"""Compositions with Gaussians in the place of noise that is nearly Gaussian, or stays below a Gaussian."""

import math
from dataclasses import dataclass
from typing import Any

from accounting import require
from accounting.mechanisms import (
    Composed,
    Gaussian,
    Mechanism,
    SingleRelease,
    Subsampled,
    parts_of,
    sampling_of,
    unsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.kinds import account_of

_ROUNDING = 1 + 1e-12
_PAIRWISE = ("poisson", "fixed", "all", "cyclic")
"""Samplers under which a pair of worlds that stays below a Gaussian pair is proven to be enough. In a public order a
participation is a release without sampling, and every other round is the same in both worlds."""


@dataclass(frozen=True, kw_only=True)
class Dominating(Composed):
    """Gaussian releases whose pairs dominate those of other releases, one by one: their adjacencies may differ.

    A loss distribution of each part is that of its own pair, in the same order of the worlds, so composition needs no
    adjacency in common.
    """

    def __post_init__(self) -> None:
        """Accept parts that a `Composed` was made of before they were replaced."""


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """A mechanism of Gaussians, and `closeness`: the log-ratio of the laws asked about to post-processings of it.

    So delta(epsilon) <= e^closeness delta_continuous(epsilon - 2 closeness) + lost, for every pair of neighbours.
    pairwise: some release is below its Gaussian for every pair of worlds, and no more is known of it: an account that
    looks at three vectors of a round at once (an adaptive one of fixed-size sampling) does not follow for it.
    """

    mechanism: Mechanism
    closeness: float
    lost: float = 0.0
    pairwise: bool = False


def continuous(mechanism: Mechanism, *, lost: float | None = None) -> Continuous:
    """`mechanism` with every release that has a twin (discrete Gaussians), sampled or not, replaced by that Gaussian;
    with `lost`, what each release may lose of delta, releases that stay below a Gaussian (`Account.above`) by that
    one; other parts stay.

    Claim: that of each kind's twin, or of `Account.above`. Every sampler is a mixture over cohorts, which keeps the
    ratio; the closeness of a composition is the sum, and so is what is lost (docs/theory-bernoulli.md, Theorem 7).
    Direction of error: upper bound. UnsupportedMechanism where a twin is infinitely far.
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
    """`count` times this release: what stands in the place of one, and how far off all are."""
    account = account_of(unsampled(part))
    if account.twin is not None:
        twin, closeness = _twin(part, count)
        return Continuous(mechanism=twin, closeness=closeness)
    if account.above is not None and lost is not None:
        above = _above(part, lost)
        if above is not None:
            return Continuous(mechanism=above, closeness=0.0, lost=count * lost, pairwise=True)
    return Continuous(mechanism=part, closeness=0.0)


def _above(part: SingleRelease, lost: float) -> SingleRelease | None:
    """The Gaussian that one release stays below; None where there is none.

    Under fixed-size sampling it is that of replacing a client, 2 clips apart, also for zero-out: the client that is
    drawn instead may send anything. Under Poisson sampling with replace-one a pair is not enough (docs/theory.md,
    Theorem 3).
    """
    noise, sampling = unsampled(part), sampling_of(part)
    adjacency = Adjacency.REPLACE_ONE if sampling.name == "fixed" else noise.adjacency
    if sampling.name not in _PAIRWISE or (sampling.name == "poisson" and adjacency is Adjacency.REPLACE_ONE):
        return None
    above = account_of(noise).above
    assert above is not None  # the caller has asked
    mu = above(noise, adjacency.sensitivity_in_clips, lost)
    if mu is None or not require.SMALLEST_NOISE < adjacency.sensitivity_in_clips / mu < require.LARGEST_NOISE:
        return None
    gaussian = Gaussian(noise_multiplier=adjacency.sensitivity_in_clips / mu / _ROUNDING, adjacency=adjacency)
    return gaussian if noise is part else Subsampled(mechanism=gaussian, sampling=sampling)


def _twin(part: SingleRelease, count: int) -> tuple[SingleRelease, float]:
    noise = unsampled(part)
    find = account_of(noise).twin
    assert find is not None  # the caller has asked
    twin: Gaussian
    twin, one_release = find(noise, count)
    if noise is part:
        return twin, count * one_release
    never = sampling_of(part).probability == 0  # then both worlds are the same
    return Subsampled(mechanism=twin, sampling=sampling_of(part)), 0.0 if never else count * one_release
