"""Gaussian noise on a sum of clipped vectors, whole or in shares on the uploads, as frozen descriptions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A sum of vectors of L2 norm at most C plus N(0, (noise_multiplier C)^2) on every coordinate.

    Equivalent to one Gaussian of mean shift `mu` = sensitivity / noise standard deviation
    (Dong, Roth, Su 2022: mu-Gaussian DP, tight).
    """

    noise_multiplier: float
    adjacency: Adjacency
    kind: ClassVar[str] = "gaussian"
    sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # A Python float, never an int or a float32: dp-accounting misreads those inside composed events.
        object.__setattr__(self, "noise_multiplier", require.noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))

    @property
    def mu(self) -> float:
        """Sensitivity over noise standard deviation."""
        return self.adjacency.sensitivity_in_clips / self.noise_multiplier

    @property
    def overflow(self) -> float:
        """Chance of a failure in a release that is charged to delta: none."""
        return 0.0

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Standard deviation of the noise that is charged for, on a sum of vectors of norm at most `clip_norm`."""
        return self.noise_multiplier * clip_norm

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """The noise is as large whatever the cohort."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "gaussian",
            "noise_multiplier": self.noise_multiplier,
            "adjacency": str(self.adjacency),
        }


def simultaneous(noise_multipliers: Iterable[float], adjacency: Adjacency) -> Gaussian:
    """Several Gaussian releases about the same cohort in the same round, as one Gaussian (tight).

    The shifts add in squares, mu^2 = sum mu_i^2, so 1 / z^2 = sum 1 / z_i^2 with every z_i in units of that
    release's own norm bound. Sampled together, they must be charged together: charging each part as its own
    subsampled release would let the cohort be drawn afresh between them.
    """
    if isinstance(noise_multipliers, str) or not isinstance(noise_multipliers, Iterable):
        raise InvalidParameter(f"noise_multipliers={noise_multipliers!r}: must be a list of numbers.")
    inverse_squares = sum(require.noise_multiplier(z) ** -2 for z in noise_multipliers)
    if not inverse_squares:
        raise InvalidParameter("noise_multipliers=(): a joint release needs at least one.")
    return Gaussian(noise_multiplier=inverse_squares**-0.5, adjacency=adjacency)


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
        """Refuse a sampler that may let in more clients than there are shares."""
        if name in ("fixed", "capped-poisson") and cohort is not None and cohort > self.shares:
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
