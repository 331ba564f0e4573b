"""Integer noise for sums in a ring: the discrete Gaussian and the symmetric Skellam distribution, drawn exactly."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting import require
from accounting.mechanisms import DiscreteGaussian, Skellam
from dpfed.errors import ConfigError
from dpfed.mechanisms import inversion
from dpfed.randomness import Randomness

LARGEST_VARIANCE = 1 << 34


@dataclass(frozen=True)
class IntegerDistribution(inversion.SymmetricDistribution, Protocol):
    """Distribution on the integers, symmetric about 0.

    variance: parameter of the distribution, in squared integer units, from 1 to 2^34.
    """

    variance: int

    def __post_init__(self) -> None:
        given = self.variance
        if not require.is_whole(given) or not 1 <= given <= LARGEST_VARIANCE:
            raise ConfigError(
                f"variance={given!r} of integer noise: must be a whole number from 1 to {LARGEST_VARIANCE} (a table of "
                "nine standard deviations is held in memory). Use more or fewer steps per unit: the variance is "
                "(noise std x steps per unit)², shared among the clients and rounded up."
            )

    def sample(self, count: int, randomness: Randomness, purpose: str, *path: int) -> NDArray[np.int64]:
        """Return independent draws, int64 [count]."""
        return inversion.draw_short(self, count, randomness, purpose, *path)


@dataclass(frozen=True)
class DiscreteGaussianLaw(IntegerDistribution):
    """Discrete Gaussian N_Z(0, σ²): P(k) = exp(-k² / 2σ²) / Σ_j exp(-j² / 2σ²), for an integer σ² = `variance`.

    Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020). Its variance is less than
    σ², by a relative difference below 1e-6. A sum of draws is close to a discrete Gaussian, but is not one: Kairouz,
    Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation" (ICML
    2021). `sample` has exactly this distribution for fair random bits; see `inversion`. Errors: ConfigError unless σ²
    is from 1 to 2^34.
    """

    def weights(self, bits: int) -> list[int]:
        """Return 2^b exp(-k² / 2σ²), k = 0 ... n, as `inversion.SymmetricDistribution` requires; b = bits + 96.

        w_{k+1} = w_k s_k, s_k = r^{2k+1}, r = exp(-1/2σ²), every product rounded down. The error of r is at most 2
        units of 2^-b. The error of a product of factors at most 1 is at most the sum of their errors and 1. So the
        error of s_k is at most 2 + 6k units, that of w_k 3k² units, and that of a sum of up to 2n + 1 of them 2
        (n+1)³. n² >= 2σ² b log 2 leaves out less than 2σ²/n <= 2n units, and the sum is at least 2^b. Together |C_k /
        S - P(|X| <= k)| <= (4 (n+1)³ + 2n) 2^-b, which is less than 2^-bits, as n < 2^30.
        """
        places = bits + 96
        last = math.isqrt(7 * places * self.variance // 5) + 1  # 7/5 > 2 log 2
        with decimal.localcontext(prec=places // 3 + 10):  # exp is correctly rounded in this precision
            ratio = int((Decimal(-1) / (2 * self.variance)).exp() * 2**places)
        step, squared = ratio, ratio * ratio >> places
        weights = [1 << places]
        for _ in range(last):
            weights.append(weights[-1] * step >> places)
            step = step * squared >> places
        return weights


@dataclass(frozen=True)
class SkellamLaw(IntegerDistribution):
    """Difference of two independent Poisson(V/2): P(k) = e^-V I_k(V), for an integer V = `variance`.

    Its variance is V, and a sum of r independent draws is Skellam of variance r V: exactly closed under sums. Agarwal,
    Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated Learning" (NeurIPS 2021). `sample` has
    exactly this distribution for fair random bits; see `inversion`. Errors: ConfigError unless V is an integer from 1
    to 2^34.
    """

    def weights(self, bits: int) -> list[int]:
        """Return weights proportional to I_k(V), k = 0 ... n, as `inversion.SymmetricDistribution` requires, by
        Miller's recurrence.

            f_{n+1} = f_n = 2^b,    f_{k-1} = f_{k+1} + (2k/V) f_k rounded down,    b = bits + 64

        I_k and (-1)^k K_k satisfy the recurrence. Without rounding f_k / A = I_k ± B K_k with A > 0 and B = (I_n -
        I_{n+1}) / (K_n + K_{n+1}). So the error of I_k is at most I_n, for K_k grows with k; times e^-V it is at most
        P(n). A rounding by u < 1 at index m subtracts u times the solution that is 1 at m and 0 at m + 1. At j <= m
        that solution is at most f_j / f_m, since every solution here is positive; and f_m >= 2^b: n roundings take
        less than the fraction n 2^-b of f_j. Last, V (cosh t - 1) <= (V t²/2) / (1 - t/3) gives Bernstein's P(|X| >=
        n) <= 2 exp(-n² / 2(V + n/3)), at most 2^-b with n as below. Together |C_k / S - P(|X| <= k)| <= 8 (n+1) 2^-b,
        less than 2^-bits.
        """
        places = bits + 64
        nats = (7 * (places + 1) + 9) // 10  # > (b + 1) log 2
        last = math.isqrt(2 * nats * self.variance + nats * nats) + nats
        weights = [0] * (last + 1)
        weights[last] = above = 1 << places
        for k in range(last, 0, -1):
            weights[k - 1] = above + 2 * k * weights[k] // self.variance
            above = weights[k]
        return weights


def distribution_of(noise: DiscreteGaussian | Skellam) -> IntegerDistribution:
    """Return the distribution of every draw of this accountant's description."""
    law = DiscreteGaussianLaw if isinstance(noise, DiscreteGaussian) else SkellamLaw
    return law(int(noise.share_variance))
