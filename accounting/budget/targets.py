"""Targets that a budget meets: an epsilon, or a bound on the best membership test."""

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
    """The most that a run may have of one reading.

    name:                "epsilon" (at the plan's delta), "advantage" or "tpr" (true positive rate)
    false_positive_rate: of the test whose true positive rate is bounded; None for the other readings
    """

    name: str
    most: float
    false_positive_rate: float | None = None

    def __str__(self) -> str:
        rate = "" if self.false_positive_rate is None else f" at fpr={self.false_positive_rate:g}"
        return f"{self.name}={downwards(self.most)}{rate}"

    @property
    def epsilon(self) -> float | None:
        """The epsilon, if that is the target."""
        return self.most if self.name == "epsilon" else None

    def reading(self, run: Composed, delta: float) -> float:
        """Return advantage or true positive rate of a run. Direction of error: upper bound."""
        claim = profile(run, delta=delta)
        if self.false_positive_rate is None:
            return advantage(claim)
        return float(true_positive_rate(claim, self.false_positive_rate))

    def near_epsilon(self, delta: float) -> float:
        """Return the epsilon of the Gaussian mechanism that has this reading, from which a solver starts."""
        if self.name == "epsilon":
            return self.most
        if self.false_positive_rate is None:
            mu = 2 * float(scipy.special.ndtri((1 + self.most) / 2))
        else:
            mu = float(scipy.special.ndtri(self.most) - scipy.special.ndtri(self.false_positive_rate))
        return max(smallest_epsilon(delta, mu=max(mu, 1e-6)), 1e-6)


def target_of(
    *, epsilon: float | None = None, advantage: float | None = None, tpr: float | None = None, fpr: float | None = None
) -> Target | None:
    """Return the target that is given; None if there is none. InvalidParameter for two of them, or half of one."""
    if (tpr is None) != (fpr is None):
        raise InvalidParameter(f"tpr={tpr} with fpr={fpr}: a true positive rate is bounded at a false one. Give both.")
    given = [
        name for name, value in (("epsilon", epsilon), ("advantage", advantage), ("tpr", tpr)) if value is not None
    ]
    if len(given) > 1:
        raise InvalidParameter(f"{' and '.join(given)}: a budget meets one target. Give one of them.")
    if epsilon is not None:
        return Target(name="epsilon", most=require.positive(epsilon=epsilon))
    if advantage is not None:
        return Target(name="advantage", most=require.open_probability(advantage=advantage))
    if tpr is None or fpr is None:
        return None
    most, rate = require.open_probability(tpr=tpr), require.open_probability(fpr=fpr)
    if most <= rate or math.isclose(most, rate, rel_tol=1e-9):
        raise InvalidParameter(f"tpr={tpr} with fpr={fpr}: guessing has as much. Give a tpr above the fpr.")
    return Target(name="tpr", most=most, false_positive_rate=rate)
