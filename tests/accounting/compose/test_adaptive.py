"""The adaptive account of fixed-size sampling: against cohorts enumerated, random strategies, known figures."""

import itertools
import math

import numpy as np
import pytest
import scipy
from reference.shorthand import fixed, gaussian, times

from accounting import Plan, budget
from accounting.compose import accountant, adaptive, adaptive_program, lower_bound, pld
from accounting.compose.adaptive_program import Kernel, Kernels, StateGrid, Values
from accounting.gaussian.configurations import FixedSizeRound, extremes
from accounting.mechanisms import Composed, PoissonSampling, Subsampled
from accounting.mechanisms.adjacency import Adjacency

DELTA = 6000**-1.1
GOLDEN = Plan(clients=6000, cohort=100, sampling="fixed")


def profile_at(values, epsilon):
    """V at epsilon >= 0 of the better order, at the grid point below, from above."""
    k = int(epsilon / values.grid.spacing)
    return max(values.forward[k], values.reverse[k])


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    ("clients", "cohort", "sigma", "rounds", "adjacency", "most", "least"),
    [
        (6000, 100, 1.4, 180, "replace-one", 3.2430, 3.2395),
        (650, 100, 1.0, 60, "replace-one", 25.69, 25.67),
        (6000, 100, 1.4, 180, "zero-out", 2.4491, 2.4470),
        (300, 30, 4.0, 60, "replace-one", 1.0617, 1.0609),
    ],
)
def test_known_figures(clients, cohort, sigma, rounds, adjacency, most, least):
    plan = Plan(clients=clients, cohort=cohort, sampling="fixed", adjacency=adjacency, delta=clients**-1.1)
    stated = accountant.guarantee(plan.run(sigma, rounds), delta=plan.delta)
    assert stated.method == "adaptive"
    assert stated.epsilon <= most
    assert least <= stated.lower_bound <= stated.epsilon
    assert stated.epsilon <= pld.epsilon(plan.run(sigma, rounds), delta=plan.delta)
    assert adaptive.HYPOTHESIS in stated.notes


def cells_of(means, weights, edges):
    """Masses of a mixture of unit Gaussians in the cells between `edges`."""
    cdf = scipy.special.ndtr(np.array(edges)[None] - np.array(means)[:, None])
    return np.array(weights) @ np.diff(cdf, axis=1)


def enumerated(rounds, clients, strategy, edges):
    """All histories of cells with their probabilities in both worlds, every cohort of every round enumerated.

    rounds: cohort size and 1 / noise; strategy(history) -> values of clients 1.. in the ball, a and b of client 0.
    """
    laws = {(): (1.0, 1.0)}
    for cohort, s in rounds:
        after = {}
        for history, (p, q) in laws.items():
            others, a, b = strategy(history)
            sums = []
            for mine in (a, b):
                values = np.array([mine, *others]) * s
                means = [values[list(drawn)].sum() for drawn in itertools.combinations(range(clients), cohort)]
                sums.append(cells_of(means, np.full(len(means), 1 / len(means)), edges))
            for cell in range(len(edges) - 1):
                after[(*history, cell)] = p * sums[0][cell], q * sums[1][cell]
        laws = after
    return np.array(list(laws.values())).T


def random_strategy(seed, clients, zero):
    """A strategy that is random but the same for the same history."""

    def strategy(history):
        rng = np.random.default_rng([seed, len(history), *history])
        kind = rng.integers(4)
        x = rng.choice([-1.0, 1.0]) if kind else rng.uniform(-1, 1)
        a = -x if kind != 3 else x
        b = 0.0 if zero else (-a if kind != 2 else rng.uniform(-1, 1))
        return [x] * (clients - 1), a, b

    return strategy


SMALL = [(2, 1, 0.7, 1), (3, 1, 1.0, 2), (4, 2, 1.0, 2), (3, 2, 0.6, 2), (2, 1, 1.4, 3)]


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("clients", "cohort", "sigma", "rounds"), SMALL)
def test_no_enumerated_strategy_shows_more(clients, cohort, sigma, rounds, adjacency):
    """Histories of cells with every cohort enumerated: nothing of (F), covers or the program in it."""
    release = fixed(cohort, clients, sigma, adjacency)
    values = adaptive.values(times(release, rounds), delta=1e-3)
    edges = [-math.inf, *np.linspace(-3.5, 3.5, 13 if rounds < 3 else 9) / sigma, math.inf]
    shown = []
    for seed in range(8):
        strategy = random_strategy(seed, clients, adjacency == "zero-out")
        p, q = enumerated([(cohort, 1 / sigma)] * rounds, clients, strategy, edges)
        for epsilon in (0.0, 0.3, 1.0, 2.0):
            known = profile_at(values, epsilon)
            for one, two in ((p, q), (q, p)):
                found = np.maximum(one - math.exp(epsilon) * two, 0).sum()
                assert found <= known * (1 + 1e-12)
                shown.append(found / known)
    assert max(shown) > 0.5  # the strategies are no straw men


def test_enumeration_notices_an_account_that_is_too_small():
    """Planted: only one of the two directions is covered."""
    grid = StateGrid(spacing=0.02, states=300, largest_step=400)
    of = FixedSizeRound(q=0.5, s=1.0, losses=grid.losses(np.arange(401)))
    (removed, added), _ = extremes(of)
    one_way = Kernels.of([adaptive_program.dominating_kernel(np.arange(401), added, removed, grid)], grid)
    values = Values.for_no_rounds(grid, upper=True).with_another_round(one_way, one_way)
    p, q = enumerated(
        [(1, 1.0)], 2, lambda history: ([-1.0], 1.0, -1.0), [-math.inf, *np.linspace(-4, 4, 60), math.inf]
    )
    assert np.maximum(p - math.exp(1.0) * q, 0).sum() > values.forward[50] * 1.01


def test_unequal_rounds_follow_their_order():
    """Two kinds of rounds, in both orders: above what enumerated strategies show, and not above one pair's account."""
    quiet, loud = fixed(1, 3, 2.0), fixed(1, 3, 0.7)
    edges = [-math.inf, *np.linspace(-4, 4, 9), math.inf]
    for sequence in ((quiet, loud, quiet), (loud, quiet, quiet)):
        mechanism = Composed.of(sequence)
        values = adaptive.values(mechanism, delta=1e-3)
        assert values.worse_epsilon(1e-3) <= pld.epsilon(mechanism, delta=1e-3) * (1 + 1e-4)
        for seed in range(6):
            rounds = [(1, 1 / release.mechanism.noise_multiplier) for release in sequence]
            p, q = enumerated(rounds, 3, random_strategy(seed, 3, False), edges)
            assert np.maximum(p - math.exp(1.0) * q, 0).sum() <= profile_at(values, 1.0)


def test_order_unknown_means_no_adaptive_account():
    quiet, loud = fixed(1, 30, 2.0), fixed(1, 30, 1.0)
    known = Composed.of([quiet, loud, quiet])
    assert known.order == ((0, 1), (1, 1), (0, 1))
    assert adaptive.epsilon(known, delta=1e-4) is not None
    assert adaptive.epsilon(Composed(parts=known.parts, order=None), delta=1e-4) is None
    assert adaptive.epsilon(Composed(parts=((quiet, 3),), order=None), delta=1e-4) is not None


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_releases_without_a_choice(adjacency):
    """A plain Gaussian and Poisson rounds beside fixed-size ones: between the lower bound and the one-pair account."""
    noise = gaussian(6.0, Adjacency(adjacency))
    poisson = Subsampled(mechanism=noise, sampling=PoissonSampling(probability=0.1))
    mechanism = Composed(parts=((fixed(10, 200, 2.0, adjacency), 10), (noise, 1), (poisson, 2)))
    found = adaptive.epsilon(mechanism, delta=1e-5)
    assert lower_bound.epsilon(mechanism, delta=1e-5) <= found < pld.epsilon(mechanism, delta=1e-5)


def test_rounding_of_the_transform_is_charged(monkeypatch):
    """One step against a sum in extended precision; without the charge it does fall below."""
    rng = np.random.default_rng(5)
    grid = StateGrid(spacing=0.05, states=200, largest_step=120)
    masses = rng.random(241) ** 6
    masses /= masses.sum()
    kernels = Kernels.of([Kernel(masses=masses, profile=np.zeros(201))], grid)
    values = Values(grid=grid, forward=np.linspace(1, 0, 201), reverse=np.linspace(1, 0, 201), upper=True)
    extended = values.extended().astype(np.longdouble)
    exact = np.array(
        [(masses.astype(np.longdouble)[::-1] * extended[i : i + 241]).sum() for i in range(201)], dtype=np.longdouble
    )
    exact = np.minimum.accumulate(np.clip(exact, 0, 1))
    assert np.all(values.with_another_round(kernels, None).forward >= exact)
    monkeypatch.setattr(adaptive_program, "_CHARGE", 0.0)
    assert np.any(values.with_another_round(kernels, None).forward < exact)


@pytest.mark.slow
def test_calibrated_noise_meets_the_target():
    plan = Plan(clients=300, cohort=30, sampling="fixed")
    z = budget.noise_multiplier(plan, epsilon=1.0, rounds=30)
    assert 1.0 - 1e-5 < budget.epsilon(plan, noise_multiplier=z, rounds=30) <= 1.0
    rounds = budget.rounds(plan, epsilon=1.0, noise_multiplier=z)
    assert rounds == 30


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "sigma"), [(2.02, 1.6484), (1.01, 2.1805), (0.58, 2.9730), (0.44, 3.5900)])
def test_calibrated_noise_of_the_golden_plan(epsilon, sigma):
    z = budget.noise_multiplier(GOLDEN, epsilon=epsilon, rounds=180)
    assert z <= sigma
    assert lower_bound.epsilon(GOLDEN.run(z, 180), delta=DELTA) > epsilon * 0.997


@pytest.mark.slow
def test_precise_figures():
    assert budget.epsilon(GOLDEN, noise_multiplier=1.4, rounds=180, precise=True) <= 3.2405
    other = Plan(clients=100, cohort=10, sampling="fixed", delta=100**-1.1)
    assert budget.epsilon(other, noise_multiplier=2.0, rounds=1000, precise=True) <= 17.09


@pytest.mark.parametrize(("rounds", "sigma"), [(10**6, 1.4), (10, 0.05)])
def test_too_much_work_falls_back_to_one_pair(rounds, sigma):
    mechanism = Plan(clients=6000, cohort=100, sampling="fixed").run(sigma, rounds)
    assert adaptive.epsilon(mechanism, delta=DELTA) is None


def test_delta_that_is_never_reached_is_an_infinite_epsilon():
    grid = StateGrid(spacing=0.1, states=10, largest_step=10)
    values = Values(grid=grid, forward=np.full(11, 0.5), reverse=np.full(11, 0.5), upper=True)
    assert values.epsilon(0.1) == math.inf
    assert values.epsilon(0.6) == 0.0


def test_an_epsilon_of_zero_by_loss_distributions_asks_no_program(monkeypatch):
    def program(*given, **options):
        raise AssertionError

    monkeypatch.setattr(adaptive, "values", program)
    plan = Plan(clients=10**6, cohort=1, sampling="fixed", delta=1e-4)
    assert budget.epsilon(plan, noise_multiplier=10.0, rounds=10) == 0.0
    assert accountant.quick_epsilon(plan.run(10.0, 10), delta=1e-4) == 0.0
