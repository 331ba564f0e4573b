"""The best score where the noise is coins: the exact log-likelihood ratio of sums of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from dpfed.compress.coins import Coins

Floats = NDArray[np.float64]

_FAR = 1e6
"""The log-ratio of what one world cannot send, finite so that both signs add up."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CoinRatio:
    """log P1(s) / P0(s) of a sum s [d] of independent coins, from tables [d, coins + 1] for each entry's value."""

    log_one: Floats
    log_other: Floats

    @classmethod
    def of(cls, code: Coins, one: Tensor, other: Tensor, rest: Tensor, others: int) -> CoinRatio:
        """From where the client's probabilities end [d] in each world, and those of `others` clients, before the clip
        to the edges (and noise) that the claim says."""
        own = [_law(_mean(code, where)[:, None]) for where in (one, other)]
        beside = _law(np.repeat(_mean(code, rest)[:, None], others, axis=1))
        tables = [_added(law, beside) for law in own]
        with np.errstate(divide="ignore"):
            return cls(log_one=np.log(tables[0]), log_other=np.log(tables[1]))

    def scores(self, sums: Tensor) -> Floats:
        """One ratio for each of the sums [n, d]."""
        table = torch.from_numpy(self._ratio())
        counts = sums.round().long().clamp(0, table.shape[1] - 1)
        return np.asarray(table.T.gather(0, counts.cpu()).sum(dim=1).numpy(), dtype=np.float64)

    def _ratio(self) -> Floats:
        """0 where a value is impossible in both worlds."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.log_one - self.log_other, nan=0.0, posinf=_FAR, neginf=-_FAR)

    @property
    def moments(self) -> tuple[float, float, float]:
        """Mean under world 0 and under world 1, and the standard deviation under world 0."""
        ratio = self._ratio()
        p0, p1 = np.exp(self.log_other), np.exp(self.log_one)
        mean0, mean1 = float((p0 * ratio).sum()), float((p1 * ratio).sum())
        variance = (p0 * ratio**2).sum(axis=1) - (p0 * ratio).sum(axis=1) ** 2
        return mean0, mean1, float(np.sqrt(variance.sum()))


def _mean(code: Coins, where: Tensor) -> Floats:
    """The probability of a one, E clip(theta + N(0, s^2), c, 1 - c); theta may lie outside [c, 1 - c]."""
    theta, low, high, std = where.double().cpu().numpy(), code.edge, 1 - code.edge, code.noise_std
    if not std:
        return np.asarray(np.clip(theta, low, high))
    a, b = (low - theta) / std, (high - theta) / std
    bent = std * (np.exp(-(b**2) / 2) - np.exp(-(a**2) / 2)) / np.sqrt(2 * np.pi)
    mean = low * ndtr(a) + theta * (ndtr(b) - ndtr(a)) - bent + high * ndtr(-b)
    return np.asarray(np.clip(mean, low, high))


def _law(ones: Floats) -> Floats:
    """The law of the sum [d, n + 1] of n coins of these probabilities [d, n]."""
    law = np.ones((len(ones), 1))
    for coin in ones.T:
        law = _added(law, np.stack([1 - coin, coin], axis=1))
    return law


def _added(one: Floats, other: Floats) -> Floats:
    total = np.zeros((len(one), one.shape[1] + other.shape[1] - 1))
    for k in range(other.shape[1]):
        total[:, k : k + one.shape[1]] += one * other[:, k : k + 1]
    return total
