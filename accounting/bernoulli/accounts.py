"""What is known of coins, sums of them and single uploads, for `accounting.compose`."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from accounting.bernoulli import pairs
from accounting.bernoulli.above import gaussian_above
from accounting.bernoulli.channel import channel_rdp
from accounting.bernoulli.sums import aggregate_rdp
from accounting.gaussian.subsampling import amplified, lemma_adjacency
from accounting.mechanisms.account import Account, Floats
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.samplings import Sampling

COIN_ORDERS: Floats = np.array([2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64], dtype=float)
"""Orders at which sums of coins are computed: each takes a search of its own."""

SAMPLED_COIN_ORDERS: Floats = np.arange(2.0, COIN_ORDERS[-1] + 1)
"""Orders of sampled coins: every whole one, amplified from chords between COIN_ORDERS, so nearly free."""


def channel_renyi(orders: Floats, coins: BernoulliChannel) -> Floats:
    """`bernoulli.channel`."""
    return np.asarray(
        channel_rdp(
            orders,
            dimension=coins.dimension,
            c=coins.floor,
            noise_std=coins.noise_std,
            l2_sensitivity=coins.euclidean_sensitivity(coins.l2_clip),
            linf_sensitivity=coins.euclidean_sensitivity(coins.linf_clip),
        )
    )


def aggregate_renyi(orders: Floats, coins: BernoulliAggregate) -> Floats:
    """`bernoulli.sums`."""
    return np.asarray(
        aggregate_rdp(
            orders,
            cohort=coins.cohort,
            dimension=coins.dimension,
            c=coins.floor,
            noise_std=coins.noise_std,
            l2_sensitivity=coins.euclidean_sensitivity(coins.l2_clip),
            linf_sensitivity=coins.euclidean_sensitivity(coins.linf_clip),
        )
    )


def aggregate_sampled(orders: Floats, coins: BernoulliAggregate, sampling: Sampling) -> Floats:
    """The generic bounds of `gaussian.subsampling`, from chords of (alpha - 1) rho, which is convex in alpha."""
    base = replace(coins, adjacency=lemma_adjacency(coins.adjacency, sampling))

    def between(at: Floats) -> Floats:
        return np.interp(at, COIN_ORDERS, (COIN_ORDERS - 1) * _knots(base)) / (at - 1)

    return amplified(orders, between, coins.adjacency, sampling, largest=COIN_ORDERS[-1])


@lru_cache(maxsize=64)
def _knots(coins: BernoulliAggregate) -> Floats:
    return aggregate_renyi(COIN_ORDERS, coins)


CHANNEL = Account(
    renyi=channel_renyi,
    orders=(COIN_ORDERS, SAMPLED_COIN_ORDERS),
    exact=pairs.epsilon_of,
    exact_fits=pairs.fits,
    above=gaussian_above,
)
AGGREGATE = Account(
    renyi=aggregate_renyi,
    sampled=aggregate_sampled,
    orders=(COIN_ORDERS, SAMPLED_COIN_ORDERS),
    above=gaussian_above,
)
