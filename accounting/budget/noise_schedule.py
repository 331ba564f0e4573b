"""Noise schedules: public factors of the noise multiplier, one for each of equal parts of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accounting import require
from accounting.errors import InvalidParameter

MOST_PARTS = 1_000
LARGEST_FACTOR = 1e6
"""Largest factor, and largest inverse of a factor: the product with a noise multiplier must be a noise multiplier."""


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """Noise schedule: round t of `rounds` (from 0) has `factors[floor(t k / rounds)]` times the noise multiplier.

    k is the number of factors.
    Claim: the factors are fixed before the first round and public, so a run is the composition of `parts`, each round
    charged with its own noise. At equal epsilon the sum of the noise variances is smallest if all factors are equal.
    Direction of error: that of the account of the composition, an upper bound.
    Units: factors of the noise multiplier.
    Errors: InvalidParameter for factors that are not finite and above 0, for more factors than rounds, and for more
    than 1,000 factors.

    >>> from accounting.budget import NoiseSchedule
    >>> NoiseSchedule(factors=(1.2, 1.0), rounds=5).parts
    ((1.2, 3), (1.0, 2))
    """

    factors: tuple[float, ...]
    rounds: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", checked_factors(self.factors))
        object.__setattr__(self, "rounds", require.count(rounds=self.rounds))
        if len(self.factors) > self.rounds:
            raise InvalidParameter(
                f"noise_schedule of {len(self.factors)} parts in rounds={self.rounds}: each part must have a round. "
                "Use fewer factors, or more rounds."
            )

    def factor(self, number: int) -> float:
        """Return the factor of round `number`, counted from 0.

        A round beyond `rounds` has the smallest factor, so that its charge is an upper bound."""
        if not 0 <= number < self.rounds:
            return self.smallest_factor
        return self.factors[number * len(self.factors) // self.rounds]

    @property
    def smallest_factor(self) -> float:
        """Smallest factor: that of the rounds with the largest epsilon."""
        return min(self.factors)

    @property
    def parts(self) -> tuple[tuple[float, int], ...]:
        """Pairs (factor, number of rounds), in order."""
        ends = [math.ceil(part * self.rounds / len(self.factors)) for part in range(len(self.factors) + 1)]
        return tuple((factor, end - start) for factor, start, end in zip(self.factors, ends, ends[1:], strict=False))


def checked_factors(factors: object) -> tuple[float, ...]:
    """Return validated factors as a tuple of floats. Errors: InvalidParameter for anything but a list of positive
    factors.
    """
    if not isinstance(factors, tuple | list) or not 0 < len(factors) <= MOST_PARTS:
        raise InvalidParameter(
            f"noise_schedule={require.short_repr(factors)}: must be a list of 1 to {MOST_PARTS:,} factors of the noise "
            "multiplier, such as 1.2, 1.0, 0.8."
        )
    numbers = tuple(float(require.positive(noise_schedule=factor)) for factor in factors)
    for factor in numbers:
        if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
            raise InvalidParameter(
                f"noise_schedule: the factor {require.short_repr(factor)} must be from {1 / LARGEST_FACTOR:g} to "
                f"{LARGEST_FACTOR:g}. Use factors near 1, and the noise multiplier for the rest."
            )
    return numbers
