"""Budget before training: epsilon, noise multiplier or rounds, whichever is missing."""

from accounting.budget.solve import (
    SAMPLINGS,
    Budget,
    NoisePlan,
    Plan,
    compare,
    epsilon,
    noise_multiplier,
    rounds,
    with_second_opinion,
)

__all__ = [
    "SAMPLINGS",
    "Budget",
    "NoisePlan",
    "Plan",
    "compare",
    "epsilon",
    "noise_multiplier",
    "rounds",
    "with_second_opinion",
]
