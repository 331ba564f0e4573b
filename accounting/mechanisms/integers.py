"""Frozen descriptions of sums of integer vectors with integer noise.

Accounts: `integers.discrete_gaussian` and `integers.skellam`. Uploads are integer vectors (rounded, see
`integers.fixed_point`), so a secure sum modulo 2^b can represent uploads and noise. Reduction modulo any number,
inverse scaling and inverse rotation are post-processing. Sensitivities follow from `l2_bound` and adjacency.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency, Unsampled
from accounting.rounding import downwards, upwards


@dataclass(frozen=True, kw_only=True)
class NoisyIntegers(Unsampled):
    """Base class of sums of clients' integer vectors on `dimension` coordinates with integer noise.

    Each vector has L2 norm at most `l2_bound`. `shares`: smallest number of independent draws of the noise in a sum.
    `overflow`: the probability that more clients are drawn than a sum has uploads; it is added to delta for every
    release.
    Claim: further independent noise and reduction modulo any number are post-processing.
    Source: docs/theory.md, section 7.
    Units: integer steps; share_variance in squared steps.
    Adjacency: any; with noise in several shares not add-remove.
    Errors: UnsupportedMechanism for shares under add-remove; InvalidParameter for a number outside its domain.

    >>> from accounting import DiscreteGaussian
    >>> sums = DiscreteGaussian(dimension=8, l2_bound=10.0, share_variance=25.0, adjacency="zero-out", shares=16)
    >>> sums.variance, sums.sensitivity
    (400.0, 10.0)
    """

    dimension: int
    l2_bound: float
    share_variance: float
    adjacency: Adjacency
    shares: int = 1
    overflow: float = 0.0

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "dimension", "shares")
        require.replace_fields(self, require.positive, "l2_bound", "share_variance")
        require.replace_fields(self, require.probability, "overflow")
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))
        strength = math.sqrt(self.share_variance * self.shares) / self.l2_bound
        if not require.SMALLEST_NOISE <= strength <= require.LARGEST_NOISE:
            raise InvalidParameter(
                f"share_variance={self.share_variance}, shares={self.shares}, l2_bound={self.l2_bound}: the noise "
                f"multiplier is {strength}; must be from {upwards(require.SMALLEST_NOISE)} to "
                f"{downwards(require.LARGEST_NOISE)}."
            )
        if self.shares > 1 and self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                f"adjacency='add-remove' with noise in {self.shares} shares: one client added or removed changes the "
                "number of shares, so the noise reveals the client. Use 'zero-out' (the client sends its noise alone) "
                "or 'replace-one', or let the server add the noise (shares=1)."
            )

    @property
    def sensitivity(self) -> float:
        """Largest L2 distance between the sums of neighbours, in integer steps."""
        return self.l2_bound * self.adjacency.sensitivity_in_clips

    @property
    def variance(self) -> float:
        """Variance parameter of the noise on each coordinate of the sum."""
        return self.share_variance * self.shares

    @property
    def mu(self) -> float:
        """Sensitivity over the standard deviation of the noise on the sum."""
        return self.sensitivity / math.sqrt(self.variance)

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Return the least standard deviation of the noise that the account assumes, in the units of `clip_norm`.

        A step is 1 / steps_per_unit (0: unknown), and at least clip_norm / l2_bound: rounding lengthens vectors, so a
        clip norm is at most l2_bound steps.
        """
        step = max(clip_norm / self.l2_bound, 1 / steps_per_unit if steps_per_unit else 0.0)
        return math.sqrt(self.variance) * step

    @property
    def excess_kurtosis(self) -> float:
        """Excess kurtosis of one draw: 0 as for a Gaussian, to 1e-6 at variances of at least 1."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(NoisyIntegers):
    """Sum of integer vectors (`NoisyIntegers`) with discrete Gaussian noise N_Z(0, share_variance) in each share.

    N_Z(0, s^2) has probabilities proportional to exp(-x^2 / (2 s^2)) on the integers.
    Claim: the sum of shares is within e^±eta of a post-processed Gaussian.
    Source: Canonne, Kamath, Steinke 2020; Kairouz, Liu, Steinke 2021; docs/theory.md, Theorems 5 and 6.
    Units: integer steps.
    Adjacency: any, in several shares not add-remove.
    Errors: UnsupportedMechanism, InvalidParameter.

    >>> from accounting import DiscreteGaussian, guarantee
    >>> noise = DiscreteGaussian(dimension=8, l2_bound=10.0, share_variance=400.0, adjacency="zero-out")
    >>> round(guarantee(noise, delta=1e-5).epsilon, 3)
    1.995
    """

    kind: ClassVar[str] = "discrete-gaussian"
    words: ClassVar[str] = "discrete Gaussian noise"
    account: ClassVar[str] = "accounting.integers.discrete_gaussian:ACCOUNT"


@dataclass(frozen=True, kw_only=True)
class Skellam(NoisyIntegers):
    """Sum of integer vectors (`NoisyIntegers`) with Skellam noise: differences of two Poisson(share_variance / 2)
    variables.

    Claim: the variance is exactly share_variance, and a sum of shares is Skellam again.
    Source: Agarwal, Kairouz, Liu 2021.
    Units: integer steps.
    Adjacency: any, in several shares not add-remove.
    Errors: as `NoisyIntegers`.

    >>> from accounting import Skellam
    >>> Skellam(dimension=8, l2_bound=10.0, share_variance=25.0, adjacency="zero-out", shares=16).excess_kurtosis
    0.04
    """

    kind: ClassVar[str] = "skellam"
    words: ClassVar[str] = "Skellam noise"
    account: ClassVar[str] = "accounting.integers.skellam:ACCOUNT"

    @property
    def excess_kurtosis(self) -> float:
        """Excess kurtosis of one draw: 1 / variance."""
        return 1 / self.share_variance
