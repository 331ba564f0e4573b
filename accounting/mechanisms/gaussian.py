"""Frozen descriptions of Gaussian noise on a sum of clipped vectors, as one draw or in shares on the uploads."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency, Unsampled


@dataclass(frozen=True, kw_only=True)
class _GaussianNoise(Unsampled):
    noise_multiplier: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        # A Python float: dp-accounting misreads an int or a float32 inside composed events.
        object.__setattr__(self, "noise_multiplier", require.noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))

    @property
    def mu(self) -> float:
        """Parameter mu of Gaussian DP: sensitivity over noise standard deviation."""
        return self.adjacency.sensitivity_in_clips / self.noise_multiplier

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Return the noise standard deviation that is charged, on a sum of vectors of norm at most `clip_norm`."""
        return self.noise_multiplier * clip_norm


@dataclass(frozen=True, kw_only=True)
class Gaussian(_GaussianNoise):
    """Sum of vectors of L2 norm at most C plus N(0, (noise_multiplier C)^2) on every coordinate.

    Claim: one release is `mu`-Gaussian DP, tight; mu is the sensitivity over the noise standard deviation.
    Source: Dong, Roth, Su 2022.
    Units: the noise multiplier is the noise standard deviation over C.
    Adjacency: any; it sets the sensitivity, C or 2C.
    Errors: InvalidParameter for a noise multiplier outside 1e-9 to 1e9.

    >>> from accounting import Gaussian
    >>> Gaussian(noise_multiplier=1.4, adjacency="replace-one").mu
    1.4285714285714286
    """

    kind: ClassVar[str] = "gaussian"
    words: ClassVar[str] = "Gaussian noise"
    account: ClassVar[str] = "accounting.gaussian.account:GAUSSIAN"

    @property
    def gaussian(self) -> "Gaussian":
        """This noise."""
        return self


def simultaneous(noise_multipliers: Iterable[float], adjacency: Adjacency) -> Gaussian:
    """Return the one Gaussian equivalent to several Gaussian releases of the same cohort in the same round.

    Claim: the joint release is exactly one Gaussian of 1 / z^2 = sum 1 / z_i^2. Charging each part as a separate
    subsampled release would assume a new cohort for each part.
    Source: docs/theory.md, section 5 (squared shifts add).
    Units: each z_i is a noise standard deviation over that release's own norm bound.
    Adjacency: any, one for all parts.
    Direction of error: none except rounding.
    Errors: InvalidParameter for an empty list or an invalid noise multiplier.

    >>> from accounting import simultaneous
    >>> round(simultaneous([2.0, 2.0], "add-remove").noise_multiplier, 4)
    1.4142
    """
    if isinstance(noise_multipliers, str) or not isinstance(noise_multipliers, Iterable):
        raise InvalidParameter(f"noise_multipliers={noise_multipliers!r}: must be a list of numbers.")
    inverse_squares = sum(require.noise_multiplier(z) ** -2 for z in noise_multipliers)
    if not inverse_squares:
        raise InvalidParameter("noise_multipliers=(): a joint release needs at least one.")
    return Gaussian(noise_multiplier=inverse_squares**-0.5, adjacency=adjacency)


@dataclass(frozen=True, kw_only=True)
class GaussianShares(_GaussianNoise):
    """Sum of at most `shares` vectors of norm at most C, each with noise N(0, (noise_multiplier C)^2 / shares).

    Each missing vector is replaced by a draw of the same noise.
    Claim: the sum has the noise of `gaussian` for any number of participants; `overflow`, the probability that a
    release draws more than `shares` clients, is added to delta for every release.
    Source: independent Gaussians add their variances; overflow: `mechanisms.samplings`.
    Units: as `Gaussian`.
    Adjacency: zero-out or replace-one.
    Errors: UnsupportedMechanism for add-remove, because an added client would add a share; InvalidParameter for a
    number outside its domain.

    >>> from accounting import GaussianShares
    >>> GaussianShares(noise_multiplier=1.0, adjacency="zero-out", shares=100).gaussian.noise_multiplier
    1.0
    """

    shares: int
    overflow: float = 0.0
    kind: ClassVar[str] = "gaussian-shares"
    words: ClassVar[str] = "Gaussian noise in shares"
    account: ClassVar[str] = "accounting.gaussian.account:SHARES"

    def __post_init__(self) -> None:
        super().__post_init__()
        require.replace_fields(self, require.count, "shares")
        require.replace_fields(self, require.probability, "overflow")
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                f"adjacency='add-remove' with noise in {self.shares} shares: one client added or removed changes "
                "the uploads and their noise. Use 'zero-out' (the client sends its noise alone) or 'replace-one'."
            )

    @property
    def gaussian(self) -> Gaussian:
        """Gaussian release with the same noise on the sum as one draw."""
        return Gaussian(noise_multiplier=self.noise_multiplier, adjacency=self.adjacency)

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """Reject a sampler that may draw more clients than there are shares. Errors: UnsupportedMechanism."""
        if name in ("fixed", "capped-poisson") and cohort is not None and cohort > self.shares:
            raise UnsupportedMechanism(
                f"cohort={cohort} of the sampler, noise in {self.shares} shares: the cohort must be at most the number "
                "of shares."
            )
