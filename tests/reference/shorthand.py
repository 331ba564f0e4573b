"""Mechanisms in few letters, for tests."""

from accounting import Release
from accounting.mechanisms import Adjacency, Composed, FixedSizeSampling, Gaussian, PoissonSampling, Subsampled


def gaussian(z: float, adjacency: str = "add-remove") -> Gaussian:
    return Gaussian(noise_multiplier=z, adjacency=Adjacency(adjacency))


def poisson(q: float, z: float, adjacency: str = "add-remove") -> Subsampled:
    return Subsampled(mechanism=gaussian(z, adjacency), sampling=PoissonSampling(probability=q))


def fixed(cohort: int, clients: int, z: float, adjacency: str = "replace-one") -> Subsampled:
    return Subsampled(mechanism=gaussian(z, adjacency), sampling=FixedSizeSampling(cohort=cohort, clients=clients))


def times(mechanism: Gaussian | Subsampled, rounds: int) -> Composed:
    return Composed(parts=((mechanism, rounds),))


def release(number: int, mechanism: Gaussian | Subsampled | None = None, noise_std: float = 1e6) -> Release:
    """A release that states more noise than any mechanism charges for; of a quiet Gaussian if none is given."""
    mechanism = gaussian(20.0) if mechanism is None else mechanism
    return Release(round=number, mechanism=mechanism, clip_norm=1.0, noise_std=noise_std, noise_placement="server")
