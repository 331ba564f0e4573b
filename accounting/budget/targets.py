"""Privacy targets of a budget: an epsilon, or a bound on the best membership test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy

from accounting import require
from accounting.compose.profiles import profile
from accounting.compose.readings import advantage, true_positive_rate
from accounting.errors import InvalidParameter
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import Composed
from accounting.rounding import downwards


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
