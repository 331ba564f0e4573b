"""The Skellam mechanism against exact laws: its Renyi bound, and steps of its shifts below a Gaussian's."""

import math

import mpmath as mp
import numpy as np
import pytest
from reference import integer_distributions as laws
from reference.shorthand import times
from scipy.stats import skellam

from accounting import FixedSizeSampling, Gaussian, Plan, PoissonSampling, Skellam, Subsampled, budget, guarantee
from accounting.compose import rdp
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import privacy_profile
from accounting.integers.skellam import _masses, _variance_rounded_down, largest_step, mu_of_shift


def noise(variance, norm, dimension=1, shares=1, adjacency="zero-out"):
    return Skellam(
        dimension=dimension, l2_bound=norm * (1 + 1e-15), share_variance=variance / shares, shares=shares,
        adjacency=adjacency,
    )  # fmt: skip


def exact(variance, moves):
    return laws.shifted(laws.skellam(variance, 60 + int((12 if len(moves) > 1 else 24) * math.sqrt(variance))), moves)


def test_the_reference_law_is_the_known_one_and_closed_under_sums():
    law = laws.skellam(3.0, 60)
    x = np.arange(-60, 61)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert (law * x**2).sum() == pytest.approx(3.0, abs=1e-10)
    twice = laws.summed(laws.skellam(1.5, 60), 2)
    assert np.abs(twice[60:-60] - law).max() < 1e-15


CASES = [(v, moves) for v in (0.05, 0.5, 2.0, 8.0, 50.0) for moves in [(1,), (5,), (1, -2)] if len(moves) == 1 or v < 9]


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("variance", "moves"), CASES)
def test_never_below_the_exact_divergence(variance, moves):
    mechanism = noise(variance, math.hypot(*moves), len(moves))
    pair = exact(variance, moves)
    for order in (1.05, 1.7, 2, 2.5, 3, 5, 10):
        truth = laws.renyi(pair, order, floor=1e-150)
        assert float(rdp.curve(mechanism, order)) >= truth * (1 - 1e-9)
    for delta in (1e-2, 1e-6):
        assert guarantee(mechanism, delta=delta).epsilon >= laws.smallest_epsilon(pair, delta)


def test_is_tight_where_noise_is_many_steps_and_so_finds_planted_faults():
    pair = exact(50.0, (5,))
    for order in (2, 3):
        truth = laws.renyi(pair, order, floor=1e-200)
        assert truth <= float(rdp.curve(noise(50.0, 5), order)) <= 1.06 * truth
        assert float(rdp.curve(noise(55.0, 5), order)) < truth  # a variance 10% too large
        assert float(rdp.curve(noise(50.0, 4.7), order)) < truth  # a norm without its rounding


@pytest.mark.parametrize(
    ("variance", "norm", "dimension", "at"),
    [
        (10.0, 2.0, 1, {2: 0.4 + 0.06, 3: 0.6 + 0.08, 2.5: (0.46 + 2 * 0.68) / 3}),  # L1 at most 2
        (10.0, 2.0, 9, {2: 0.4 + 0.09, 3: 0.6 + 0.11, 2.25: (3 * 0.49 + 2 * 0.71) / 5}),  # L1 at most 4
        (0.5, 1.0, 1, {2: 2.0 + 3.0, 3: 3.0 + 3.0, 1.5: 5.0}),  # the second of the two: 3 D1 / 2V
    ],
)
def test_the_published_bound_worked_out_by_hand(variance, norm, dimension, at):
    """Theorem 3.5 in whole numbers; between whole orders on the chord of (a - 1) rho(a)."""
    for order, expected in at.items():
        assert float(rdp.curve(noise(variance, norm, dimension), order)) == pytest.approx(expected, rel=1e-12)


def test_shares_are_nothing_but_their_sum():
    one, many = noise(50.0, 5), noise(50.0, 5, shares=10)
    assert guarantee(one, delta=1e-5).epsilon == pytest.approx(guarantee(many, delta=1e-5).epsilon, rel=1e-12)


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(("variance", "move"), [(0.5, 1), (4.0, 3), (50.0, 5)])
@pytest.mark.parametrize("q", [0.02, 0.3])
def test_sampled_against_the_exact_mixtures(variance, move, q):
    poisson = Subsampled(mechanism=noise(variance, move), sampling=PoissonSampling(probability=q))
    pair = laws.mixed(exact(variance, (move,)), q)
    fixed = Subsampled(
        mechanism=noise(variance, move, adjacency="replace-one"),
        sampling=FixedSizeSampling(cohort=round(100 * q), clients=100),
    )
    worst = laws.mixed(exact(variance, (2 * move,)), q)  # all others send -bound
    for mechanism, laws_ in ((poisson, pair), (fixed, worst)):
        for order in (2, 5):
            assert float(rdp.curve(mechanism, order)) >= laws.renyi(laws_, order, floor=1e-150) * (1 - 1e-9)
        for delta in (1e-3, 1e-6):
            assert guarantee(mechanism, delta=delta).epsilon >= laws.smallest_epsilon(laws_, delta)
    assert np.isinf(rdp.curve(poisson, 2.5))


@pytest.mark.parametrize(
    "sampling", [None, PoissonSampling(probability=0.1), FixedSizeSampling(cohort=10, clients=100)]
)
def test_large_noise_costs_what_a_gaussian_costs_under_the_same_accountant(sampling):
    """1.6e6 coordinates, 6000 steps, z = 1.4, at whole orders: equal to 1e-4 without sampling and under Poisson's."""
    skellam = noise((1.4 * 6000) ** 2, 6000, 1_600_000)
    gaussian = Gaussian(noise_multiplier=1.4, adjacency="zero-out")
    if sampling is not None:
        skellam, gaussian = (Subsampled(mechanism=m, sampling=sampling) for m in (skellam, gaussian))
    orders = np.array([2.0, 3.0, 8.0, 32.0])
    ours, theirs = rdp.curve(skellam, orders), rdp.curve(gaussian, orders)
    assert np.all(ours >= theirs * (1 - 1e-9))
    assert np.allclose(ours[:3], theirs[:3], rtol=1e-3)


def test_what_has_no_account_is_refused():
    mechanism = Subsampled(mechanism=noise(50.0, 5, adjacency="replace-one"), sampling=PoissonSampling(probability=0.1))
    with pytest.raises(UnsupportedMechanism, match=r"Poisson sampling and replace-one.*adjacency 'add-remove' or"):
        guarantee(mechanism, delta=1e-5)
    with pytest.raises(UnsupportedMechanism, match="no privacy loss distribution is implemented"):
        guarantee(noise(1e12, 5), delta=1e-5, accountant="pld")


@pytest.mark.parametrize("q", [0.0, 1e-4, 1.0])
@pytest.mark.parametrize(("variance", "dimension"), [(1.0, 1), (1e12, 10**6)])
def test_edges(q, variance, dimension):
    sampled = Subsampled(mechanism=noise(variance, 5.0, dimension), sampling=PoissonSampling(probability=q))
    stated = guarantee(times(sampled, 10_000), delta=1e-6)
    assert 0 <= stated.epsilon < math.inf
    assert (stated.epsilon < 2e-3) == (q == 0 or variance > 1)  # as near 0 as the largest order lets it be


def exact_steps(variance, far):
    """y(x) - y(x - 1) for x = 1..far, to 40 digits."""
    with mp.workdps(40):
        v = mp.mpf(variance)
        masses = [mp.exp(-v) * mp.besseli(x, v) for x in range(far + 60)]
        tails = [mp.fsum(masses[x:]) for x in range(far + 1)]
        tails[0] = (1 + masses[0]) / 2
        y = [mp.sqrt(2) * mp.erfinv(1 - 2 * tail) for tail in tails]
        return [y[x] - y[x - 1] for x in range(1, far + 1)]


@pytest.mark.parametrize(("variance", "far"), [(0.5, 6), (3.0, 12), (40.0, 30)])
def test_the_largest_step_by_mpmath(variance, far):
    found, exact = largest_step(variance, far), float(max(exact_steps(variance, far)))
    assert exact <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("variance", [1e4, 3e4])
def test_masses_by_the_expansion_are_those_of_the_bessel_function(variance):
    x = np.array([0.0, 1.0, 30.0, 5 * math.sqrt(variance), 12 * math.sqrt(variance)]).round()
    exact = [float(mp.exp(-mp.mpf(variance)) * mp.besseli(mp.mpf(k), mp.mpf(variance), maxterms=10**6)) for k in x]
    np.testing.assert_allclose(_masses(x, variance), exact, rtol=4e-13)


@pytest.mark.parametrize(("variance", "shift"), [(0.7, 1), (4.0, 1), (4.0, 3), (60.0, 2), (60.0, 20)])
def test_exact_divergences_of_shifts_stay_below_and_come_near(variance, shift):
    mu = mu_of_shift(variance, shift, 1e-15)
    x = np.arange(-400, 401)
    q = skellam.pmf(x, variance / 2, variance / 2)
    p = np.roll(q, shift)
    gammas = np.exp(np.linspace(0, 3 * mu + 2, 60))
    exact = np.array([np.maximum(p - gamma * q, 0).sum() for gamma in gammas])
    allowed = privacy_profile(np.log(gammas), mu=mu)
    assert np.all(exact <= allowed + 1e-12)
    weaker = privacy_profile(np.log(gammas), mu=mu * (1 - 1 / (3 * variance)) * 0.99)
    assert np.any(exact > weaker)  # planted: a shift a little smaller is refuted


def test_products_of_shifts_stay_below():
    """Two coordinates, shifted by 2 and 1, and the other way."""
    variance = 2.0
    mu = mu_of_shift(variance, math.sqrt(5), 1e-15)
    x = np.arange(-60, 61)
    one = skellam.pmf(x, 1.0, 1.0)
    q = np.multiply.outer(one, one).ravel()
    p = np.multiply.outer(np.roll(one, 2), np.roll(one, -1)).ravel()
    for epsilon in np.linspace(0, 6, 25):
        exact = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert exact <= privacy_profile(epsilon, mu=mu) + 1e-12


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_no_more_than_a_discrete_gaussian_of_equal_variance(sampling):
    costs = []
    for mechanism in ("skellam", "discrete-gaussian"):
        plan = Plan(clients=6000, cohort=100, mechanism=mechanism, dimension=100_000, sampling=sampling)
        noise_multiplier = 30.0 if sampling == "all" else 1.4
        costs.append(budget.epsilon(plan, rounds=840, noise_multiplier=noise_multiplier, accountant="pld"))
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)


@pytest.mark.parametrize("variance", [1e-3, 1e12])
def test_beyond_what_doubles_reach_nothing_is_said(variance):
    assert mu_of_shift(variance, 10.0, 1e-12) is None


def test_large_variances_are_rounded_down():
    for variance in (1e6, 3.7e8, 9.99e9):
        assert variance * (1 - 2**-11) < _variance_rounded_down(variance) <= variance
