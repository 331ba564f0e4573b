"""Bracketed solvers for the smallest x, or the largest number n, that meets a target under a monotone cost.

Targets of a budget: an epsilon, or a bound on the best membership test.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import scipy

from accounting import require
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.compose.profiles import profile
from accounting.compose.rdp import Conversion
from accounting.compose.readings import advantage, true_positive_rate
from accounting.errors import CalibrationError, InvalidParameter
from accounting.gaussian import noise_std, smallest_epsilon
from accounting.mechanisms import Composed
from accounting.roots import brentq, smallest_passing
from accounting.rounding import downwards

# A calibrated value is at most this relative distance above the exact threshold, and never below it.
TOLERANCE = 1e-6
_STEPS = 6


def smallest(
    cost: Callable[[float], float], target: float, *, name: str, start: float = 1.0, tolerance: float = TOLERANCE
) -> float:
    """Return the smallest x > 0 with cost(x) <= target, for a cost that decreases in x.

    A bracket is searched outwards from `start`; then Brent's method solves for log cost over log x. The result
    satisfies cost(x) <= target as evaluated and is within `tolerance` (relative) above the threshold. Errors:
    CalibrationError if no x in [1e-6, 1e9] brackets the target.

    >>> from accounting import calibrate
    >>> round(calibrate.smallest(lambda x: 1 / x, 0.5, name="x"), 4)
    2.0
    """

    @cache  # the ends of the bracket are evaluated twice
    def excess(log_x: float) -> float:
        above = math.log(min(max(cost(math.exp(log_x)), 1e-300), 1e300) / target)
        return above if above > 0 else min(above, -1e-15)  # only the left end of a plateau at the target is a root

    low, high = _bracket(excess, name=name, target=target, start=math.log(start))
    root = math.exp(brentq(excess, low, high, xtol=tolerance / 4, rtol=1e-15))
    x = root * (1 + tolerance / 2)
    while cost(x) > target:
        x *= 1 + tolerance / 2
    return x


def certified_smallest(
    cost: Callable[[float], float], quick: Callable[[float], float], target: float, *, name: str, start: float = 1.0
) -> float:
    """Return the result of `smallest` for a slow cost, given a fast approximation `quick` of it.

    The search starts at the threshold of `quick` and makes a few Newton steps with the slope of `quick`. If they do not
    converge (a step function has slope 0 or may be infinite), a bracket is bisected. The result satisfies cost(x) <=
    target as evaluated, and is within `TOLERANCE` (relative) above the threshold.
    """
    x = smallest(quick, target, name=name, start=start)
    slope = _log_ratio(quick(x * 1.01), quick(x)) / math.log(1.01)
    low, high = 0.0, math.inf  # the largest x whose cost is above the target, the smallest whose cost is not
    for _ in range(_STEPS):
        above = _log_ratio(cost(x), target)
        low, high = (max(low, x), high) if above > 0 else (low, min(high, x))
        if not (-math.inf < slope < 0 and math.isfinite(above)):
            break
        if -TOLERANCE <= above / -slope <= 0:
            return x
        x *= math.exp(-above / slope) * (1 + TOLERANCE / 2)
    return _bisected(lambda x: cost(x) <= target, low, high, name=name, target=target)


def _log_ratio(value: float, other: float) -> float:
    """Return log(value / other) of values that may be 0 or infinite; nan if both are 0 or both are infinite."""
    if value == other and (value == 0 or math.isinf(value)):
        return math.nan
    return math.log(min(max(value, 1e-300), 1e300) / min(max(other, 1e-300), 1e300))


def _bisected(passes: Callable[[float], bool], low: float, high: float, *, name: str, target: float) -> float:
    """Return the smallest x that passes a monotone test, to `TOLERANCE`. At least one end of the bracket is known;
    `low` = 0 and `high` = infinity are unknown ends.

    Steps from the known end are doubled until the unknown end is found; then the bracket is bisected.
    """
    step = TOLERANCE / 2
    while not low or math.isinf(high):
        x = low * (1 + step) if low else high / (1 + step)
        if not 1e-6 < x < 1e9:
            raise _no_bracket(falling=not low, name=name, target=target)
        low, high = (low, x) if passes(x) else (x, high)
        step *= 2
    while high > low * (1 + TOLERANCE):
        x = math.sqrt(low * high)
        low, high = (low, x) if passes(x) else (x, high)
    return high


def certified_largest_count(
    cost: Callable[[int], float], quick: Callable[[int], float], target: float, *, name: str
) -> int:
    """Return the result of `largest_count` for a slow cost, given a fast approximation `quick` of it."""
    high = largest_count(quick, target, name=name) + 1
    step = 1
    while cost(high) <= target:
        high, step = high + step, step * 2
    low = high - step
    while low > 0 and cost(low) > target:
        high, step = low, step * 2
        low = high - step
    low = max(low, 0) + 1
    return low - 1 + bisect_left(range(low, high), True, key=lambda count: cost(count) > target)


def _bracket(excess: Callable[[float], float], *, name: str, target: float, start: float) -> tuple[float, float]:
    """Return a bracket of log x around the threshold, by growing steps from `start` that begin with log 1.2."""
    x, step = start, math.log(1.2)
    falling = excess(x) <= 0
    least, most = math.log(1e-6), math.log(1e9) - 1e-12
    while least < x < most:
        further = max(x - step, least) if falling else min(x + step, most)
        if (excess(further) > 0) == falling:
            return min(x, further), max(x, further)
        x, step = further, step * 1.7
    raise _no_bracket(falling=falling, name=name, target=target)


def _no_bracket(*, falling: bool, name: str, target: float) -> CalibrationError:
    """Return the error for a target that every x meets (`falling`), or that no x meets."""
    if falling:
        return CalibrationError(
            f"target {target} is met by every {name} down to 1e-6: there is no smallest value. Lower the target."
        )
    return CalibrationError(
        f"target {target} is not met by any {name} up to 1e9. Raise the target or delta, lower the rounds "
        "or the cohort, or use more clients."
    )


def least_place(cost: Callable[[int], float], length: int, *, start: int) -> int:
    """Return the index of 0 .. length - 1 of smallest cost, for a cost that first decreases and then increases, by
    steps from `start`.
    """
    place = start
    for step in (1, -1):
        while 0 <= place + step < length and cost(place + step) < cost(place):
            place += step
    return place


def largest_count(cost: Callable[[int], float], target: float, *, name: str, limit: int = 100_000_000) -> int:
    """Return the largest integer n from 0 to `limit` with cost(n) <= target, for a cost that increases in n and is 0 at
    n = 0.

    >>> from accounting import calibrate
    >>> calibrate.largest_count(lambda n: n * n, 50.0, name="rounds")
    7
    """
    found = smallest_passing(lambda count: count > limit or cost(count) > target) - 1
    if found == limit:
        raise CalibrationError(
            f"target {target} is not reached by {limit} {name}: the budget is practically unlimited. "
            "Lower the noise multiplier or the target."
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Target:
    """Upper limit on one reading of a run: epsilon, advantage or true-positive rate.

    name: "epsilon" (at the plan's delta), "advantage" or "tpr" (true positive rate)
    false_positive_rate: false-positive rate of the test whose true-positive rate is bounded; None for epsilon and
    advantage
    """

    name: str
    largest_reading: float
    false_positive_rate: float | None = None

    def __str__(self) -> str:
        rate = "" if self.false_positive_rate is None else f" at fpr={self.false_positive_rate:g}"
        return f"{self.name}={downwards(self.largest_reading)}{rate}"

    @property
    def epsilon(self) -> float | None:
        """Target epsilon; None if the target is a bound on membership tests."""
        return self.largest_reading if self.name == "epsilon" else None

    def reading(self, run: Composed, delta: float) -> float:
        """Return the advantage or the true-positive rate of a run. Direction of error: upper bound."""
        claim = profile(run, delta=delta)
        if self.false_positive_rate is None:
            return advantage(claim)
        return float(true_positive_rate(claim, self.false_positive_rate))

    def near_epsilon(self, delta: float) -> float:
        """Return the epsilon of the Gaussian mechanism with this reading, a starting point for solvers."""
        if self.name == "epsilon":
            return self.largest_reading
        if self.false_positive_rate is None:
            mu = 2 * float(scipy.special.ndtri((1 + self.largest_reading) / 2))
        else:
            mu = float(scipy.special.ndtri(self.largest_reading) - scipy.special.ndtri(self.false_positive_rate))
        return max(smallest_epsilon(delta, mu=max(mu, 1e-6)), 1e-6)


def target_of(
    *, epsilon: float | None = None, advantage: float | None = None, tpr: float | None = None, fpr: float | None = None
) -> Target | None:
    """Return the given target; None if no target is given. Errors: InvalidParameter for two targets, or for tpr without
    fpr or fpr without tpr.
    """
    if (tpr is None) != (fpr is None):
        raise InvalidParameter(
            f"tpr={tpr} with fpr={fpr}: a true-positive rate is bounded at a false-positive rate. Give both."
        )
    given = [
        name for name, value in (("epsilon", epsilon), ("advantage", advantage), ("tpr", tpr)) if value is not None
    ]
    if len(given) > 1:
        raise InvalidParameter(f"{' and '.join(given)}: a budget meets one target. Give one of them.")
    if epsilon is not None:
        return Target(name="epsilon", largest_reading=require.positive(epsilon=epsilon))
    if advantage is not None:
        return Target(name="advantage", largest_reading=require.open_probability(advantage=advantage))
    if tpr is None or fpr is None:
        return None
    largest_reading, rate = require.open_probability(tpr=tpr), require.open_probability(fpr=fpr)
    if largest_reading <= rate or math.isclose(largest_reading, rate, rel_tol=1e-9):
        raise InvalidParameter(f"tpr={tpr} with fpr={fpr}: random guessing reaches this tpr. Give a tpr above the fpr.")
    return Target(name="tpr", largest_reading=largest_reading, false_positive_rate=rate)


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Accountant and conversion of a search."""

    accountant: Accountant = "best"
    conversion: Conversion = "improved"
    precise: bool = False

    def epsilon(self, run: Composed, delta: float) -> float:
        """Return only the epsilon of a run, for solvers."""
        return accountants.epsilon(
            run, delta=delta, accountant=self.accountant, conversion=self.conversion, precise=self.precise
        )

    def readings(
        self, run: Callable[[Any], Composed], delta: float, target: Target, *, first: float
    ) -> tuple[Callable[[Any], float], Callable[[Any], float] | None]:
        """Return the quantity of `run(x)` that the target bounds (epsilon, advantage or true-positive rate) as a
        function of x, and a fast approximation of it; None if the exact computation is fast enough at x = `first`.
        """

        @cache
        def reading(x: float) -> float:
            return self.epsilon(run(x), delta) if target.epsilon is not None else target.reading(run(x), delta)

        @cache
        def approximation(x: float) -> float | None:
            has_quick = target.epsilon is not None and self.accountant in ("best", "adaptive")
            return accountants.quick_epsilon(run(x), delta=delta) if has_quick else None

        def quick_reading(x: float) -> float:
            found = approximation(x)
            return reading(x) if found is None else found

        return reading, None if approximation(first) is None else quick_reading

    def smallest_multiplier(
        self, run: Callable[[float], Composed], *, target: Target, delta: float, start: float
    ) -> float:
        """Return the smallest noise multiplier z for which all rounds together, `run(z)`, meet the target."""
        reading, quick = self.readings(run, delta, target, first=start)
        if quick is None:
            return smallest(reading, target.largest_reading, name="noise multiplier", start=start)
        return certified_smallest(reading, quick, target.largest_reading, name="noise multiplier", start=start)


def multiplier_for(
    run: Callable[[float], Composed],
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    shift: float,
    probability: float,
    accountant: Accountant = "best",
) -> float:
    """Return the smallest noise multiplier for a custom run, in each round of which a client shifts the sum by at most
    `shift` clip norms.

    The search starts at the central-limit approximation of `rounds` rounds with this shift and sampling probability.
    Claim: epsilon of `run(z)` is at most `epsilon`; z is at most 1e-6 relative above the threshold.
    Source: `compose.accountant.guarantee`; start: Dong, Roth, Su 2022.
    Units: z is a noise standard deviation over the clip norm.
    Adjacency: that of `run(z)`.
    Direction of error: upwards.
    Errors: CalibrationError if no z from 1e-6 to 1e9 meets epsilon.

    >>> from accounting import Composed, Gaussian, budget
    >>> def run(z):
    ...     return Composed(parts=((Gaussian(noise_multiplier=z, adjacency="add-remove"), 10),))
    >>> round(budget.multiplier_for(run, epsilon=1.0, delta=1e-5, rounds=10, shift=1.0, probability=1.0), 3)
    11.797
    """
    solver = Solver(accountant=accountant)
    start = starting_multiplier(epsilon, delta, rounds=rounds, shift=shift, probability=probability)
    target = Target(name="epsilon", largest_reading=epsilon)
    return solver.smallest_multiplier(run, target=target, delta=delta, start=start)


def starting_multiplier(
    epsilon: float, delta: float, *, rounds: int, shift: float, probability: float, kept: float = 1.0
) -> float:
    """Return a starting value for the noise multiplier, by the central limit mu = q sqrt(T (e^(s^2/z^2) - 1)). It
    affects only speed.
    """
    wanted = 1 / noise_std(epsilon, delta, l2_sensitivity=1.0)
    shift_of_all = min(max(wanted / probability, 1e-100), 1e100)  # so that its square neither underflows nor overflows
    per_round = math.log1p(shift_of_all**2 / rounds)
    return min(max(shift / math.sqrt(per_round) / math.sqrt(kept), 1e-3), 1e6)
