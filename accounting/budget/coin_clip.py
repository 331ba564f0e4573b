"""Solver for the clip norm of Bernoulli uploads at an epsilon; the clip norm takes the role of the noise multiplier."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache

from accounting import require
from accounting.budget import calibrate
from accounting.budget.coins import BernoulliUploads
from accounting.budget.plan import Plan
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Mechanism

_CLIP_TOLERANCE = 1e-3


def clip_norm(plan: Plan, *, epsilon: float, rounds: int, accountant: Accountant = "best") -> float:
    """Return the largest L2 clip norm of Bernoulli uploads with which `rounds` rounds meet epsilon.

    The clip norm of the plan is ignored; all other fields apply.
    Claim: the run with this clip is (epsilon, plan.delta)-DP, to 1e-3 relative below the threshold.
    Source: `compose.accountant.guarantee`.
    Units: those of the plan's clip.
    Adjacency: that of the plan.
    Direction of error: downwards.
    Errors: InvalidParameter for a plan without Bernoulli uploads; CalibrationError if even a clip of 1e-9 exceeds
    epsilon, or if the probabilities meet epsilon without any L2 clip.

    >>> from accounting import Plan, budget
    >>> uploads = budget.BernoulliUploads(dimension=4, edge=0.1, clip_norm=1.0)
    >>> plan = Plan(clients=100, sampling="all", mechanism=uploads)
    >>> round(budget.clip_norm(plan, epsilon=1.0, rounds=1, accountant="exact"), 3)
    0.039
    """
    uploads = plan.mechanism
    if not isinstance(uploads, BernoulliUploads):
        raise InvalidParameter(
            f"mechanism={uploads.name!r}: its epsilon does not depend on the clip norm. Solve for the noise multiplier."
        )
    return largest_clip(
        lambda clip: replace(plan, mechanism=replace(uploads, clip_norm=clip)).run(None, rounds),
        widest=widest_clip(uploads.edge, uploads.dimension, uploads.clip_metric),
        epsilon=epsilon,
        delta=plan.delta,
        accountant=accountant,
    )


def widest_clip(edge: float, dimension: int, metric: str) -> float:
    """Return an upper bound, in the clip's metric, on the distance of two vectors of probabilities in [edge, 1 - edge].

    No larger clip has an effect.
    """
    found = (1 - 2 * edge) * math.sqrt(dimension)
    return found / math.sqrt(edge * (1 - edge)) if metric == "fisher" else found


def largest_clip(
    rounds_of: Callable[[float], Mechanism], *, widest: float, epsilon: float, delta: float, accountant: Accountant
) -> float:
    """Return the largest clip for which the composition of all rounds, `rounds_of(clip)`, meets epsilon.

    Claim: epsilon of `rounds_of` at the result is at most `epsilon`; the result is at most 1e-3 relative below the
    threshold.
    Source: `compose.accountant.guarantee`.
    Units: those of `widest`.
    Adjacency: that of `rounds_of(clip)`.
    Direction of error: downwards.
    Errors: as `clip_norm`.

    >>> from accounting import BernoulliChannel, budget
    >>> def rounds_of(clip):
    ...     return BernoulliChannel(dimension=4, floor=0.1, adjacency="zero-out", l2_clip=clip)
    >>> round(budget.largest_clip(rounds_of, widest=1.6, epsilon=1.0, delta=1e-4, accountant="exact"), 3)
    0.039
    """
    target = require.positive(epsilon=epsilon)

    def run(inverse: float) -> Mechanism:
        return rounds_of(min(1 / inverse, widest))

    first = max(1.0, 1 / widest)
    best = accountants.guarantee(run(first), delta=delta, accountant=accountant, with_lower_bound=False)

    @cache
    def cost(inverse: float) -> float:
        if best.method == "pld":  # the best account at one clip: the others are not needed where it has a bound
            with suppress(UnsupportedMechanism):
                return accountants.epsilon(run(inverse), delta=delta, accountant="pld")
        return accountants.epsilon(run(inverse), delta=delta, accountant=accountant)

    if cost(first) <= target and cost(1 / widest) <= target:
        raise CalibrationError(
            f"epsilon={target}: met without any L2 clip. Give linf_clip alone, or a smaller epsilon."
        )
    # Epsilon grows with a power of the clip between 1 and 2.
    guess = first * min(max(cost(first) / target, 1e-4), 1e4) ** 0.8
    try:
        return 1 / calibrate.smallest(cost, target, name="1/clip", start=guess, tolerance=_CLIP_TOLERANCE)
    except CalibrationError:
        raise CalibrationError(
            f"epsilon={target}: even a clip of 1e-9 exceeds it. Raise epsilon or the cohort."
        ) from None
