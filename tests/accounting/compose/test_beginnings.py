"""First rounds of schedules, lanes that end early, and absurd corners of the closed form, against exact values."""

import itertools
import math
from collections import Counter

import mpmath
import numpy as np
import pytest
import scipy
from reference.shorthand import gaussian

from accounting import Composed, PoissonSampling, guarantee, subsample
from accounting.compose import accountant
from accounting.errors import InvalidParameter
from accounting.gaussian import epsilon_from_below, noise_std, sampled_profiles, smallest_epsilon
from accounting.mechanisms import Allocation, BallsAndBins, MinSeparation


def one_round(schedule, z=1.0):
    return subsample(gaussian(z, "zero-out"), schedule)


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize(
    ("schedule", "q"),
    [
        (BallsAndBins(bins=60), 1 / 60),
        (BallsAndBins(bins=60, lanes=6), 1 / 10),
        (BallsAndBins(bins=12, lanes=4, coefficients=(1.0, 0.6, 0.4)), 1 / 3),
        (BallsAndBins(bins=12, lanes=4, secret_lanes=True), 1 / 12),
        (Allocation(participations=2, rounds=9), 2 / 9),
        (MinSeparation(separation=3, probability=0.2), 0.2),
    ],
)
@pytest.mark.parametrize("delta", [0.05, 1e-5, 1e-13, 1e-40])
def test_the_first_round_of_a_schedule_is_one_poisson_round(schedule, q, delta):
    for z in (0.8, 3.0):
        stated = accountant.epsilon(one_round(schedule, z), delta=delta)
        round_ = {"sampling_probability": q, "noise_multiplier": z}
        profiles = [sampled_profiles.removal_profile, sampled_profiles.addition_profile]
        assert max(float(one(stated, **round_)) for one in profiles) <= delta
        near = max(stated * 0.998 - 1e-9, 0.0)
        assert stated == 0 or max(float(one(near, **round_)) for one in profiles) > delta
        poissons = accountant.epsilon(one_round(PoissonSampling(probability=q), z), delta=delta)
        assert stated <= 1.02 * poissons + 1e-9


def exact_divergence(allocation, count, z, epsilon, nodes):
    """Return the larger divergence of the mixture of all allocations and N(0, 1)^count: a trapezoidal rule over the
    later rounds, and the masses of the first round's half-line {P > e^epsilon Q} or {Q > e^epsilon P}.
    """
    k, rounds = allocation.participations, allocation.rounds
    drawn = [tuple(i in chosen for i in range(count)) for chosen in itertools.combinations(range(rounds), k)]
    s, x = 1 / z, np.linspace(-9, 9 + 1 / z, nodes)
    grid, area = np.meshgrid(*[x] * (count - 1), indexing="ij"), (x[1] - x[0]) ** (count - 1)
    moved = {True: 0.0, False: 0.0}  # density of the later rounds where the client is in the first round, or is not
    for pattern, times in Counter(drawn).items():
        density = np.prod([scipy.stats.norm.pdf(v - s * b) for v, b in zip(grid, pattern[1:], strict=True)], axis=0)
        moved[pattern[0]] = moved[pattern[0]] + times / len(drawn) * density
    still = np.prod([scipy.stats.norm.pdf(v) for v in grid], axis=0)
    found = []
    for sign, gamma in ((1, math.exp(epsilon)), (-1, math.exp(-epsilon))):
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (np.log((gamma * still - moved[False]) / moved[True]) + s * s / 2) / s
        t = np.where(gamma * still <= moved[False], -np.inf, t)
        q = scipy.special.ndtr(-sign * t)
        p = moved[True] * scipy.special.ndtr(sign * (s - t)) + moved[False] * q
        found.append(area * np.sum(p - gamma * q * still) * (1 if sign > 0 else -1 / gamma))
    return max(found)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
@pytest.mark.parametrize(
    ("taking_part", "rounds", "count", "z", "delta", "loose"),
    [
        (2, 5, 2, 1.82, 6.7e-4, 1e-4),
        (3, 7, 3, 0.9, 1e-3, 2e-3),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [
                (2, 2, 2, 1.0, 1e-5, 1e-4),
                (1, 9, 2, 0.6, 1e-6, 1e-4),
                (9, 12, 2, 4.0, 1e-8, 1e-4),
                (2, 16, 2, 20.0, 1e-4, 1e-3),
                (2, 3, 3, 2.0, 1e-6, 3e-3),
                (2, 11, 3, 0.7, 0.05, 2e-3),
                (6, 13, 3, 5.0, 1e-9, 3e-3),
            ]
        ),
    ],
)
def test_the_first_rounds_of_an_allocation_are_a_mixture_over_its_sets(
    taking_part, rounds, count, z, delta, loose, adjacency
):
    """Two of five rounds, z = 1.82: 1.2192 was stated for 1.0469."""
    allocation = Allocation(participations=taking_part, rounds=rounds)
    release = subsample(gaussian(z, adjacency), allocation)
    stated = accountant.epsilon(Composed(parts=((release, count),)), delta=delta)
    nodes = 20_000 if count == 2 else 500
    assert exact_divergence(allocation, count, z, stated, nodes) <= delta
    assert exact_divergence(allocation, count, z, stated * (1 - loose), nodes) > delta


def test_lanes_that_end_early_have_columns_cut_off():
    """Two rounds of public lanes: the first lane's participation moves c_0 and c_1 only."""
    c, z, delta = (1.0, 0.8, 0.59), 0.52, 1e-5
    bins = one_round(BallsAndBins(bins=6, lanes=3, coefficients=c), z)
    stated = accountant.epsilon(Composed(parts=((bins, 2),)), delta=delta)
    exact = accountant.epsilon(one_round(PoissonSampling(probability=0.5), z / np.hypot(1, 0.8)), delta=delta)
    assert exact <= stated <= 1.01 * exact
    whole = accountant.epsilon(one_round(PoissonSampling(probability=0.5), z / np.linalg.norm(c)), delta=delta)
    assert stated < 0.97 * whole
    long = accountant.epsilon(Composed(parts=((bins, 6),)), delta=delta)
    assert long >= whole


@pytest.mark.parametrize("mu", [2e6, 4.1e8, 1e12])
@pytest.mark.parametrize("delta", [2.42e-5, 1e-100, 0.9])
def test_epsilon_of_a_huge_mu_is_an_upper_bound(mu, delta):
    """At mu 4e8 a true delta 21,710 times the asked one was stated."""
    with mpmath.workdps(60):

        def true_delta(epsilon):
            first = mpmath.ncdf(mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu)
            b = mpmath.mpf(mu) / 2 + mpmath.mpf(epsilon) / mu
            t = mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu
            return first - mpmath.npdf(t) / b, first  # Mills ratio of b: below 1 / b

        upper, lower = smallest_epsilon(delta, mu=mu), epsilon_from_below(delta, mu=mu)
        assert true_delta(upper)[1] <= delta
        assert true_delta(lower)[0] >= delta
    assert upper <= lower * (1 + 2e-11)
    z = noise_std(upper, delta, l2_sensitivity=1.0)
    assert z == pytest.approx(1 / mu, rel=1e-10)


def test_noise_is_not_calibrated_for_an_epsilon_below_1e_9():
    """Of random epsilons below it 222 of 4,000 had too little noise."""
    for calibration in ("analytic", "classical"):
        with pytest.raises(InvalidParameter, match="must be at least 1e-09"):
            noise_std(5e-12, 1e-99, l2_sensitivity=1.0, calibration=calibration)
    draw = np.random.default_rng(0)
    for _ in range(40):
        epsilon, delta = 10 ** draw.uniform(-9, -5), 10 ** draw.uniform(-300, -3)
        with mpmath.workdps(60):
            mu, e = 1 / mpmath.mpf(noise_std(epsilon, delta, l2_sensitivity=1.0)), mpmath.mpf(epsilon)
            true = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
            assert true <= delta


def test_an_epsilon_of_a_first_round_has_a_lower_bound_below_it():
    found = guarantee(one_round(BallsAndBins(bins=10), 2.0), delta=1e-6)
    assert found.lower_bound <= found.epsilon
