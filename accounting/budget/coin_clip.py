"""The clip norm of coins for an epsilon: what a noise multiplier is for noise."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from accounting import require
from accounting.budget import calibrate
from accounting.budget.coins import BernoulliUploads
from accounting.budget.plan import Plan
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.errors import CalibrationError, InvalidParameter
from accounting.mechanisms import Mechanism

_CLIP_TOLERANCE = 1e-3


def clip_norm(plan: Plan, *, epsilon: float, rounds: int, accountant: Accountant = "best") -> float:
    """The largest L2 clip of coins with which `rounds` rounds stay within epsilon, to 1e-3 relative and never above.

    The clip norm of the plan is ignored; the other fields hold. Errors: InvalidParameter for a plan without coins;
    CalibrationError if not even a clip of 1e-9 does, or if a clip that cannot bind any more (the whole range in every
    coordinate) is still within it.
    """
    coins = plan.mechanism
    if not isinstance(coins, BernoulliUploads):
        raise InvalidParameter(
            f"mechanism={coins.name!r}: its epsilon does not depend on the clip norm. Solve for the noise multiplier."
        )
    return largest_clip(
        lambda clip: replace(plan, mechanism=replace(coins, clip_norm=clip)).run(None, rounds),
        widest=widest(coins.edge, coins.dimension, coins.clip_metric),
        epsilon=epsilon,
        delta=plan.delta,
        accountant=accountant,
    )


def widest(edge: float, dimension: int, metric: str) -> float:
    """The whole range of every probability, as an L2 clip."""
    found = (1 - 2 * edge) * math.sqrt(dimension)
    return found / math.sqrt(edge * (1 - edge)) if metric == "fisher" else found


def largest_clip(
    rounds_of: Callable[[float], Mechanism], *, widest: float, epsilon: float, delta: float, accountant: Accountant
) -> float:
    """The largest clip for which all rounds, `rounds_of(clip)`, stay within epsilon; errors as `clip_norm` has them."""
    target = require.positive(epsilon=epsilon)

    def run(inverse: float) -> Mechanism:
        return rounds_of(min(1 / inverse, widest))

    first = max(1.0, 1 / widest)
    best = accountants.guarantee(run(first), delta=delta, accountant=accountant, with_lower_bound=False)
    # Where the loss law is the best account at one clip, the others need not be asked at every one.
    asked: Accountant = "pld" if best.method == "pld" else accountant

    @cache
    def cost(inverse: float) -> float:
        return accountants.epsilon(run(inverse), delta=delta, accountant=asked)

    if cost(first) <= target and cost(1 / widest) <= target:
        raise CalibrationError(
            f"epsilon={target}: met without any L2 clip. Give linf_clip alone, or a smaller epsilon."
        )
    # The cost grows with a power of the clip between 1 and 2.
    guess = first * min(max(cost(first) / target, 1e-4), 1e4) ** 0.8
    try:
        return 1 / calibrate.smallest(cost, target, name="1/clip", start=guess, tolerance=_CLIP_TOLERANCE)
    except CalibrationError:
        raise CalibrationError(
            f"epsilon={target}: even a clip of 1e-9 costs more. Raise epsilon or the cohort."
        ) from None
