"""The clip norm of coins for an epsilon: what a noise multiplier is for noise."""

import math
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
    target = require.positive(epsilon=epsilon)
    coins = plan.mechanism
    if not isinstance(coins, BernoulliUploads):
        raise InvalidParameter(
            f"mechanism={coins.name!r}: its epsilon does not depend on the clip norm. Solve for the noise multiplier."
        )
    widest = (1 - 2 * coins.edge) * math.sqrt(coins.dimension)
    if coins.clip_metric == "fisher":
        widest /= math.sqrt(coins.edge * (1 - coins.edge))

    def run(inverse: float) -> Mechanism:
        clipped = replace(coins, clip_norm=min(1 / inverse, widest))
        return replace(plan, mechanism=clipped).run(None, rounds)

    delta, first = plan.delta, max(1.0, 1 / widest)
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
