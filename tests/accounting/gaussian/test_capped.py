"""Poisson sampling with a cap against enumeration of all draws and subsets, published numbers, and accounts of plain
Poisson and fixed-size sampling at its ends."""

import itertools
import math

import numpy as np
import pytest
import scipy
from reference.shorthand import times
from refusals import refused
from scipy.special import logsumexp
from scipy.stats import binom

from accounting import FixedSizeSampling, Gaussian, PoissonSampling, Skellam, guarantee, subsample
from accounting.compose import accountant, pld, profiles, rdp
from accounting.compose.running import Running, epsilons
from accounting.compose.second_opinion import second_opinion
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import sampled_profiles
from accounting.mechanisms import BernoulliAggregate, CappedPoissonSampling, Subsampled
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.independent import earlier_overflow, rarely_exceeded

DELTA = 6000**-1.1
X = np.linspace(-14, 14, 5601)
EPSILONS = np.array([0.0, 0.1, 0.3, 0.7, 1.2, 2.0, 3.5])


def golden(cap, adjacency="zero-out", noise=1.4, rounds=180, sampling=None):
    drawn = sampling or CappedPoissonSampling(probability=1 / 60, cap=cap, clients=6000)
    return times(subsample(Gaussian(noise_multiplier=noise, adjacency=adjacency), drawn), rounds)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("adjacency", "stated"),
    [
        ("zero-out", {150: 0.6303, 140: 0.6314, 130: 0.6626, 120: 1.0427}),
        ("add-remove", {150: 0.6303, 140: 0.6326, 130: 0.6987, 120: 1.2815}),
        ("replace-one", {150: 1.0811, 140: 1.0822, 130: 1.1099, 120: 1.4524}),
    ],
)
def test_the_golden_plan(adjacency, stated):
    for cap, epsilon in stated.items():
        found = guarantee(golden(cap, adjacency), delta=DELTA)
        assert found.epsilon == pytest.approx(epsilon, abs=6e-5)
        assert found.lower_bound <= found.epsilon
        assert any(note.startswith(f"cohort cap: if more than {cap} clients") for note in found.notes)
    assert found.sampling == "capped-poisson"


def test_dp_accounting_is_a_second_opinion():
    """Its truncated Poisson event, which is looser."""
    assert second_opinion(golden(120), delta=DELTA).epsilon == pytest.approx(1.3122, abs=1e-4)
    assert second_opinion(golden(130, "replace-one"), delta=DELTA).epsilon == pytest.approx(1.1130, abs=1e-4)


def density(values, q, cap, z):
    """Density of the sum, by enumeration of draws and uniform subsets."""
    found = np.zeros_like(X)
    for coins in itertools.product((0, 1), repeat=len(values)):
        chance = math.prod(q if coin else 1 - q for coin in coins)
        subsets = list(itertools.combinations(np.flatnonzero(coins), min(cap, sum(coins))))
        for subset in subsets:
            centre = sum(values[list(subset)])
            found += chance / len(subsets) * np.exp(-((X - centre) ** 2) / (2 * z * z))
    return found / (math.sqrt(2 * math.pi) * z)


def worlds(adjacency, values, other):
    """Values of both worlds and the number of clients in the account."""
    if adjacency == "add-remove":
        return values, values[1:], len(values) - 1
    return values, np.concatenate([[0.0 if adjacency == "zero-out" else other], values[1:]]), len(values)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_no_neighbours_exceed_the_profile_and_some_attain_it(adjacency):
    """Random settings of 2 to 5 clients; profiles and Renyi divergences in both orders, by quadrature."""
    rng, step, largest, checked = np.random.default_rng(7), X[1] - X[0], 0.0, 0
    for trial in range(40):
        n, q, z = int(rng.integers(2, 6)), float(rng.choice([0.05, 0.2, 0.5, 0.8, 1.0])), float(rng.choice([0.5, 1.4]))
        cap = int(rng.integers(1, n + 1))
        values = rng.choice([-1.0, 1.0], n) if trial % 2 else rng.uniform(-1, 1, n)
        one, two, clients = worlds(adjacency, values, -values[0] if trial % 3 else rng.uniform(-1, 1))
        p, r = density(one, q, cap, z), density(two, q, cap, z)
        sampling = CappedPoissonSampling(probability=q, cap=cap, clients=max(clients, 1))
        forth, back = sampled_profiles.capped_profiles(
            EPSILONS, sampling=sampling, adjacency=Adjacency(adjacency), noise_multiplier=z
        )
        for claimed, (first, second) in ((forth, (p, r)), (back, (r, p))):
            shown = [np.maximum(first - math.exp(eps) * second, 0).sum() * step for eps in EPSILONS]
            assert np.all(shown <= claimed + 6e-6)  # of quadrature
            checked += len(shown)
            telling = claimed > 1e-2
            largest = max(largest, float((shown / np.where(telling, claimed, np.inf)).max()))
        if adjacency != "replace-one" and clients:
            release = Subsampled(mechanism=Gaussian(noise_multiplier=z, adjacency=adjacency), sampling=sampling)
            orders = np.array([1.5, 2.0, 3.3, 8.0])
            curve = rdp.curve(release, orders)
            for first, second in ((p, r), (r, p)):
                logs = orders[:, None] * np.log(first) + (1 - orders[:, None]) * np.log(second)
                assert np.all((logsumexp(logs, axis=1) + math.log(step)) / (orders - 1) <= curve + 1e-6)
    assert checked == 40 * 2 * len(EPSILONS)
    assert 0.999 < largest < 1.001


def test_a_cap_that_keeps_the_lowest_ids_exceeds_the_profile():
    """Planted: client 0 always takes part where it is drawn."""
    q, cap, z, values = 0.8, 1, 0.5, np.array([1.0, -1.0, -1.0, -1.0])

    def lowest(given):
        found = np.zeros_like(X)
        for coins in itertools.product((0, 1), repeat=4):
            chance = math.prod(q if coin else 1 - q for coin in coins)
            centre = sum(given[np.flatnonzero(coins)[:cap]])
            found += chance * np.exp(-((X - centre) ** 2) / (2 * z * z)) / (math.sqrt(2 * math.pi) * z)
        return found

    p, r = lowest(values), lowest(np.concatenate([[0.0], values[1:]]))
    sampling = CappedPoissonSampling(probability=q, cap=cap, clients=4)
    claimed, _ = sampled_profiles.capped_profiles(
        EPSILONS, sampling=sampling, adjacency=Adjacency.ZERO_OUT, noise_multiplier=z
    )
    shown = [np.maximum(p - math.exp(eps) * r, 0).sum() * (X[1] - X[0]) for eps in EPSILONS]
    assert np.any(shown > claimed * 1.5)


@pytest.mark.parametrize(
    ("q", "cap", "clients"),
    [(1 / 60, 150, 6000), (0.2, 3, 7), (0.9, 2, 4), (1e-3, 40, 10**6), (1e-8, 150, 10**10), (1e-10, 150, 10**12)],
)
def test_chances_of_full_rounds_by_their_definition(q, cap, clients):
    for others, (zeta, p) in zip(
        (clients - 1, clients),
        CappedPoissonSampling(probability=q, cap=cap, clients=clients).full_rounds(Adjacency.ADD_REMOVE),
        strict=True,
    ):
        numbers = np.arange(cap, min(others, cap + 4000) + 1)
        chances = binom.pmf(numbers, others, q)
        assert zeta == pytest.approx(chances.sum(), rel=1e-8)
        assert p == pytest.approx((chances * q * cap / (numbers + 1)).sum() / chances.sum(), rel=1e-8)


@pytest.mark.parametrize("clients", [10**9, 10**10, 10**12, 10**15])
def test_chances_of_full_rounds_of_large_populations(clients):
    """Poisson limit at 10 000 expected clients, and a cap far below them, which no round stays below."""
    q = 1e4 / clients
    for cap, zeta in ((10_600, float(scipy.special.pdtrc(10_599, 1e4))), (5000, 1.0)):
        ((found, p),) = CappedPoissonSampling(probability=q, cap=cap, clients=clients).full_rounds(Adjacency.ZERO_OUT)
        assert found == pytest.approx(zeta, rel=4e-4)
        assert p == pytest.approx(q * min(1.0, cap / 1e4), rel=0.02)
    assert 10_600 < rarely_exceeded(10_000, clients, delta=1e-4) < 10_700
    assert earlier_overflow(10_600, q, clients, Adjacency.ZERO_OUT) == pytest.approx(1.357e-9, rel=1e-3)


def test_without_a_cap_that_binds_and_with_all_drawn_it_is_what_is_known():
    noise = Gaussian(noise_multiplier=1.4, adjacency="zero-out")
    assert subsample(noise, CappedPoissonSampling(probability=0.1, cap=50, clients=50)) == subsample(
        noise, PoissonSampling(probability=0.1)
    )
    assert subsample(noise, CappedPoissonSampling(probability=1.0, cap=50, clients=50)) == noise
    fixed = subsample(noise, FixedSizeSampling(cohort=10, clients=50))
    all_drawn = subsample(noise, CappedPoissonSampling(probability=1.0, cap=10, clients=50))
    assert pld.epsilon(all_drawn, delta=1e-5) == pytest.approx(pld.epsilon(fixed, delta=1e-5), rel=1e-6)
    assert isinstance(subsample(Gaussian(noise_multiplier=1.4, adjacency="add-remove"),
                                CappedPoissonSampling(probability=0.1, cap=50, clients=50)), Subsampled)  # fmt: skip


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_profile_stream_and_running_account_agree(adjacency):
    mechanism = golden(125, adjacency, rounds=8)
    stated = accountant.epsilon(mechanism, delta=DELTA)
    assert profiles.profile(mechanism)(stated) == pytest.approx(DELTA, rel=2e-3)
    ((release, rounds),) = mechanism.parts
    *_, last = (e for e, _ in zip(epsilons(release, delta=DELTA, rounds=rounds), range(rounds), strict=False))
    running = Running(delta=DELTA, typical=release, rounds=rounds)
    running.add(release, rounds)
    assert last == pytest.approx(stated, rel=2e-3)
    assert running.epsilon() == pytest.approx(stated, rel=2e-3)


def test_renyi_accounts_lose_delta_where_full_rounds_are_rare():
    """With a cap of 160 the account without caps is the better one, at 180 zeta p less of delta."""
    free = golden(0, sampling=PoissonSampling(probability=1 / 60))
    rare = accountant.epsilon(golden(165), delta=DELTA, accountant="rdp")
    zeta, p = CappedPoissonSampling(probability=1 / 60, cap=165, clients=6000).full_rounds(Adjacency.ZERO_OUT)[0]
    assert rare == pytest.approx(accountant.epsilon(free, delta=DELTA - 180 * zeta * p, accountant="rdp"), rel=1e-9)
    often = accountant.epsilon(golden(110), delta=DELTA, accountant="rdp")
    assert math.isfinite(often)
    assert often > accountant.epsilon(golden(110), delta=DELTA)


COINS = {"dimension": 200, "floor": 0.3, "adjacency": "zero-out", "l2_clip": 0.3, "linf_clip": 0.1}


def test_coins_and_skellam_noise_have_caps_too():
    skellam = Skellam(dimension=500, l2_bound=50.0, share_variance=4900.0, adjacency="add-remove")
    for noise in (skellam, BernoulliAggregate(**COINS, cohort=150)):
        costs = []
        for cap in (150, 115):
            drawn = CappedPoissonSampling(probability=1 / 60, cap=cap, clients=6000)
            costs.append(accountant.epsilon(times(subsample(noise, drawn), 20), delta=DELTA))
        assert costs[0] < costs[1]
        if noise is skellam:
            like = accountant.epsilon(golden(115, "add-remove", rounds=20), delta=DELTA)
            assert like < costs[1] < 1.03 * like
    with pytest.raises(UnsupportedMechanism, match="zero-out"):
        subsample(BernoulliAggregate(**{**COINS, "adjacency": "replace-one"}, cohort=150), drawn)


def test_integer_noise_that_charges_an_overflow_has_no_cap():
    skellam = Skellam(dimension=5, l2_bound=5.0, share_variance=50.0, adjacency="zero-out", overflow=1e-9)
    drawn = CappedPoissonSampling(probability=1 / 60, cap=130, clients=6000)
    refused(UnsupportedMechanism, "with a cap", subsample, skellam, drawn)
