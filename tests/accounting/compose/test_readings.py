"""Trade-off functions, groups and attackers: against the closed forms of Gaussians."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from reference.shorthand import gaussian
from refusals import refused
from scipy.stats import norm

from accounting import Plan
from accounting.budget import noise_multiplier, rounds, solve
from accounting.budget.calibrate import target_of
from accounting.compose import loss_grid, pld, readings
from accounting.compose.accountant import guarantee
from accounting.compose.profiles import Profile, profile, profile_of_pair
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import privacy_profile, smallest_epsilon

MU = 0.8
PLAIN = gaussian(1 / MU)


def test_tradeoff_of_a_gaussian():
    """f(a) = Phi(Phi^-1(1 - a) - mu), never above it."""
    rates = np.array([0.0, 1e-4, 0.01, 0.2, 0.5, 0.9, 1.0])
    exact = norm.cdf(norm.isf(rates) - MU)
    found = guarantee(PLAIN, delta=1e-5).tradeoff(rates)
    assert np.all(found <= exact + 1e-12)
    np.testing.assert_allclose(found, exact, atol=2e-4)


def test_an_infinite_epsilon_allows_every_test_and_rates_are_probabilities():
    nothing = profile_of_pair(math.inf, 1e-5)
    assert readings.tradeoff(nothing, [0.0, 0.5]) == pytest.approx([0.0, 0.0])
    refused(InvalidParameter, "false_positive_rate", readings.tradeoff, nothing, 1.5)


def test_posterior_of_an_attacker():
    assert readings.posterior(epsilon=math.log(3), prior=0.5) == pytest.approx(0.75)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups_are_above_the_exact_group(size):
    exact = guarantee(gaussian(1 / (size * MU)), delta=1e-5).epsilon
    found = readings.epsilon_at(readings.group_profile(profile(PLAIN), size), 1e-5)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-6 if size == 1 else 1.6)


RATES = np.array([1e-6, 1e-3, 0.01, 0.3])


def test_true_positive_rate_of_a_gaussian():
    """Phi(mu + Phi^-1(a)), never below it."""
    exact = norm.cdf(MU + norm.ppf(RATES))
    found = guarantee(PLAIN, delta=1e-5).true_positive_rate(RATES)
    assert np.all(found >= exact)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_readings_of_a_gaussian_by_mpmath():
    with mpmath.workdps(40):
        rate = mpmath.mpf("0.001")
        quantile = mpmath.findroot(lambda x: mpmath.ncdf(x) - rate, -3)
        exact = mpmath.ncdf(MU + quantile)
        advantage = 2 * mpmath.ncdf(MU / mpmath.mpf(2)) - 1
    found = guarantee(PLAIN, delta=1e-5).readings()
    assert 0 <= found.true_positive_rates[0.001] / float(exact) - 1 < 1e-6
    assert 0 <= found.advantage / float(advantage) - 1 < 1e-9
    assert 0 <= found.mu / MU - 1 < 1e-9


@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.3])
def test_mu_of_a_gaussian_profile_by_the_search(mu, delta):
    claim = profile(gaussian(1 / mu))
    assert 1 <= readings.gaussian_dp(claim, delta) / mu < 1 + 2e-4


def pair_of(p, q):
    """The exact profile of two discrete distributions, in both orders, by sums."""
    p, q = np.array(p), np.array(q)

    def above_zero(eps):
        forth = np.maximum(p - np.exp(eps)[..., None] * q, 0).sum(axis=-1)
        return np.maximum(forth, np.maximum(q - np.exp(eps)[..., None] * p, 0).sum(axis=-1))

    return Profile(above_zero=above_zero, method="exact")


def best_rate(p, q, rate):
    """Neyman-Pearson by brute force: all sets of outcomes, the next one by a coin. Power against p at rate under q."""
    best = 0.0
    for size in range(len(p) + 1):
        for chosen in itertools.combinations(range(len(p)), size):
            false, true = sum(q[k] for k in chosen), sum(p[k] for k in chosen)
            if false > rate + 1e-15:
                continue
            best = max(best, true)
            for k in set(range(len(p))) - set(chosen):
                share = 1.0 if q[k] == 0 else min(1.0, (rate - false) / q[k])
                best = max(best, true + max(share, 0) * p[k])
    return best


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_true_positive_rates_against_all_tests_of_small_mechanisms(seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(6, 0.7)), rng.dirichlet(np.full(6, 0.7))
    claim = pair_of(p, q)
    for rate in (0.001, 0.05, 0.4):
        exact = max(best_rate(p, q, rate), best_rate(q, p, rate))
        found = float(readings.true_positive_rate(claim, rate))
        assert exact - 1e-12 <= found
        # the claim has the larger delta of both orders at every epsilon: no test of either has more
        assert found <= exact + 0.15
    most = max(best_rate(p, q, a) - a for a in np.linspace(0, 1, 400))
    assert most <= readings.advantage(claim) <= most + 0.01
    assert readings.advantage(claim) == pytest.approx(np.maximum(p - q, 0).sum(), rel=1e-9)


def test_true_positive_rate_of_randomised_response_is_exact():
    """Both orders are alike, so nothing is lost."""
    p, q = (0.7, 0.2, 0.1), (0.1, 0.2, 0.7)
    for rate in (0.001, 0.05, 0.4, 0.9):
        found = float(readings.true_positive_rate(pair_of(p, q), rate))
        assert found == pytest.approx(best_rate(p, q, rate), abs=1e-5)
        assert found >= best_rate(p, q, rate) - 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (3.0, 0.01), (40.0, 1e-9)])
def test_profile_of_one_pair_is_that_of_the_worst_mechanism(epsilon, delta):
    """Randomised response that shows its input with probability delta, which is (epsilon, delta)-DP."""
    high = (1 - delta) / (1 + math.exp(-epsilon))
    low = high * math.exp(-epsilon)
    exact = pair_of((delta, high, low, 0.0), (0.0, low, high, delta))
    at = np.array([0.0, 0.1, epsilon / 2, epsilon, epsilon + 1])
    np.testing.assert_allclose(profile_of_pair(epsilon, delta)(at), exact(at), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_mu_is_the_smallest_above_small_mechanisms(seed):
    """Against a fine grid: above at mu wherever delta is at least delta_min, and not at 0.999 mu."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(5, 2.0))
    q = p * np.exp(rng.uniform(-0.7, 0.7, 5))
    claim = pair_of(p, q / q.sum())
    delta_min = 0.01
    mu = readings.gaussian_dp(claim, delta_min)
    at = np.linspace(0, 2, 20_001)
    counts = claim(at) >= delta_min
    assert counts.any()
    assert np.all(privacy_profile(at, mu=mu)[counts] >= claim(at)[counts])
    assert not np.all(privacy_profile(at, mu=0.999 * mu)[counts] >= claim(at)[counts])


GOLDEN = Plan(clients=6000, cohort=100)


def test_readings_of_180_poisson_rounds():
    run = GOLDEN.run(1.4, 180)
    found = readings.readings(run, 7e-5)
    assert 0.01654 < found.true_positive_rates[0.01] < 0.0166
    assert 0.00193 < found.true_positive_rates[0.001] < 0.001935
    assert 0.2023 < found.mu < 0.203
    assert 0.2245 < readings.readings(run, 3e-9).mu < 0.2247
    lower = lower_bound_profile(run)
    for rate, most in found.true_positive_rates.items():
        at = np.linspace(-3, 3, 4001)
        reached = float((lower(at) + np.exp(at) * rate).min())
        assert reached <= most <= reached * 1.01


def lower_bound_profile(run):
    """The profile of the removal order on a four times finer grid, whose losses are a little smaller."""
    laws = pld.distribution(run, loss_grid.interval(run) / 4)
    forth, back = laws.orders

    def both(eps):
        size = np.abs(eps)
        mirrored = -np.expm1(-size) + np.exp(-size) * back.delta(size)
        return np.where(eps >= 0, forth.delta(size), mirrored)

    return both


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "fixed"},
        {"sampling": "all"},
        {"adjacency": "replace-one"},
        {"sampling": "balls-and-bins"},
        {"cohort_cap": 140},
        {"mechanism": "skellam", "dimension": 1000, "sampling": "fixed"},
        {"mechanism": "bernoulli-aggregate", "dimension": 100, "edge": 0.2, "l2_sensitivity": 0.1, "sampling": "fixed"},
    ],
)
def test_readings_agree_with_the_epsilon_of_the_same_account(options):
    """TPR <= e^epsilon a + delta at every pair of the account; the Gaussian of mu has at least its epsilon."""
    plan = Plan.from_options({"clients": 600, "cohort": 50, **options})
    noise = 1.4 if plan.has_noise_multiplier else None
    answer = solve(plan, noise_multiplier=noise, rounds=12)
    found = answer.readings
    for rate, most in found.true_positive_rates.items():
        assert rate < most <= math.exp(answer.epsilon) * rate + plan.delta * 1.001 or answer.epsilon > 5
        assert most - rate <= found.advantage * (1 + 1e-9)
    assert smallest_epsilon(plan.delta, mu=found.mu) >= answer.epsilon * (1 - 1e-3)


def test_a_line_that_guarantees_nothing_has_no_readings():
    plan = Plan(clients=6000, cohort=100, sampling="fixed")
    asked = {"noise_multiplier": 1.4, "rounds": 180, "accountant": "fed-smp-theorem", "with_lower_bound": False}
    answer = solve(plan, **asked)
    assert not answer.valid
    assert answer.to_dict()["advantage"] is answer.to_dict()["gaussian_dp"] is None


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("target", [{"advantage": 0.1}, {"tpr": 0.02, "fpr": 0.01}])
def test_targets(target):
    """The least noise and the most rounds that keep the reading; a little less noise, or a round more, does not."""
    reading = target_of(**target)
    z = noise_multiplier(GOLDEN, rounds=20, **target)
    assert reading.reading(GOLDEN.run(z, 20), GOLDEN.delta) <= reading.largest_reading
    assert reading.reading(GOLDEN.run(z * 0.9999, 20), GOLDEN.delta) > reading.largest_reading
    count = rounds(GOLDEN, noise_multiplier=0.9, **target)
    assert reading.reading(GOLDEN.run(0.9, count), GOLDEN.delta) <= reading.largest_reading
    assert reading.reading(GOLDEN.run(0.9, count + 1), GOLDEN.delta) > reading.largest_reading


def test_an_advantage_of_a_gaussian_is_met_by_the_closed_form():
    plan = Plan(clients=100, sampling="all")
    z = noise_multiplier(plan, rounds=1, advantage=0.1)
    assert z == pytest.approx(1 / (2 * norm.ppf(0.55)), rel=2e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tpr": 0.1}, "Give both"),
        ({"epsilon": 1.0, "advantage": 0.1}, "one target"),
        ({"tpr": 0.01, "fpr": 0.01}, "guessing"),
        ({"advantage": 1.5}, "advantage"),
        ({"advantage": 0.1, "accountant": "rdp"}, "best account"),
        ({}, "epsilon is missing"),
    ],
)
def test_targets_that_are_refused(given, words):
    refused(InvalidParameter, words, noise_multiplier, GOLDEN, rounds=180, **given)


def test_without_a_profile_the_pair_is_what_is_known(monkeypatch):
    def none(*given, **more):
        raise UnsupportedMechanism("no account has a profile")

    run = GOLDEN.run(1.4, 181)
    monkeypatch.setattr(readings, "profile", none)
    found = readings.readings(run, 1e-5, (0.7, 1e-5))
    assert found.advantage == pytest.approx(float(profile_of_pair(0.7, 1e-5)(0.0)), rel=1e-9)
    assert found.true_positive_rates[0.01] == pytest.approx(math.exp(0.7) * 0.01 + 1e-5, rel=1e-6)
    refused(UnsupportedMechanism, "", readings.readings, run, 2e-5)
