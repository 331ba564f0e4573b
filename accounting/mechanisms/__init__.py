"""What was released, as frozen descriptions: no numerics here."""

from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.descriptions import (
    Composed,
    FixedSizeSampling,
    FullParticipation,
    Gaussian,
    Mechanism,
    PoissonSampling,
    SampledSum,
    Sampling,
    SingleRelease,
    Subsampled,
    Unsampled,
    from_dict,
    repeated,
    simultaneous,
    subsample,
)
from accounting.mechanisms.integers import DiscreteGaussian, Skellam

__all__ = [
    "Adjacency",
    "BernoulliAggregate",
    "BernoulliChannel",
    "Composed",
    "DiscreteGaussian",
    "FixedSizeSampling",
    "FullParticipation",
    "Gaussian",
    "Mechanism",
    "PoissonSampling",
    "SampledSum",
    "Sampling",
    "SingleRelease",
    "Skellam",
    "Subsampled",
    "Unsampled",
    "from_dict",
    "repeated",
    "simultaneous",
    "subsample",
]
