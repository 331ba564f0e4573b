"""Mechanisms in few letters, for tests."""

from accounting.mechanisms import Adjacency, Composed, FixedSizeSampling, Gaussian, PoissonSampling, Subsampled


def gaussian(z: float, adjacency: str = "add-remove") -> Gaussian:
    return Gaussian(noise_multiplier=z, adjacency=Adjacency(adjacency))


def poisson(q: float, z: float, adjacency: str = "add-remove") -> Subsampled:
    return Subsampled(mechanism=gaussian(z, adjacency), sampling=PoissonSampling(probability=q))


def fixed(cohort: int, clients: int, z: float, adjacency: str = "replace-one") -> Subsampled:
    return Subsampled(mechanism=gaussian(z, adjacency), sampling=FixedSizeSampling(cohort=cohort, clients=clients))


def times(mechanism: Gaussian | Subsampled, rounds: int) -> Composed:
    return Composed(parts=((mechanism, rounds),))
