"""Adaptive clipping: the clip norm follows a quantile of the clients' update norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed.errors import ConfigError
from dpfed.randomness import Randomness

_FARTHEST = 100.0
"""From any clip norm, a factor e^100 leads to the largest one."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """Geometric updates C <- C exp(-rate (b - quantile)), b a noisy estimate of the fraction of clients inside C.

    Every client adds b_i - 1/2 (b_i = 1 if its norm is within C) to a second sum. A row of zeros (of a client without
    samples) and a row that is not finite add 0 instead, so that a zeroed client adds 0 to both sums. So one client
    moves the count by 1/2 under add-remove and zero-out and by 1 under replace-one: half of what a vector of norm 1
    does. With Gaussian noise of standard
    deviation `count_noise_std` that sum is a Gaussian release of noise multiplier 2 count_noise_std, about the same
    cohort as the update sum. Both together are to cost what one release of `noise_multiplier` costs, so the update sum
    gets the larger multiplier of `update_noise_multiplier`. `cohort`: the expected number of clients of a round.
    """

    quantile: float
    rate: float
    count_noise_std: float
    cohort: float
    randomness: Randomness

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ConfigError(f"privacy.adaptive.quantile={self.quantile}: must be strictly between 0 and 1.")
        for name in ("rate", "count_noise_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"privacy.adaptive.{name}={getattr(self, name)}: must be a finite number above 0.")

    @property
    def count_noise_multiplier(self) -> float:
        """Noise of the count in units of what one client can change."""
        return 2 * self.count_noise_std

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """z_u with 1/z^2 = 1/z_u^2 + 1/(2 count_noise_std)^2 (Andrew et al. 2021, Theorem 1).

        Raises ConfigError where the count alone costs as much as the whole release may.
        """
        if self.count_noise_multiplier <= noise_multiplier:
            raise ConfigError(
                f"privacy.adaptive.count_noise_std={self.count_noise_std} with privacy.noise_multiplier="
                f"{noise_multiplier}: must be above half of it, or the count alone would spend the budget. Andrew et "
                "al. take a twentieth of the cohort."
            )
        return float((noise_multiplier**-2 - self.count_noise_multiplier**-2) ** -0.5)

    def next_norm(self, norm: float, centred_count: float, number: int) -> float:
        """The clip norm of the round after this one, from the sum of (b_i - 1/2) and the noise of round `number`."""
        return self.moved(norm, centred_count + self.count_noise_std * self._draw(number))

    def moved(self, norm: float, noisy_count: float) -> float:
        """The clip norm after `norm`. It stops at the ends of what float32 holds: post-processing of the noisy count,
        like the rest."""
        fraction = noisy_count / self.cohort + 0.5
        power = min(max(-self.rate * (fraction - self.quantile), -_FARTHEST), _FARTHEST)
        return min(max(norm * math.exp(power), SMALLEST_CLIP), LARGEST_CLIP)

    def _draw(self, number: int) -> float:
        """A standard normal."""
        return float(self.randomness.normal(1, "noise.count", number)[0])
