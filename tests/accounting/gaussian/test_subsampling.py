"""Amplification of any mechanism, against random finite mechanisms whose subsampled law is known exactly."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from reference.finite import random_laws, renyi
from reference.shorthand import fixed

from accounting.compose import rdp
from accounting.errors import InvalidParameter
from accounting.gaussian import subsampling

pytestmark = pytest.mark.slow_but_one_in(3)

TRIALS, ORDERS = 2000, np.array([2, 3, 5, 8])


def sampled(q, with_client, without):
    return q * with_client + (1 - q) * without


def poisson_trials(curve_of):
    """How often the bound fails, over random channels, rates and orders, in either order of the worlds."""
    rng, violations = np.random.default_rng(20), 0
    for _ in range(TRIALS):
        present, absent = random_laws(rng, 2, 4)
        q = 10 ** rng.uniform(-3, 0)
        bound = subsampling.poisson(ORDERS, curve_of(present, absent), sampling_probability=q)
        mixed = sampled(q, present, absent)
        truth = np.array([max(renyi(a, mixed, absent), renyi(a, absent, mixed)) for a in ORDERS])
        violations += bool(np.any(truth > bound + 1e-12))
    return violations


@pytest.mark.slow
def test_poisson_holds_for_random_mechanisms():
    """Seeded: 2,000 channels, no failure is allowed."""
    both = lambda p, q: lambda orders: np.array([max(renyi(k, p, q), renyi(k, q, p)) for k in orders])  # noqa: E731
    assert poisson_trials(both) == 0


@pytest.mark.slow
def test_poisson_fails_with_a_one_directional_curve():
    """A planted fault: about a quarter of the channels break the bound, so the test above can see one."""
    one = lambda p, q: lambda orders: np.array([renyi(k, p, q) for k in orders])  # noqa: E731
    assert poisson_trials(one) > TRIALS // 10


@pytest.mark.slow
def test_fixed_size_holds_for_random_mechanisms():
    """Given the others: the cohort holds the client (value a or b) or another in its place."""
    rng = np.random.default_rng(21)
    for _ in range(TRIALS):
        laws = random_laws(rng, 3, 4)
        q = 10 ** rng.uniform(-3, 0)

        def curve(orders, laws=laws):
            return np.array([renyi(k, laws[:, None], laws[None, :]).max() for k in orders])

        bound = subsampling.fixed_size(ORDERS, curve, sampling_probability=q)
        p, other = sampled(q, laws[0], laws[2]), sampled(q, laws[1], laws[2])
        truth = np.array([max(renyi(a, p, other), renyi(a, other, p)) for a in ORDERS])
        assert np.all(truth <= bound + 1e-12)


@pytest.mark.parametrize("amplify", [subsampling.poisson, subsampling.fixed_size])
class TestBoth:
    CURVE = staticmethod(lambda orders: 0.5 * orders)

    def test_nobody_drawn_costs_nothing(self, amplify):
        assert (amplify(ORDERS, self.CURVE, sampling_probability=0.0) == 0).all()

    def test_everybody_drawn_is_the_mechanism_itself(self, amplify):
        assert amplify(ORDERS, self.CURVE, sampling_probability=1.0) == pytest.approx(0.5 * ORDERS)
        assert amplify(ORDERS, self.CURVE, sampling_probability=1 - 1e-12) == pytest.approx(0.5 * ORDERS, rel=1e-6)

    def test_more_are_drawn_more_it_costs(self, amplify):
        costs = [amplify(ORDERS, self.CURVE, sampling_probability=q) for q in np.linspace(0, 1, 21)]
        assert (np.diff(costs, axis=0) >= -1e-15).all()

    def test_never_costs_more_than_the_mechanism(self, amplify):
        for scale in (1e-9, 0.01, 1.0, 100.0):
            cost = amplify(ORDERS, lambda orders, c=scale: c * orders, sampling_probability=0.5)
            assert (cost <= scale * ORDERS * (1 + 1e-9) + 1e-15).all()

    def test_an_infinite_curve_is_no_bound_and_a_zero_curve_no_cost(self, amplify):
        assert np.isinf(amplify([3], lambda orders: orders * np.inf, sampling_probability=0.1)).all()
        assert amplify([3], lambda orders: orders * 0.0, sampling_probability=0.1) == pytest.approx(0, abs=1e-15)

    @pytest.mark.parametrize(
        "bad", [[1], [2.5], [2, 2.5], [2, 1], [], [math.nan], [math.inf], ["a"], [10**9], None, [[2]]]
    )
    def test_orders_must_be_whole(self, amplify, bad):
        with pytest.raises(InvalidParameter, match=r"orders=.*must be integers from 2 to"):
            amplify(bad, self.CURVE, sampling_probability=0.1)

    @pytest.mark.parametrize("curve", [lambda a: a[:1], lambda a: -a, lambda a: a * np.nan])
    def test_the_curve_must_be_a_divergence(self, amplify, curve):
        with pytest.raises(InvalidParameter, match="must return a divergence of at least 0"):
            amplify([2, 3], curve, sampling_probability=0.1)

    @pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, True, "0.1", None])
    def test_probability_must_be_one(self, amplify, bad):
        with pytest.raises(InvalidParameter, match=r"sampling_probability=.*must be a probability in \[0, 1\]"):
            amplify([2], self.CURVE, sampling_probability=bad)


def test_poisson_formula_in_many_digits():
    """Zhu, Wang 2019, Theorem 6 (without the factor 3 that the both-directional curve spares: Steinke 2022)."""
    order, q, rho = 40, mp.mpf("0.03"), lambda k: mp.mpf("0.11") * k
    with mp.workdps(40):
        total = (1 - q) ** (order - 1) * (1 + (order - 1) * q) + mp.fsum(
            mp.binomial(order, k) * (1 - q) ** (order - k) * q**k * mp.exp((k - 1) * rho(k))
            for k in range(2, order + 1)
        )
        expected = mp.log(total) / (order - 1)
    found = subsampling.poisson([order], lambda k: 0.11 * k, sampling_probability=0.03)
    assert found == pytest.approx(float(expected), rel=1e-10)


def test_fixed_size_equals_the_librarys_own_gaussian():
    """dp-accounting implements Theorem 27 of Wang, Balle, Kasiviswanathan 2019; at whole orders Lemma 3 is it."""
    orders = np.array([2, 3, 7, 32])
    upstream = RdpAccountant(orders.tolist(), NeighboringRelation.REPLACE_ONE)
    upstream.compose(SampledWithoutReplacementDpEvent(6000, 100, GaussianDpEvent(0.7)))
    ours = subsampling.fixed_size(orders, lambda a: a * 2 / 1.4**2, sampling_probability=1 / 60)
    assert ours == pytest.approx(upstream.rdp, rel=1e-9)
    assert ours == pytest.approx(rdp.curve(fixed(100, 6000, 1.4), orders), rel=1e-9)
