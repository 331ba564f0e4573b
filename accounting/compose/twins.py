"""Replacement of other noise by Gaussian noise that dominates or nearly equals it, with the part of delta that this
charges.
"""

import math
from dataclasses import dataclass
from typing import Any

from accounting import require
from accounting.compose import loss_grid
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import (
    Adjacency,
    Composed,
    Gaussian,
    Mechanism,
    SingleRelease,
    Subsampled,
    Unsampled,
    parts_of,
    sampling_of,
    unsampled,
)
from accounting.mechanisms.kinds import account_of
from accounting.mechanisms.samplings.independent import PairwiseCappedSampling
from accounting.rounding import upwards

_LOSS_SHARE = 1e-3
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, kw_only=True)
class DominatingGaussians(Composed):
    """Composition of Gaussian releases, each of which dominates one release of another composition. Their adjacencies
    may differ.

    Each part has the loss distribution of its pair, in the given order of the neighbours, so no common adjacency is
    needed.
    """

    def __post_init__(self) -> None:
        """Accept replaced parts without the checks of `Composed`."""


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """Mechanism of Gaussians that replaces an original mechanism, and the closeness of the two.

    closeness: log-ratio of the original distributions to post-processings of `mechanism`. So the original has
    delta(epsilon) <= e^closeness delta_continuous(epsilon - 2 closeness) + lost, for every pair of neighbours.
    pairwise: True if some release is only dominated for each single pair of neighbours. Then accounts that compare
    three vectors of a round (the adaptive account of fixed-size sampling) do not apply.
    """

    mechanism: Mechanism
    closeness: float
    lost: float = 0.0
    pairwise: bool = False


def continuous(mechanism: Mechanism, *, lost: float | None = None) -> Continuous:
    """Return `mechanism` with each release replaced by a Gaussian that nearly equals or dominates it, if one is known.

    Releases with a twin (discrete Gaussians), sampled or unsampled, are replaced by the twin. If `lost`, the part of
    delta of each release, is given, releases with a dominating Gaussian (`Account.dominating_mu`) are replaced by it.
    Other parts are unchanged.
    Claim: that of each kind's twin, or of `Account.dominating_mu`. Every sampler is a mixture over cohorts, which keeps
    the log-ratio. For a composition, closeness and parts of delta add up (docs/theory-bernoulli.md, Theorem 7).
    Direction of error: upper bound.
    Errors: UnsupportedMechanism for a twin with infinite closeness.
    """
    parts = parts_of(mechanism)
    replaced = [_replacement(part, count, lost) for part, count in parts]
    if all(one.mechanism is part for one, (part, _) in zip(replaced, parts, strict=True)):
        return Continuous(mechanism=mechanism, closeness=0.0)
    replaced_parts: Any = tuple((one.mechanism, count) for one, (_, count) in zip(replaced, parts, strict=True))
    order = mechanism.order if isinstance(mechanism, Composed) else ()
    return Continuous(
        mechanism=DominatingGaussians(parts=replaced_parts, order=order),
        closeness=math.fsum(one.closeness for one in replaced) * _ROUNDING,
        lost=math.fsum(one.lost for one in replaced) * _ROUNDING,
        pairwise=any(one.pairwise for one in replaced),
    )


def _replacement(part: SingleRelease, count: int, lost: float | None) -> Continuous:
    """Return the Gaussian that replaces `part`, with the closeness and the part of delta of `count` such releases."""
    noise, sampling = unsampled(part), sampling_of(part)
    account = account_of(noise)
    if account.twin is not None:
        twin, closeness = account.twin(noise, count)
        # If no client is ever drawn, the neighbours have equal distributions.
        closeness = count * closeness if sampling.probability > 0 else 0.0
        release = twin if noise is part else Subsampled(mechanism=twin, sampling=sampling)
        return Continuous(mechanism=release, closeness=closeness)
    above = None if account.dominating_mu is None or lost is None else _dominating_gaussian(part, lost)
    if above is not None and lost is not None:
        return Continuous(mechanism=above, closeness=0.0, lost=count * lost, pairwise=True)
    return Continuous(mechanism=part, closeness=0.0)


def _dominating_gaussian(part: SingleRelease, lost: float) -> SingleRelease | None:
    """Return the Gaussian that dominates one release; None if none is known.

    Under fixed-size sampling it is the Gaussian for neighbours 2 clips apart, also for zero-out, because the client
    drawn instead may send any vector. That also holds in full rounds under a cap. Under Poisson sampling with
    replace-one, domination by a pair does not suffice (docs/theory.md, Theorem 3). In a public order a participation is
    an unsampled release, and all other rounds are equal for both neighbours; other schedules have no proof.
    """
    noise, sampling = unsampled(part), sampling_of(part)
    adjacency = sampling.base_adjacency(noise.adjacency)
    proven = sampling.fixed_size or sampling.takes_all or sampling.public_order
    if not proven and (not sampling.independent or adjacency is Adjacency.REPLACE_ONE):
        return None
    multiplier = _dominating_multiplier(noise, adjacency.sensitivity_in_clips, lost)
    if multiplier is None:
        return None
    gaussian = Gaussian(noise_multiplier=multiplier, adjacency=adjacency)
    if sampling.cohort_cap is not None:
        full_round_multiplier = _dominating_multiplier(noise, Adjacency.REPLACE_ONE.sensitivity_in_clips, lost)
        if full_round_multiplier is None:
            return None
        sampling = PairwiseCappedSampling(**vars(sampling), full_noise_multiplier=full_round_multiplier)
    return gaussian if noise is part else Subsampled(mechanism=gaussian, sampling=sampling)


def _dominating_multiplier(noise: Unsampled, in_clips: float, lost: float) -> float | None:
    """Return the noise multiplier of the Gaussian that dominates `noise` for neighbours `in_clips` clips apart; None
    if none is known.
    """
    above = account_of(noise).dominating_mu
    mu = None if above is None else above(noise, in_clips, lost)
    if mu is None or not require.SMALLEST_NOISE < in_clips / mu < require.LARGEST_NOISE:
        return None
    return in_clips / mu / _ROUNDING


def nearly_gaussian(mechanism: Mechanism, delta: float) -> tuple[Continuous, float]:
    """Return (continuous mechanism, delta of that mechanism): its epsilon plus 2 closeness bounds epsilon of
    `mechanism`.
    """
    left = delta_without_overflow(mechanism, delta)
    replacement = continuous(mechanism, lost=allowed_loss(left, sum(count for _, count in parts_of(mechanism))))
    target = (left - replacement.lost) * math.exp(-replacement.closeness)
    if target < 1e-300:
        raise UnsupportedMechanism(
            f"discrete noise is within e^{replacement.closeness:.3g} of a Gaussian, which is too far for any delta. "
            "Raise the scale."
        )
    return replacement, target


def allowed_loss(delta: float, releases: int) -> float:
    """Return the part of delta for the domination of each of `releases` releases; in total it is a thousandth of delta.

    It is rounded down to a power of ten, so that similar compositions have equal parts.
    """
    return 10.0 ** math.floor(math.log10(_LOSS_SHARE * delta / releases))


def overflow(mechanism: Mechanism) -> float:
    """Return a bound on the probability that some release draws more clients than its sum has uploads. It is a part of
    delta.

    The accounts do not cover this event. It is the only probabilistic failure of a sum: wrap-around is post-processing
    (docs/theory.md, section 7), and norms of integers are checked.
    Direction of error: upper bound (union over the releases).
    """
    return math.fsum(count * unsampled(part).overflow for part, count in parts_of(mechanism))


def delta_without_overflow(mechanism: Mechanism, delta: float) -> float:
    """Return delta minus `overflow`. Errors: UnsupportedMechanism for an unknown kind, or if nothing is left."""
    for part, _ in parts_of(mechanism):
        account_of(unsampled(part))
    target = delta - overflow(mechanism)
    if target <= 0:
        raise UnsupportedMechanism(
            f"delta={delta}: the cohort exceeds the uploads of a sum with probability "
            f"{upwards(overflow(mechanism))} over the run, which is more than delta. Raise the number of uploads."
        )
    return target


def plain_shift(mechanism: Mechanism) -> float | None:
    """Return mu of the one Gaussian that unsampled Gaussians and public orders compose to; None if participation is
    secret.
    """
    shifts = [loss_grid.squared_shift(part, count) for part, count in parts_of(mechanism)]
    squared_shifts = [one for one in shifts if one is not None]
    return math.sqrt(sum(squared_shifts)) if len(squared_shifts) == len(shifts) else None
