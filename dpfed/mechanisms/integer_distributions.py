"""Integer noise, drawn exactly.

Exact draws from a symmetric distribution on the integers: inversion with as many random bits as needed.

Let U be uniform on [0, 1) and G(k) = P(|X| <= k). The smallest k with U < G(k) has the distribution of |X|, and a fair
sign gives the distribution of X. The first 63 bits of U are drawn, the integer u: U is in [u, u+1) 2^-63. If no G(k)
2^63 has the integer part u, every U of that cell has the same k, and a table of the integer parts finds it. If one has,
more bits of U are drawn until the cell contains no G(k): about once in 2^63 / σ draws. So no bit of U is rounded. The
distribution is exact if the random bits are fair: not only to 2^-63. The far tail needs no separate rule: all k with
G(k) >= 1 - 2^-63 share the last integer part, whose cell is resolved by further bits.

`draw_short` first draws 15 bits and a sign. If their cell of 2^-15 contains no G(k), they decide, and a table of 2^16
draws has the result; for a small σ few cells contain one. The other draws get 48 further bits of the same U, and are
looked up as above.

G is computed in integers with a proven error, and an integer part is used only if that error cannot change it.

Integer noise for sums in a ring: the discrete Gaussian and the symmetric Skellam distribution, drawn exactly.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting import require
from accounting.mechanisms import DiscreteGaussian, NoisyIntegers, Skellam
from dpfed.compress.sparse import positions_of
from dpfed.errors import ConfigError
from dpfed.randomness import Randomness

WORD = 64
FIRST_BITS = WORD - 1  # bits of magnitude in a word; the last bit is the sign
_GUARD = 32
_SHORT = 15  # bits of magnitude that are drawn first
_REST = FIRST_BITS - _SHORT
_UNDECIDED = np.iinfo(np.int32).min
_MOST_UNDECIDED = 0.25  # above it, drawing all bits from the start is faster
_AT_ONCE = 1 << 15  # draws at a time: their temporaries fit a core's cache
_LARGEST_GUIDE = 20


class SymmetricDistribution(Protocol):
    """Symmetric distribution on the integers, given by its weights.

    `weights(bits)` is w_0 ... w_n such that, with C_k = w_0 + 2 Σ_{1 <= j <= k} w_j and S = C_n,

        |C_k / S - P(|X| <= k)| < 2^-bits    for every k <= n,    and P(|X| > n) < 2^-bits.

    Instances are hashable, and P(|X| > k) is positive for every k.
    """

    def weights(self, bits: int) -> list[int]: ...

    def __hash__(self) -> int:
        return object.__hash__(self)


def draw_short(
    law: SymmetricDistribution, count: int, randomness: Randomness, purpose: str, *path: int
) -> NDArray[np.int64]:
    """Return independent draws, int64 [count], exactly of the distribution, most of them from 16 bits each."""
    short = _short_table(law)
    if short is None:
        return draw(law, count, randomness, purpose, *path)
    heads = randomness.bits(-(-count // 4), purpose, *path).view(np.uint16)[:count]
    drawn = np.empty(count, dtype=np.int64)
    unsure = np.empty(count, dtype=np.bool_)
    for first in range(0, count, _AT_ONCE):
        place = slice(first, first + _AT_ONCE)
        part = short.take(heads[place], mode="wrap")  # the fastest mode; no index wraps around
        drawn[place] = part
        np.equal(part, _UNDECIDED, out=unsure[place])
    undecided = positions_of(unsure)
    if len(undecided):
        few = heads[undecided].astype(np.int64)
        more = (randomness.bits(len(few), purpose + ".rest", *path) >> np.uint64(WORD - _REST)).view(np.int64)
        uniforms = (few >> 1) << _REST | more
        magnitudes, open_cells = _inversion_table(law, FIRST_BITS).look_up(uniforms)
        if len(open_cells):
            left = uniforms[open_cells].tolist()
            magnitudes[open_cells] = _resolved_draws(law, left, FIRST_BITS, randomness, purpose, *path)
        drawn[undecided] = _apply_signs(magnitudes, few.view(np.uint64))
    return drawn


@lru_cache(maxsize=8)
def _short_table(law: SymmetricDistribution) -> NDArray[np.int32] | None:
    """Return the draw for every 16 bits, the last of them the sign; None if many cells are undecided.

    The draw is _UNDECIDED for a cell that contains a G(k).
    """
    floors = _integer_parts(law, FIRST_BITS)
    edges = np.searchsorted(floors, np.arange(1 << _SHORT, dtype=np.int64) << _REST, side="left")
    magnitudes = edges.astype(np.int32)
    undecided = edges != np.append(edges[1:], len(floors))
    if undecided.mean() > _MOST_UNDECIDED:
        return None
    draws = np.stack([magnitudes, -magnitudes], axis=1)
    draws[undecided] = _UNDECIDED
    return draws.reshape(-1)


def draw(
    law: SymmetricDistribution, count: int, randomness: Randomness, purpose: str, *path: int, bits: int = FIRST_BITS
) -> NDArray[np.int64]:
    """Return independent draws, int64 [count], exactly of the distribution for any number `bits` of first bits."""
    table = _inversion_table(law, bits)
    words = randomness.bits(count, purpose, *path)
    drawn = np.empty(count, dtype=np.int64)
    unsure = [np.empty(0, dtype=np.int64)]
    for first in range(0, count, _AT_ONCE):
        part = words[first : first + _AT_ONCE]
        magnitudes, open_cells = table.look_up((part >> np.uint64(WORD - bits)).view(np.int64))
        drawn[first : first + _AT_ONCE] = _apply_signs(magnitudes, part)
        unsure.append(open_cells + first)
    indices = np.concatenate(unsure)
    if len(indices):
        heads = [int(word) >> (WORD - bits) for word in words[indices]]
        settled = _resolved_draws(law, heads, bits, randomness, purpose, *path)
        drawn[indices] = _apply_signs(np.array(settled, dtype=np.int64), words[indices])
    return drawn


def _apply_signs(magnitudes: NDArray[np.int64], words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the draws, negated if the last bit of their random bits is set."""
    flips: NDArray[np.int64] = -(words & np.uint64(1)).view(np.int64)
    return (magnitudes ^ flips) - flips


@dataclass(frozen=True, kw_only=True, eq=False)
class _InversionTable:
    """Table of inversion by the first bits of U.

    floors [n+2]: -1, then the integer parts of G(k) 2^bits, k = 0 ... n, up to the first that is 2^bits - 1.
    guide_table [2^g]: for the first g bits of u, the number of integer parts that are at most the smallest such u (an
    indexed search: Chen and Asau 1974). For most u at most one further integer part is at or below u; a search finds it
    for the other u.
    """

    floors: NDArray[np.int64]
    guide_table: NDArray[np.int32]
    shift: int

    def look_up(self, heads: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the k of every u, and the positions of every u that equals an integer part, whose k is open."""
        found = self.guide_table[heads >> self.shift].astype(np.int64)
        found += self.floors.take(found + 1, mode="clip") <= heads
        further = np.flatnonzero(self.floors.take(found + 1, mode="clip") <= heads)
        found[further] = np.searchsorted(self.floors[1:], heads[further], side="right")
        return found, np.flatnonzero(self.floors.take(found, mode="clip") == heads)


@lru_cache(maxsize=8)
def _inversion_table(law: SymmetricDistribution, bits: int) -> _InversionTable:
    floors = _integer_parts(law, bits)
    fine = min(bits, _LARGEST_GUIDE, len(floors).bit_length() + 3)
    shift = bits - fine
    starts = np.arange(1 << fine, dtype=np.int64) << shift
    guide = np.searchsorted(floors, starts, side="right").astype(np.int32)
    return _InversionTable(
        floors=np.concatenate([np.array([-1], dtype=np.int64), floors]), guide_table=guide, shift=shift
    )


def _integer_parts(law: SymmetricDistribution, bits: int) -> NDArray[np.int64]:
    """Return the integer parts of G(k) 2^bits, k = 0, 1, ... up to the first that is 2^bits - 1."""
    guard, floors = 0, None
    while floors is None:
        guard += _GUARD
        floors = _sure_parts(_cumulative_sums(law.weights(bits + guard + _GUARD)), bits, guard)
    return floors


def _sure_parts(sums: list[int], bits: int, guard: int) -> NDArray[np.int64] | None:
    """Return integer parts from sums correct to bits + guard places; None if their error could change one."""
    floors = []
    top = (1 << bits) - 1
    for partial in sums:
        scaled = (partial << bits + guard) // sums[-1]  # G(k) 2^(bits + guard), with an error below 2
        low, high = max(scaled - 2, 0) >> guard, (scaled + 2) >> guard
        if low != min(high, top):  # G(k) < 1
            return None
        floors.append(low)
        if low == top:
            return np.array(floors, dtype=np.int64)
    return None


def _resolved_draws(
    law: SymmetricDistribution, heads: list[int], bits: int, randomness: Randomness, purpose: str, *path: int
) -> list[int]:
    """Return the k of every u of `bits` bits, with the further bits that its cell needs."""
    settled = [-1] * len(heads)
    waiting = list(range(len(heads)))
    level = 0
    while waiting:
        words = randomness.bits(len(waiting), purpose + ".more", *path, level)
        bits += WORD
        level += 1
        for index, word in zip(waiting, words, strict=True):
            heads[index] = heads[index] << WORD | int(word)
            settled[index] = _cell_value(law, heads[index], bits)
        waiting = [index for index in waiting if settled[index] < 0]
    return settled


def _cell_value(law: SymmetricDistribution, head: int, bits: int) -> int:
    """Return the k of all U in [head, head + 1) 2^-bits, or -1 if their k may differ."""
    sums = _accurate_sums(law, bits + 2 * _GUARD)
    total = sums[-1]
    k = bisect_right(sums, (head * total) >> bits)
    if k == len(sums):
        return -1
    below = (sums[k - 1] << bits + _GUARD) // total + 2 if k else 0
    above = (sums[k] << bits + _GUARD) // total - 2
    return k if below <= head << _GUARD and (head + 1) << _GUARD <= above else -1


@lru_cache(maxsize=2)
def _accurate_sums(law: SymmetricDistribution, bits: int) -> list[int]:
    return _cumulative_sums(law.weights(bits))


def _cumulative_sums(weights: list[int]) -> list[int]:
    """Return C_k = w_0 + 2 (w_1 + ... + w_k)."""
    return list(accumulate((2 * weight for weight in weights[1:]), initial=weights[0]))


LARGEST_VARIANCE = 1 << 34


@dataclass(frozen=True)
class IntegerDistribution(SymmetricDistribution, Protocol):
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
        return draw_short(self, count, randomness, purpose, *path)


@dataclass(frozen=True)
class DiscreteGaussianLaw(IntegerDistribution):
    """Discrete Gaussian N_Z(0, σ²): P(k) = exp(-k² / 2σ²) / Σ_j exp(-j² / 2σ²), for an integer σ² = `variance`.

    Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020). Its variance is less than
    σ², by a relative difference below 1e-6. A sum of draws is close to a discrete Gaussian, but is not one: Kairouz,
    Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation" (ICML
    2021). `sample` has exactly this distribution for fair random bits. Errors: ConfigError unless σ² is from 1 to 2^34.
    """

    def weights(self, bits: int) -> list[int]:
        """Return 2^b exp(-k² / 2σ²), k = 0 ... n, as `SymmetricDistribution` requires; b = bits + 96.

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
    exactly this distribution for fair random bits. Errors: ConfigError unless V is an integer from 1 to 2^34.
    """

    def weights(self, bits: int) -> list[int]:
        """Return weights proportional to I_k(V), k = 0 ... n, as `SymmetricDistribution` requires, by
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


_DISTRIBUTIONS = {DiscreteGaussian.kind: DiscreteGaussianLaw, Skellam.kind: SkellamLaw}


def distribution_of(noise: NoisyIntegers) -> IntegerDistribution:
    """Return the distribution of every draw of this accountant's description."""
    return _DISTRIBUTIONS[noise.kind](int(noise.share_variance))
