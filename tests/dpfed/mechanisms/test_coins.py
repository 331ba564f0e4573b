"""Coins as a code: their law, their sum, the padding, the bias correction, their bytes."""

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import norm

from accounting.bernoulli import debias
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import Coins
from dpfed.randomness import Secure, Simulated
from dpfed.seeds import Seeds
from dpfed.stages.wires import MaskWire, Words

from ..announced import a_round, private_coins

RANDOMNESS = Simulated(seeds=Seeds(root=3))
FALSE_ALARM = 1e-6  # of each statistical test


def within(mean, expected, std, trials):
    """Whether a mean of `trials` lies within the two-sided normal limit, shared among all its entries."""
    limit = norm.isf(FALSE_ALARM / 2 / mean.numel())
    return bool(((mean - expected).abs() <= limit * std / trials**0.5).all())


def drawn(coins, origin, row, trials):
    """Return samples [trials, entries] of a hundred entries alike in each client's row."""
    clients = trials // 100
    rows = row.repeat(clients, 100)
    return coins.client(rows, np.arange(clients), a_round(origin.repeat(100))).reshape(trials, len(origin))


@pytest.mark.parametrize("randomness", [RANDOMNESS, Secure()], ids=["simulated", "secure"])
def test_a_coin_has_its_probability(randomness):
    origin, row = torch.tensor([0.5, 0.2, 0.9, 0.1, 0.5]), torch.tensor([0.1, -0.5, 0.5, 0.0, float("nan")])
    row = row.nan_to_num(0.0)
    coins = Coins(randomness=randomness, edge=0.1)
    masks = drawn(coins, origin, row, 4000)
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert within(masks.mean(dim=0), torch.tensor([0.6, 0.1, 0.9, 0.1, 0.5]), 0.5, 4000)
    assert not within(masks.mean(dim=0), torch.tensor([0.6, 0.0, 0.9, 0.1, 0.5]), 0.5, 4000)  # no edge: caught


def test_the_sum_decodes_to_the_sum_of_moves():
    generator = torch.Generator().manual_seed(0)
    origin = torch.rand(50, generator=generator) * 0.6 + 0.2
    rows = (torch.rand(2000, 50, generator=generator) - 0.5) * 0.2
    coins = Coins(randomness=RANDOMNESS, edge=0.05)
    now = a_round(origin, uploads=2000)
    decoded = coins.server(coins.client(rows.clone(), np.arange(2000), now).sum(dim=0), now)
    assert within((decoded - rows.sum(dim=0)) / 2000, torch.zeros(50), 0.5, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("correction", ["linear", "invert"])
@pytest.mark.parametrize("noise_std", [0.1, 0.5])
def test_noise_bends_the_mean_and_correction_straightens_it(correction, noise_std):
    """All clients at one theta: g(theta) without correction; theta with it (linear: exact to first order)."""
    origin, row = torch.full((4,), 0.3), torch.full((4,), 0.02)
    trials = 20_000
    coins, now = (
        private_coins(RANDOMNESS, 0.2, noise_std=noise_std, correction=correction),
        a_round(origin, uploads=trials),
    )
    total = drawn(coins, origin, row, trials).sum(dim=0)
    mean = coins.server(total.clone(), now) / trials
    slope = float(debias.clipped_mean_slope(0.32, c=0.2, noise_std=noise_std))
    assert within(mean - 0.02, torch.full((4,), 0.0), 0.5 / slope + 1e-9, trials)
    bare = private_coins(RANDOMNESS, 0.2, noise_std=noise_std, correction="none")
    assert not within(bare.server(total, now) / trials, torch.full((4,), 0.12), 0.5, trials)


def test_probabilities_are_clipped_before_their_noise_too():
    """The account is of means in [g(edge), g(1 - edge)], also for moves and public probabilities beyond the edge."""
    origin, row = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, -1.0, 0.0])
    low, high = debias.reachable(c=0.1, noise_std=0.5)
    masks = drawn(private_coins(RANDOMNESS, 0.1, noise_std=0.5), origin, row, 10_000)
    assert within(masks.mean(dim=0), torch.tensor([high, low, low]), 0.5, 10_000)


def test_padding_keeps_the_number_of_coins_and_the_mean():
    """Whether 3 of 10 slots or 9 are filled, the total is of 10 coins of the public theta: same mean, same variance."""
    origin = torch.full((20_000,), 0.3)
    for filled in (3, 9):
        coins, now = private_coins(RANDOMNESS, 0.1, slots=10), a_round(origin, number=filled, uploads=filled)
        arrived = coins.client(torch.zeros(filled, 20_000), np.arange(filled), now)
        decoded = coins.server(arrived.sum(dim=0), now)
        assert abs(float(decoded.mean())) < norm.isf(FALSE_ALARM / 2) * (10 * 0.21 / 20_000) ** 0.5
        # variance of a variance of binomials: (mu4 - var^2)/n, mu4 about 3 var^2
        assert abs(float(decoded.var()) - 2.1) < norm.isf(FALSE_ALARM / 2) * (2 * 2.1**2 / 20_000) ** 0.5
        unpadded = arrived.sum(dim=0) - filled * origin
        assert abs(float(unpadded.var()) - 2.1) > 0.1


def test_sizes_are_real_bytes_or_fixed_ring_elements():
    origin = torch.full((1000,), 0.5)
    rows = torch.zeros(7, 1000)
    masks, now = private_coins(RANDOMNESS, 0.1).client(rows, np.arange(7), a_round(origin)), a_round(origin)
    assert MaskWire().fixed_bits(1000) is None
    MaskWire().client(masks, np.arange(7), now)
    assert 7 * 125 <= now.tally.uplink_bytes <= 7 * 133
    now, words = a_round(origin), Words(size=1000, bits=7, largest=1)
    assert words.client(masks, np.arange(7), now) is masks
    assert now.tally.uplink_bytes is None
    assert words.fixed_bits(1000) == 7000


def test_a_client_has_its_own_coins_in_any_group():
    origin = torch.full((500,), 0.5)
    coins = Coins(randomness=RANDOMNESS, edge=0.1)
    together = coins.client(torch.zeros(3, 500), np.array([4, 7, 9]), a_round(origin, number=2))
    alone = coins.client(torch.zeros(1, 500), np.array([7]), a_round(origin, number=2))
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(alone, coins.client(torch.zeros(1, 500), np.array([7]), a_round(origin, number=3)))


def test_thresholds_are_not_random():
    origin = torch.tensor([0.4, 0.5, 0.6])
    coins = Coins(randomness=RANDOMNESS, stochastic=False)
    assert coins.client(torch.zeros(2, 3), np.arange(2), a_round(origin)).tolist() == [[0.0, 1.0, 1.0]] * 2


@pytest.mark.parametrize("edge", [0.5, -0.1])
def test_edges_that_cannot_work_are_refused(edge):
    refused(ConfigError, "", Coins, randomness=RANDOMNESS, edge=edge)
