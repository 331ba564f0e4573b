"""Gaussian noise in a fixed number of shares, one on every upload, as a frozen description."""

from dataclasses import dataclass
from typing import Any, ClassVar

from accounting import require
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class GaussianShares:
    """A sum of at most `shares` vectors of L2 norm at most C, each with N(0, (noise_multiplier C)^2 / shares) on every
    coordinate, and of as many further draws of that noise as vectors are missing.

    So it is `gaussian`, however many take part. `overflow` is the chance that more than `shares` clients are drawn in a
    release (Poisson sampling; those who are too many are left out by lot); it is added to delta for every release
    (`mechanisms.slots`).
    """

    noise_multiplier: float
    adjacency: Adjacency
    shares: int
    overflow: float = 0.0
    kind: ClassVar[str] = "gaussian-shares"
    sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", require.noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        object.__setattr__(self, "shares", require.count(shares=self.shares))
        object.__setattr__(self, "overflow", require.probability(overflow=self.overflow))
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                f"adjacency='add-remove' with noise in {self.shares} shares: a client more or less is an upload, and "
                "its noise, more or less. Use 'zero-out' (the client sends its noise alone) or 'replace-one'."
            )

    @property
    def gaussian(self) -> Gaussian:
        """The noise of the sum."""
        return Gaussian(noise_multiplier=self.noise_multiplier, adjacency=self.adjacency)

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Standard deviation of the noise that is charged for, on a sum of vectors of norm at most `clip_norm`."""
        return self.noise_multiplier * clip_norm

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """Refuse a sampler that draws more clients than there are shares, always."""
        if name == "fixed" and cohort is not None and cohort > self.shares:
            raise UnsupportedMechanism(
                f"cohort={cohort} of the sampler, noise in {self.shares} shares: must be at most as many."
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "noise_multiplier": self.noise_multiplier,
            "adjacency": str(self.adjacency),
            "shares": self.shares,
            "overflow": self.overflow,
        }
