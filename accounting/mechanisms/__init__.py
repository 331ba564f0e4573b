"""Frozen descriptions of releases, samplings and schedules, without numerics."""

from accounting.mechanisms.adjacency import Adjacency, Unsampled
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.descriptions import (
    Composed,
    Mechanism,
    SingleRelease,
    Subsampled,
    gaussian_of,
    in_order,
    noise_of,
    parts_of,
    plain_gaussian,
    repeated,
    sampling_of,
    schedule_of,
    subsample,
    unsampled,
    with_whole_noise,
)
from accounting.mechanisms.gaussian import Gaussian, GaussianShares, simultaneous
from accounting.mechanisms.integers import DiscreteGaussian, NoisyIntegers, Skellam
from accounting.mechanisms.kinds import from_dict
from accounting.mechanisms.samplings.allocation import AllocationSchedule as Allocation
from accounting.mechanisms.samplings.allocation import BallsAndBinsSchedule as BallsAndBins
from accounting.mechanisms.samplings.independent import (
    CappedPoissonSampling,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
)
from accounting.mechanisms.samplings.public_orders import CyclicSchedule as Cyclic
from accounting.mechanisms.samplings.public_orders import ShuffledSchedule as Shuffled
from accounting.mechanisms.samplings.sampling import (
    CorrelatedRounds,
    Sampling,
    Schedule,
    noise_matrix,
    turns_follow_ids,
)
from accounting.mechanisms.samplings.separation import MinSeparationSchedule as MinSeparation
from accounting.mechanisms.stream_rounds import ReleasedRounds, StreamRounds

__all__ = [
    "Adjacency",
    "Allocation",
    "BallsAndBins",
    "BernoulliAggregate",
    "BernoulliChannel",
    "CappedPoissonSampling",
    "Composed",
    "CorrelatedRounds",
    "Cyclic",
    "DiscreteGaussian",
    "FixedSizeSampling",
    "FullParticipation",
    "Gaussian",
    "GaussianShares",
    "Mechanism",
    "MinSeparation",
    "NoisyIntegers",
    "PoissonSampling",
    "ReleasedRounds",
    "Sampling",
    "Schedule",
    "Shuffled",
    "SingleRelease",
    "Skellam",
    "StreamRounds",
    "Subsampled",
    "Unsampled",
    "from_dict",
    "gaussian_of",
    "in_order",
    "noise_matrix",
    "noise_of",
    "parts_of",
    "plain_gaussian",
    "repeated",
    "sampling_of",
    "schedule_of",
    "simultaneous",
    "subsample",
    "turns_follow_ids",
    "unsampled",
    "with_whole_noise",
]
