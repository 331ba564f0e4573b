"""Privacy budget before training: solves for epsilon, the noise multiplier or the number of rounds from the other two.

>>> from accounting import Plan, budget
>>> plan = Plan(clients=6000, cohort=100)
>>> budget.rounds(plan, epsilon=1.01, noise_multiplier=1.4)
451
"""

from accounting.budget.answers import Budget, epsilon, noise_multiplier, rounds, solve
from accounting.budget.calibrate import multiplier_for
from accounting.budget.coin_clip import clip_norm, largest_clip
from accounting.budget.coins import BernoulliSums, BernoulliUploads
from accounting.budget.comparison import beside_shuffled, compare, with_second_opinion
from accounting.budget.correlated import BandedNoise, BufferedNoise
from accounting.budget.gaussians import DistributedGaussianNoise, GaussianNoise, NoiseSchedule
from accounting.budget.integers import DiscreteGaussianNoise, Placement, SkellamNoise
from accounting.budget.plan import MECHANISMS, SAMPLINGS, Plan
from accounting.mechanisms.samplings.allocation import Allocation, BallsAndBins
from accounting.mechanisms.samplings.independent import Everyone, FixedSize, Poisson
from accounting.mechanisms.samplings.public_orders import Cyclic, Shuffled
from accounting.mechanisms.samplings.separation import MinSeparation

__all__ = [
    "MECHANISMS",
    "SAMPLINGS",
    "Allocation",
    "BallsAndBins",
    "BandedNoise",
    "BernoulliSums",
    "BernoulliUploads",
    "Budget",
    "BufferedNoise",
    "Cyclic",
    "DiscreteGaussianNoise",
    "DistributedGaussianNoise",
    "Everyone",
    "FixedSize",
    "GaussianNoise",
    "MinSeparation",
    "NoiseSchedule",
    "Placement",
    "Plan",
    "Poisson",
    "Shuffled",
    "SkellamNoise",
    "beside_shuffled",
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
