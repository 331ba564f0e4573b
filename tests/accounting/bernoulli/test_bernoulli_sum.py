"""Sums of coins under secure aggregation: enumeration, optimisation, known numbers, and what sampling adds."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from reference import coin_majorant, poisson_binomial, product_law
from refusals import refused
from scipy.optimize import minimize

from accounting.bernoulli import Bound, channel_rdp
from accounting.bernoulli import sums as bernoulli_sum
from accounting.bernoulli.sums import aggregate_bound, aggregate_rdp
from accounting.errors import InvalidParameter
from accounting.gaussian import subsampling


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("cohort", "c", "t", "order", "expected"),
    [
        (100, 0.1, 0.01, 2, 1.314e-5), (100, 0.1, 0.01, 8, 5.328e-5), (100, 0.1, 0.01, 32, 2.269e-4),
        (10, 0.1, 0.1, 8, 0.3377), (100, 0.2, 0.6, 8, 0.1039),
    ],
)  # fmt: skip
def test_worst_single_coordinate(cohort, c, t, order, expected):
    value = float(aggregate_rdp(order, cohort=cohort, dimension=1, c=c, linf_sensitivity=t))
    assert value == pytest.approx(expected, rel=6e-4)
    worst = max(
        poisson_binomial.renyi(order, *pair)
        for j in range(cohort)
        for others in ([c] * (cohort - 1 - j) + [1 - c] * j,)
        for pair in itertools.permutations(([*others, c], [*others, c + t]))
    )
    assert worst * (1 - 1e-9) <= value <= worst * 1.0002


@pytest.mark.slow
@pytest.mark.parametrize(("cohort", "dimension", "c", "l2"), [(2, 1, 0.1, 0.5), (5, 2, 0.02, 0.4), (12, 3, 0.2, 0.6)])
def test_never_below_enumerated_cohorts(cohort, dimension, c, l2):
    """The whole law of sums, product over coordinates; others anywhere in [c, 1-c], often at its ends."""
    rng = np.random.default_rng(cohort)
    orders = np.array([1.3, 2.0, 8.0, 40.0])
    bounds = aggregate_rdp(orders, cohort=cohort, dimension=dimension, c=c, l2_sensitivity=l2)
    for _ in range(50):
        others = rng.uniform(c, 1 - c, (cohort - 1, dimension))
        others = np.where(rng.random(others.shape) < 0.6, rng.choice([c, 1 - c], others.shape), others)
        theta = np.where(
            rng.random(dimension) < 0.5, rng.choice([c, 1 - c], dimension), rng.uniform(c, 1 - c, dimension)
        )
        move = rng.normal(size=dimension)
        moved = np.clip(theta + l2 * move / np.linalg.norm(move), c, 1 - c)
        laws = []
        for one in (theta, moved):
            joint = np.ones(1)
            for column in np.concatenate([others, one[None]]).T:
                joint = np.outer(joint, poisson_binomial.law(column)).ravel()
            laws.append(joint)
        for order, bound in zip(orders, bounds, strict=True):
            assert product_law.renyi(order, *laws) <= bound * (1 + 1e-9)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("cohort", "c", "t", "order"), [(3, 0.1, 0.2, 2.0), (6, 0.2, 0.4, 8.0), (10, 0.05, 0.05, 3.0)])
def test_optimiser_reaches_the_bound(cohort, c, t, order):
    bound = float(aggregate_rdp(order, cohort=cohort, dimension=1, c=c, linf_sensitivity=t))
    rng, best = np.random.default_rng(0), 0.0
    ends = {"type": "ineq", "fun": lambda x: t - abs(x[-1] - x[-2])}

    def cost(x):
        others = list(np.clip(x[:-2], c, 1 - c))
        return -poisson_binomial.renyi(order, [*others, x[-2]], [*others, x[-1]])

    for _ in range(12):
        start = rng.uniform(c, 1 - c, cohort + 1)
        start[-1] = np.clip(start[-2] + rng.choice([-t, t]), c, 1 - c)
        found = minimize(cost, start, method="SLSQP", bounds=[(c, 1 - c)] * (cohort + 1), constraints=[ends])
        near, far = np.clip(found.x[-2:], c, 1 - c)
        best = max(
            best, -cost([*found.x[:-2], near, np.clip(far, near - t, near + t)])
        )  # within the constraint exactly
    assert 0.98 * bound <= best <= bound * (1 + 1e-9)


def test_one_client_is_the_channel_and_more_hide_better():
    orders = np.array([1.5, 4.0, 30.0])
    keys = {"dimension": 1000, "c": 0.15, "l2_sensitivity": 0.8}
    channel = channel_rdp(orders, noise_std=0.0, **keys)
    assert np.array_equal(aggregate_rdp(orders, cohort=1, **keys), channel)
    before = channel
    for cohort in (2, 20):
        value = aggregate_rdp(orders, cohort=cohort, **keys)
        assert np.all(value <= before)
        before = value


@pytest.mark.parametrize(("c", "kappa"), [(0.1, 1.18), (0.2, 1.05)])
def test_small_steps_act_like_a_gaussian(c, kappa):
    order, cohort, step = 2.0, 100, 1e-3
    value = float(aggregate_rdp(order, cohort=cohort, dimension=1, c=c, linf_sensitivity=step))
    assert value / (order * step**2 / (2 * cohort * c * (1 - c))) == pytest.approx(kappa, abs=0.006)


def test_linf_beside_l2_helps_at_high_orders():
    keys = {"cohort": 10, "dimension": 10**6, "c": 0.1, "l2_sensitivity": 1.0}
    assert aggregate_rdp(32.0, **keys) > 2.5 * aggregate_rdp(32.0, **keys, linf_sensitivity=0.001)


def test_orders_beyond_the_laws_fall_back_to_the_coins_alone():
    bound = aggregate_bound([2.0, 5000.0], cohort=5, dimension=10, c=0.1, l2_sensitivity=0.1)
    assert bound.by == ("aggregate-l2", "channel-l2")


def test_monotone():
    keys = {"cohort": 8, "dimension": 50, "c": 0.1, "l2_sensitivity": 0.5}
    orders = np.array([1.5, 3.0, 12.0])
    value = aggregate_rdp(orders, **keys)
    assert np.all(np.diff(value) > 0)
    for change in ({"dimension": 500}, {"l2_sensitivity": 0.7}, {"cohort": 7}):
        assert np.all(aggregate_rdp(orders, **keys | change) * 1.013 >= value)


def sampled_sum(q, cohort, public, others, own):
    """Law of the sum of `cohort` coins: each client's with probability q, a public one in place of each not drawn."""
    return poisson_binomial.law([(1 - q) * public + q * p for p in [*others, own]])


def test_poisson_sampling_with_padding():
    """Zero-out: the client's own coin against the public one. Exact law of 4 slots of 4 clients, both directions."""
    c, t, q, rng = 0.2, 0.3, 0.3, np.random.default_rng(2)
    base = lambda orders: aggregate_rdp(orders, cohort=4, dimension=1, c=c, linf_sensitivity=t)  # noqa: E731
    orders = np.array([2, 3, 6])
    amplified = subsampling.poisson(orders, base, sampling_probability=q)
    for _ in range(200):
        public = rng.uniform(c + t, 1 - c - t) if c + t < 1 - c - t else 0.5
        near = np.clip([public - t, public + t], c, 1 - c)
        others, own = rng.choice(near, 3), rng.choice(near)
        pair = [sampled_sum(q, 4, public, others, x) for x in (own, public)]
        for order, bound in zip(orders, amplified, strict=True):
            assert max(product_law.renyi(order, *pair), product_law.renyi(order, *pair[::-1])) <= bound


def test_fixed_size_sampling():
    """Replace-one: 2 of 6 clients, the exact mixture over all cohorts."""
    c, t, cohort, clients, rng = 0.2, 0.4, 2, 6, np.random.default_rng(4)
    base = lambda orders: aggregate_rdp(orders, cohort=cohort, dimension=1, c=c, linf_sensitivity=t)  # noqa: E731
    orders = np.array([2, 3, 6])
    amplified = subsampling.fixed_size(orders, base, sampling_probability=cohort / clients)
    for _ in range(200):
        others = rng.choice([c, c + t], clients - 1)
        laws = []
        for own in rng.permutation([c, c + t]):
            everyone = [*others, own]
            draws = [poisson_binomial.law(drawn) for drawn in itertools.combinations(everyone, cohort)]
            assert len(draws) == math.comb(clients, cohort)
            laws.append(np.mean(draws, axis=0))
        for order, bound in zip(orders, amplified, strict=True):
            assert product_law.renyi(order, *laws) <= bound


@pytest.mark.slow
def test_thousand_clients():
    """In seconds, and near the Gaussian that the coins amount to."""
    value = aggregate_rdp([2.0, 8.0], cohort=1000, dimension=10**6, c=0.1, l2_sensitivity=1.0)
    assert value / np.array([2.0, 8.0]) * (2 * 1000 * 0.09) == pytest.approx([1.018, 1.047], rel=0.01)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *[(one, "") for one in ({"cohort": 0}, {"cohort": 2.5}, {"c": 0.6}, {"l2_sensitivity": None})],
        *[({"orders": one}, "orders=") for one in (1.0, [[2.0, 3.0]], [1.0], [0.5, 2.0], [math.nan], [math.inf])],
    ],
)
def test_refuses(wrong, words):
    good = {"orders": 2.0, "cohort": 3, "dimension": 3, "c": 0.1, "l2_sensitivity": 0.1} | wrong
    refused(InvalidParameter, words, aggregate_bound, good.pop("orders"), **good)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("l2", "linf"), [(0.3, None), (1.2, None), (0.9, 0.3), (3.0, 0.2), (0.4, 5.0)])
def test_the_bound_is_the_hull_of_what_sums_show(l2, linf):
    """Three clients, four coordinates: against a dense sampling of all bases and both directions, within 1.5%."""
    cohort, d, c, order = 3, 4, 0.1, 4.0
    farthest = min(1 - 2 * c, 1.0 if linf is None else linf)
    step = min(l2**2 / d, farthest**2)
    moves = coin_majorant.moves_up_to(farthest, step, count=40)
    pairs = lambda t: [([c] * (2 - j) + [1 - c] * j + [c], [c] * (2 - j) + [1 - c] * j + [c + t]) for j in range(3)]  # noqa: E731
    values = [max(poisson_binomial.renyi(order, *pair[::way]) for pair in pairs(t) for way in (1, -1)) for t in moves]
    corners = coin_majorant.hull(moves**2, np.array(values))
    sampled = d * np.interp(step, corners[:, 0], np.maximum.accumulate(corners[:, 1]))
    bound = float(aggregate_rdp(order, cohort=cohort, dimension=d, c=c, l2_sensitivity=l2, linf_sensitivity=linf))
    assert sampled * (1 - 1e-6) <= bound <= sampled * 1.015


@pytest.mark.parametrize(("c", "sigma"), [(0.1, 0.3), (0.02, 0.1), (0.3, 1.0)])
def test_noise_before_the_coins_is_counted_to_the_safe_side(monkeypatch, c, sigma):
    """The floor handed to the coins' bound is not above g(c), the move not below g'(1/2) Delta, in 40 digits."""
    given = {}

    def majorant(sums, step, farthest):
        given.update(floor=sums.c, move=math.sqrt(step * 7))
        return np.full(len(sums.alpha), np.inf)

    alone = Bound(rdp=np.array([9.0]), by=("floor",))
    monkeypatch.setattr(bernoulli_sum, "channel_bound", lambda *_, **__: alone)
    monkeypatch.setattr(bernoulli_sum, "_majorant_bound", majorant)
    aggregate_bound([2.0], cohort=3, dimension=7, c=c, noise_std=sigma, l2_sensitivity=0.1)
    with mpmath.workdps(40):
        ends = mpmath.mpf(c), 1 - mpmath.mpf(c)
        slope = mpmath.ncdf(ends[1], 0.5, sigma) - mpmath.ncdf(ends[0], 0.5, sigma)
        floor = ends[0] + mpmath.quad(lambda x: 1 - mpmath.ncdf(x, ends[0], sigma), list(ends))
        assert 1 - mpmath.mpf("1e-11") < given["floor"] / floor < 1
        assert 1 < given["move"] / (slope * mpmath.mpf(0.1)) < 1 + mpmath.mpf("1e-11")


@pytest.mark.slow
def test_a_cohort_beyond_the_largest_has_its_bound(monkeypatch):
    plan = {"dimension": 30, "c": 0.1, "l2_sensitivity": 0.4}
    orders = [2.0, 8.0]
    true = bernoulli_sum.aggregate_rdp(orders, cohort=500, **plan)
    monkeypatch.setattr(bernoulli_sum, "LARGEST_COHORT", 50)
    found = bernoulli_sum.aggregate_rdp(orders, cohort=500, **plan)
    assert found.tolist() == bernoulli_sum.aggregate_rdp(orders, cohort=50, **plan).tolist()
    assert (found > 3 * true).all()
    assert (found < bernoulli_sum.aggregate_rdp(orders, cohort=1, **plan)).all()
