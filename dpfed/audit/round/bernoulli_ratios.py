"""Exact log-likelihood ratios of sums of Bernoulli samples, and bounds from whole scores (`WholeScores`) of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr
from torch import Tensor

from accounting.arrays import Floats, Ints
from accounting.roots import crossing_bracket
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.audit.statistics.score_distribution import HONEST, Deviation
from dpfed.audit.statistics.whole_scores import WholeScores

_DRAWN = 20_000

_FAR = 1e6
"""Log-ratio of a value that is impossible in one world; finite, so that values of opposite sign can be added."""

_FACTORS = np.concatenate([np.linspace(0.0, 2.0, 41), np.linspace(2.25, 4.0, 8)])

_GRID = 2e-4

_LARGEST = 1 << 22

_ROUNDING = 1e-15
"""Largest rounding error of a probability by Fourier transforms, for each entry of the vector."""


@dataclass(frozen=True, kw_only=True)
class BernoulliBias:
    """Claimed change of a Bernoulli sample's probability: N(0, noise_std^2) is added, then a clip to
    [edge, 1 - edge].
    """

    edge: float
    noise_std: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class BernoulliRatio:
    """Log-likelihood ratio log P1(s) / P0(s) of a sum s [d] of independent Bernoulli samples.

    log_one, log_other, log_out: log-probabilities [d, samples + 1] of each value of an entry: in world 1, in world 0,
                 and in both worlds if another client is in the sum in place of the client under test
    taking_part: probability that the client under test is in the sum
    """

    log_one: Floats
    log_other: Floats
    log_out: Floats
    taking_part: float

    @classmethod
    def from_probabilities(
        cls,
        coins: BernoulliBias,
        one: Tensor,
        other: Tensor,
        rest: Tensor,
        others: int,
        taking_part: float = 1.0,
        trials: int = 1,
    ) -> BernoulliRatio:
        """Return the ratio from the probabilities [d] of the client in world 1 (`one`) and world 0 (`other`).

        rest: probabilities of each of the `others` clients. All probabilities are those before the claimed noise and
        clip. trials: number of samples that each client draws of a probability.
        """
        own = [
            _sum_distribution(np.repeat(_probability_of_one(coins, where)[:, None], trials, axis=1))
            for where in (one, other, rest)
        ]
        beside = _sum_distribution(np.repeat(_probability_of_one(coins, rest)[:, None], trials * others, axis=1))
        tables = [_convolved_rows(law, beside) for law in own]
        with np.errstate(divide="ignore"):
            logs = [np.log(table) for table in tables]
        return cls(log_one=logs[0], log_other=logs[1], log_out=logs[2], taking_part=taking_part)

    def scores(self, sums: Tensor) -> Floats:
        """Return the log-likelihood ratio [n] of each of the sums [n, d]."""
        counts = np.asarray(sums.round().long().cpu().numpy()).clip(0, self.log_one.shape[1] - 1)
        if self.taking_part == 1:
            return self._sum_over_entries(self.table(), counts)
        logs = (
            self._sum_over_entries(_finite_logs(log), counts) for log in (self.log_one, self.log_other, self.log_out)
        )
        return self._ratio_of_mixture(*logs)

    @staticmethod
    def _sum_over_entries(table: Floats, counts: Ints) -> Floats:
        return np.asarray(np.take_along_axis(table.T, counts, axis=0).sum(axis=1), dtype=np.float64)

    def draw_ratios(self, true: BernoulliRatio, world: int, trials: int, generator: np.random.Generator) -> Floats:
        """Draw sums from the distributions of `true` in this world, and return their log-likelihood ratios [trials].

        The code under test is not called. Entries with equal distributions are drawn together, as a multinomial.
        """
        inside = generator.binomial(trials, self.taking_part)
        tables = np.concatenate([self.log_one, self.log_other, self.log_out], axis=1)
        scores = []
        for log, count in (((true.log_other, true.log_one)[world], inside), (true.log_out, trials - inside)):
            rows = np.concatenate([log, tables], axis=1)
            _, firsts, sizes = np.unique(rows, axis=0, return_index=True, return_counts=True)
            found = np.zeros((3, count))
            for first, size in zip(firsts, sizes, strict=True):
                drawn = generator.multinomial(size, _normalised_probabilities(np.exp(log[first])), size=count)
                for k, table in enumerate((self.log_one, self.log_other, self.log_out)):
                    found[k] += drawn @ _finite_logs(table[first])
            scores.append(self._ratio_of_mixture(*found))
        return np.concatenate(scores)

    def _ratio_of_mixture(self, one: Floats, other: Floats, out: Floats) -> Floats:
        q = self.taking_part
        if q == 1:
            return one - other
        both = [np.logaddexp(math.log1p(-q) + out, math.log(q) + own) for own in (one, other)]
        return np.asarray(both[0] - both[1])

    def table(self) -> Floats:
        """Return the log-ratio [d, samples + 1] of each value of an entry; 0 for values impossible in both worlds."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.log_one - self.log_other, nan=0.0, posinf=_FAR, neginf=-_FAR)

    @property
    def has_impossible_values(self) -> bool:
        """True if a value is possible in one world only; then the only useful cut is at likelihood ratio 1."""
        return bool((np.abs(self.table()) >= _FAR).any())

    @property
    def moments(self) -> tuple[float, float, float]:
        """Mean of the log-ratio in world 0 and in world 1, and its standard deviation in world 0."""
        ratio = self.table()
        p0, p1 = np.exp(self.log_other), np.exp(self.log_one)
        mean0, mean1 = float((p0 * ratio).sum()), float((p1 * ratio).sum())
        variance = (p0 * ratio**2).sum(axis=1) - (p0 * ratio).sum(axis=1) ** 2
        return mean0, mean1, float(np.sqrt(variance.sum()))


def _finite_logs(table: Floats) -> Floats:
    return np.maximum(table, -_FAR)


def _normalised_probabilities(law: Floats) -> Floats:
    return np.asarray(law / law.sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class BernoulliScores:
    """Distribution of the scores of `ratio` if the client's probabilities move farther than claimed.

    ends: final probabilities [d] of the client in world 1, of the client in world 0, and of each other client.
    origin: probabilities [d] at the start of the round.
    """

    coins: BernoulliBias
    ends: tuple[Tensor, Tensor, Tensor]
    origin: Tensor
    ratio: BernoulliRatio
    trials: int = 1

    def error_rates(self, threshold: float, fault: Deviation = HONEST) -> tuple[float, float]:
        """Return upper confidence limits of the error rates from draws; each limit is too small with
        probability 1e-4.
        """
        true = self.ratio_after_move(1 + fault.too_far)
        generator = np.random.default_rng([_DRAWN, int(1e6 * fault.too_far)])
        scores = [self.ratio.draw_ratios(true, world, _DRAWN, generator) for world in (0, 1)]
        wrong = int((scores[0] >= threshold).sum()), int((scores[1] < threshold).sum())
        limits = [float(upper_limit(count, _DRAWN, alpha=1e-4)) for count in wrong]
        return limits[0], limits[1]

    def ratio_after_move(self, factor: float) -> BernoulliRatio:
        """Return the ratio's distributions if the client's probabilities move `factor` times as far, up
        to the edges.
        """
        far = [self.origin + factor * (end - self.origin) for end in self.ends[:2]]
        others = (int(self.ratio.log_one.shape[1]) - 1) // self.trials - 1
        return BernoulliRatio.from_probabilities(
            self.coins, far[0], far[1], self.ends[2], others, self.ratio.taking_part, self.trials
        )


def _probability_of_one(coins: BernoulliBias, where: Tensor) -> Floats:
    """Return the probability that a sample is 1, E clip(theta + N(0, s^2), c, 1 - c), for any real theta = `where`."""
    theta, low, high, std = where.double().cpu().numpy(), coins.edge, 1 - coins.edge, coins.noise_std
    if not std:
        return np.asarray(np.clip(theta, low, high))
    a, b = (low - theta) / std, (high - theta) / std
    bent = std * (np.exp(-(b**2) / 2) - np.exp(-(a**2) / 2)) / np.sqrt(2 * np.pi)
    mean = low * ndtr(a) + theta * (ndtr(b) - ndtr(a)) - bent + high * ndtr(-b)
    return np.asarray(np.clip(mean, low, high))


def _sum_distribution(ones: Floats) -> Floats:
    """Return the distribution [d, n + 1] of the sum of n Bernoulli samples with probabilities `ones` [d, n]."""
    law = np.ones((len(ones), 1))
    for coin in ones.T:
        law = _convolved_rows(law, np.stack([1 - coin, coin], axis=1))
    return law


def _convolved_rows(one: Floats, other: Floats) -> Floats:
    total = np.zeros((len(one), one.shape[1] + other.shape[1] - 1))
    for k in range(other.shape[1]):
        total[:, k : k + one.shape[1]] += one * other[:, k : k + 1]
    return total


def whole_scores_of_samples(law: BernoulliScores) -> WholeScores | None:
    """Return the moments of the log-likelihood ratio l of the claimed Bernoulli samples, for bounds from whole scores.

    l is a sum over entries, so the difference of its means can be computed exactly:

        D(f) = sum over entries j and counts s of (P_f,1(j, s) - P_f,0(j, s)) l(j, s)

    where P_f,w is the distribution of entry j's count in world w if the client moves f times as far, up to the edges.
    Returns None if a value is possible in one world only, and for drawn cohorts, for which l is not a sum over entries.
    """
    ratio = law.ratio
    if ratio.has_impossible_values or ratio.taking_part < 1:
        return None
    weights = ratio.table()
    differences, variances = [], []
    for factor in _FACTORS:
        moved = law.ratio_after_move(float(factor))
        laws = np.exp(moved.log_other), np.exp(moved.log_one)
        means = [(one * weights).sum(axis=1) for one in laws]
        spread = [(one * weights**2).sum(axis=1) - mean**2 for one, mean in zip(laws, means, strict=True)]
        differences.append(float((means[1] - means[0]).sum()))
        variances.append([float(one.sum()) for one in spread])
    return WholeScores(
        weigh=lambda scores: scores,
        factors=_FACTORS,
        differences=np.maximum.accumulate(np.array(differences)),
        variances=np.array(variances).T,
    )


def least_epsilon(ratio: BernoulliRatio, *, delta: float) -> float | None:
    """Return a lower bound on the epsilon at `delta` between the two worlds of `ratio`, the larger of both orders.

    Returns None for drawn cohorts, and if the computation needs too much memory. delta(eps) = E_P max(0, 1 - e^(eps -
    L)) rises with L, the sum of the entries' losses. Each loss is rounded down to a grid, and rounding errors of the
    Fourier transforms are subtracted. Direction of error: lower bound.
    """
    if ratio.has_impossible_values or ratio.taking_part < 1:
        return None
    orders = ((ratio.log_one, ratio.table()), (ratio.log_other, -ratio.table()))
    found = [_epsilon_of_one_order(*order, delta) for order in orders]
    return None if any(one is None for one in found) else max(one for one in found if one is not None)


def _epsilon_of_one_order(log_p: Floats, losses_of: Floats, delta: float) -> float | None:
    steps = np.floor(losses_of / _GRID).astype(np.int64)
    low, high = steps.min(axis=1), steps.max(axis=1)
    size = next_fast_len(int((high - low).sum()) + 1, real=True)
    if size > _LARGEST:
        return None
    rows = np.concatenate([log_p, steps], axis=1)
    _, firsts, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    product: Floats = np.ones(size // 2 + 1)
    for first, count in zip(firsts, counts, strict=True):
        law = np.bincount(steps[first] - low[first], weights=np.exp(log_p[first]), minlength=size)
        product = product * rfft(law) ** int(count)
    masses = np.maximum(irfft(product, size) - _ROUNDING * len(log_p), 0.0)
    losses = _GRID * (int(low.sum()) + np.arange(size))
    return epsilon_at_delta(lambda eps: float(masses @ np.maximum(-np.expm1(eps - losses), 0.0)), delta)


def epsilon_at_delta(delta_at: Callable[[float], float], target: float) -> float:
    """Return, from below, the epsilon >= 0 at which the falling function `delta_at` reaches `target`.

    Returns 0 if delta_at(0) is at most `target`.
    """

    def is_enough(epsilon: float) -> bool:
        return delta_at(epsilon) <= target

    return 0.0 if is_enough(0.0) else crossing_bracket(is_enough, 1.0, rtol=1e-9, limit=1e4)[0]
