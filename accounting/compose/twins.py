"""Compositions with Gaussians in the place of noise that is nearly Gaussian."""

import math
from dataclasses import dataclass

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
from accounting.mechanisms.kinds import account_of

_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """A mechanism of Gaussians, and `closeness`: the log-ratio of the laws asked about to post-processings of it.

    So delta(epsilon) <= e^closeness delta_continuous(epsilon - 2 closeness), for every pair of neighbours.
    """

    mechanism: Mechanism
    closeness: float


def continuous(mechanism: Mechanism) -> Continuous:
    """`mechanism` with every release that has a twin (discrete Gaussians), sampled or not, replaced by that Gaussian;
    other parts stay.

    Claim: that of each kind's twin. Every sampler is a mixture over cohorts, which keeps the ratio; the closeness of a
    composition is the sum. Direction of error: upper bound. UnsupportedMechanism where a twin is infinitely far.
    """
    parts = parts_of(mechanism)
    if not any(_has_twin(part) for part, _ in parts):
        return Continuous(mechanism=mechanism, closeness=0.0)
    replaced = [_twin(part, count) for part, count in parts]
    counted = tuple((twin, count) for (twin, _), (_, count) in zip(replaced, parts, strict=True))
    order = mechanism.order if isinstance(mechanism, Composed) else ()
    near = Composed(parts=counted, order=order)
    return Continuous(mechanism=near, closeness=math.fsum(eta for _, eta in replaced) * _ROUNDING)


def _has_twin(part: SingleRelease) -> bool:
    return account_of(unsampled(part)).twin is not None


def _twin(part: SingleRelease, count: int) -> tuple[SingleRelease, float]:
    noise = unsampled(part)
    find = account_of(noise).twin
    if find is None:
        return part, 0.0
    twin: Gaussian
    twin, one_release = find(noise, count)
    if noise is part:
        return twin, count * one_release
    never = sampling_of(part).probability == 0  # then both worlds are the same
    return Subsampled(mechanism=twin, sampling=sampling_of(part)), 0.0 if never else count * one_release
