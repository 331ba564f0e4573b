"""Fixed-point encoding of uploads: bounds on the norm of a rounded vector, and bits of the sum.

A client scales its clipped vector and rounds it to integers by unbiased random rounding. It repeats the rounding until
the norm is at most the bound of this module. `scaled_clip` is the clip norm after scaling, in steps.
"""

import math

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms import Adjacency, NoisyIntegers
from accounting.mechanisms.adjacency import Unsampled
from accounting.roots import smallest_passing

REDRAW = math.exp(-0.5)
"""Default beta: largest probability that a rounded vector exceeds the bound (in practice far smaller)."""

# Shares with this standard deviation in steps have practically the epsilon of continuous noise.
_SUFFICIENT_SHARE_STD = 2.0


def padded_dimension(dimension: int, *, rotate: bool) -> int:
    """Return the number of integers that a client sends for `dimension` coordinates; a rotation pads it to a power of
    two.
    """
    size = require.count(dimension=dimension)
    return 1 << (size - 1).bit_length() if rotate else size


def rounded_l2_squared(scaled_clip: float, dimension: int) -> int:
    """Return the largest squared L2 norm of an accepted rounded vector, an integer. A longer vector is redrawn.

    It is the floor of min{ S^2 + d/4 + sqrt(2 ln(1/REDRAW)) (S + sqrt(d)/2), (S + sqrt d)^2 }, S = scaled_clip
    (Kairouz, Liu, Steinke 2021, in units of one integer step).
    Claim: unbiased rounding of a vector of norm S is within the first bound with probability at least 1 - REDRAW, and
    always within the second. Privacy relies on the check of every upload, not on this claim.
    """
    clip, size = _integer_clip(scaled_clip), require.count(dimension=dimension)
    likely = clip**2 + size / 4 + math.sqrt(2 * math.log(1 / REDRAW)) * (clip + math.sqrt(size) / 2)
    return math.floor(min(likely, (clip + math.sqrt(size)) ** 2))


def rounded_l2(scaled_clip: float, dimension: int) -> float:
    """Return the largest L2 norm of one client's integers: the root of `rounded_l2_squared`, rounded upwards."""
    return math.nextafter(math.sqrt(rounded_l2_squared(scaled_clip, dimension)), math.inf)


def rounded_l1(l2: float, dimension: int) -> float:
    """Return the largest L1 norm of an integer vector of L2 norm at most `l2`: min(sqrt(d) l2, l2^2), as |v| <= v^2."""
    size = require.count(dimension=dimension)
    return min(math.sqrt(size) * require.positive(l2=l2), l2**2)


def least_scale(dimension: int, *, overhead: float = 0.01) -> int:
    """Return the smallest integer `scaled_clip` at which rounding lengthens the bound by at most the fraction
    `overhead`.
    """
    size, factor = require.count(dimension=dimension), 1 + require.positive(overhead=overhead)
    return smallest_passing(lambda scale: rounded_l2(scale, size) <= factor * scale)


def default_scale(dimension: int, uploads: int) -> int:
    """Return the default steps per clip norm.

    With it rounding lengthens the bound by at most 1%. Noise shares of `uploads` clients have a standard deviation of
    at least 2 steps for noise multipliers of at least 1/2.
    """
    return max(least_scale(dimension), math.ceil(2 * _SUFFICIENT_SHARE_STD * math.sqrt(uploads)))


def sized_noise(
    law: str,
    noise_multiplier: float | None,
    *,
    scale: float,
    dimension: int,
    shares: int,
    adjacency: Adjacency,
) -> NoisyIntegers:
    """Return integer noise of variance at least (noise_multiplier scale)^2 on a sum of `dimension` rounded integers.

    The noise is in equal shares whose variance is an integer, as exact samplers require.
    """
    variance = (require.noise_multiplier(noise_multiplier) * scale) ** 2 / shares
    description: type[NoisyIntegers] = Unsampled.kinds[law]
    return description(
        dimension=dimension,
        l2_bound=rounded_l2(scale, dimension),
        share_variance=float(math.ceil(variance * (1 - 1e-12))),
        shares=shares,
        adjacency=adjacency,
    )


def sum_bits(
    *,
    law: str,
    uploads: int,
    dimension: int,
    scaled_clip: float,
    noise_variance: float,
    rotate: bool,
    wrap_probability: float = 1e-6,
) -> int:
    """Return the smallest b such that a sum modulo 2^b wraps around in a round with probability at most
    `wrap_probability`.

    Claim: take the sum of `uploads` rounded vectors of norm at most `scaled_clip`, and noise of total variance
    `noise_variance`. All its `dimension` coordinates are within (-2^(b-1), 2^(b-1)) with probability at least 1 -
    wrap_probability. Equal vectors are the worst case. Chernoff's bound with the moment generating function exp(V l^2 /
    2) for sums of discrete Gaussians (Canonne, Kamath, Steinke 2020) or exp(V (cosh l - 1)) for Skellam; union over the
    coordinates. Without rotation uploads (scaled_clip + 1) bounds the sum of the vectors. rotate: after random signs
    and a Hadamard transform over `dimension` coordinates (Hoeffding) a coordinate of the sum is subgaussian with
    variance (uploads scaled_clip)^2 / dimension, for vectors chosen before the signs; rounding moves it by less than 1
    for each upload. `dimension` is the number of integers sent, `padded_dimension`.
    Direction of error: upwards.

    The bound concerns only accuracy, and no account may use it: clients who choose vectors after the signs are public
    make a sum wrap around with certainty. That does not increase epsilon if the noise is added to the integers and
    their sum is reduced after it (docs/theory.md, section 7); noise that is added after the reduction gives no privacy.
    """
    if law not in ("discrete-gaussian", "skellam"):
        raise InvalidParameter(f"law={law!r}: must be 'discrete-gaussian' or 'skellam'.")
    count, size = require.count(uploads=uploads), require.count(dimension=dimension)
    clip, variance = _integer_clip(scaled_clip), require.nonnegative(noise_variance=noise_variance)
    allowed = math.log(require.open_probability(wrap_probability=wrap_probability)) - math.log(2 * size)

    def is_wide_enough(bits: int) -> bool:
        half = math.ldexp(1.0, bits - 1)
        without_rotation = _log_tail(law, half - count * (clip + 1), 0.0, variance)
        spread = (count * clip) ** 2 / size
        return min(without_rotation, _log_tail(law, half - count, spread, variance) if rotate else 0.0) <= allowed

    return next(bits for bits in range(1, 1024) if is_wide_enough(bits))


def _integer_clip(scaled_clip: float) -> float:
    """Return a scaled clip norm whose integers are exact in a double. Errors: InvalidParameter above 2^53."""
    if require.positive(scaled_clip=scaled_clip) > 2**53:
        raise InvalidParameter(
            f"scaled_clip={scaled_clip}: must be at most 2^53, the largest range of exact integers in a double."
        )
    return float(scaled_clip)


def _log_tail(law: str, distance: float, gaussian_part: float, variance: float) -> float:
    """Return Chernoff's bound on log Pr[X >= distance], X the sum of the noise and a subgaussian variable of variance
    `gaussian_part`.
    """
    if distance <= 0:
        return 0.0
    if gaussian_part + variance == 0:
        return -math.inf
    if law == "discrete-gaussian":
        return -(distance**2) / (2 * (gaussian_part + variance))
    if variance == 0:
        return -(distance**2) / (2 * gaussian_part)
    low, high = 0.0, min(math.asinh(distance / variance), 700.0)
    for _ in range(60):  # every l gives a bound; the best l solves l gaussian_part + V sinh l = distance
        middle = (low + high) / 2
        is_below = middle * gaussian_part + variance * math.sinh(middle) < distance
        low, high = (middle, high) if is_below else (low, middle)
    return low**2 * gaussian_part / 2 + 2 * variance * math.sinh(low / 2) ** 2 - low * distance
