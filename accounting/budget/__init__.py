"""Budget before training: epsilon, noise multiplier or rounds, whichever is missing.

>>> from accounting import Plan, budget
>>> plan = Plan(clients=6000, cohort=100)
>>> budget.rounds(plan, epsilon=1.01, noise_multiplier=1.4)
451
"""

from accounting.budget.answers import (
    Budget,
    epsilon,
    multiplier_for,
    noise_multiplier,
    rounds,
    solve,
    with_second_opinion,
)
from accounting.budget.coin_clip import clip_norm, largest_clip
from accounting.budget.comparison import compare
from accounting.budget.noise_schedule import NoiseSchedule
from accounting.budget.plan import MECHANISMS, SAMPLINGS, Placement, Plan

__all__ = [
    "MECHANISMS",
    "SAMPLINGS",
    "Budget",
    "NoiseSchedule",
    "Placement",
    "Plan",
    "clip_norm",
    "compare",
    "epsilon",
    "largest_clip",
    "multiplier_for",
    "noise_multiplier",
    "rounds",
    "solve",
    "with_second_opinion",
]
