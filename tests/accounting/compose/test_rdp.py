"""Renyi curves against quadrature in 40 digits, and the conversion to epsilon."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import normal, renyi
from reference.shorthand import fixed, gaussian, poisson, times
from refusals import refused

from accounting.bernoulli.accounts import COIN_ORDERS, SAMPLED_COIN_ORDERS
from accounting.compose import rdp
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import sampled_renyi
from accounting.mechanisms import BernoulliAggregate, Composed, FixedSizeSampling, PoissonSampling, Subsampled

pytestmark = pytest.mark.slow_but_one_in(3)


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize(("q", "sigma"), [(1e-4, 1.0), (0.1, 1.4), (0.5, 0.5), (0.5, 10.0), (0.99, 2.0)])
@pytest.mark.parametrize("order", [1.5, 2.0, 10.9, 64.0])
def test_the_other_order_of_the_worlds_costs_less(q, sigma, order):
    """Mironov, Talwar, Zhang 2019: so the curve bounds both."""
    assert renyi.addition(order, q, sigma) <= float(rdp.curve(poisson(q, sigma), order)) * (1 + 1e-6)


def test_quadrature_and_binomial_sum_agree():
    assert float(renyi.removal(3.0000001, 0.1, 1.4)) == pytest.approx(float(renyi.removal(3, 0.1, 1.4)), rel=1e-5)


@pytest.mark.slow_but_one_in(20)
@pytest.mark.parametrize("order", [2, 8, 64, 256])
@pytest.mark.parametrize(("cohort", "sigma"), [(1, 1.0), (10, 2.0), (50, 1.4), (99, 3.0)])
def test_fixed_size_curve_bounds_the_named_neighbours(order, cohort, sigma):
    """N(0) against (1-q) N(0) + q N(2/sigma), both orders."""
    q, value = cohort / 100, float(rdp.curve(fixed(cohort, 100, sigma), order))
    assert value >= float(renyi.removal(order, q, sigma / 2)) * (1 - 1e-9)
    assert value >= float(renyi.addition(order, q, sigma / 2)) * (1 - 1e-9)


def test_zero_out_under_fixed_size_uses_the_displaced_clients_2c():
    orders = [2.0, 5.0, 20.0]
    assert (rdp.curve(fixed(10, 100, 2.0, "zero-out"), orders) == rdp.curve(fixed(10, 100, 2.0), orders)).all()


def test_poisson_zero_out_is_add_remove():
    orders = [1.5, 2.0, 5.0, 20.0]
    assert (rdp.curve(poisson(0.1, 2.0, "zero-out"), orders) == rdp.curve(poisson(0.1, 2.0), orders)).all()


def test_poisson_replace_one_is_refused_with_a_way_out():
    with pytest.raises(UnsupportedMechanism, match=r"accountant='rdp' with Poisson sampling and replace-one.*'pld'"):
        rdp.curve(poisson(0.1, 2.0, "replace-one"), [2.0])


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_plain_gaussian_is_exact(adjacency):
    shift = (2 if adjacency == "replace-one" else 1) / 3.0
    assert rdp.curve(gaussian(3.0, adjacency), [1.5, 7.0]) == pytest.approx(np.array([1.5, 7.0]) * shift**2 / 2)


@pytest.mark.parametrize(("q", "sigma"), [(1e-6, 0.5), (0.1, 1.4), (0.99, 2.0), (0.01, 100.0)])
def test_the_curve_of_a_sampled_gaussian_is_that_of_its_function(q, sigma):
    """Which has many digits and a theorem beside it (tests/accounting/gaussian)."""
    orders, setting = [1.01, 2.0, 3.7, 12.0, 64.0], {"noise_multiplier": sigma}
    exact = sampled_renyi.poisson_renyi(orders, sampling_probability=q, **setting)
    assert rdp.curve(poisson(q, sigma), orders) == pytest.approx(exact, rel=1e-12)
    cohort = max(round(100 * q), 1)
    exact = sampled_renyi.fixed_size_renyi(orders, sampling_probability=cohort / 100, **setting)
    assert rdp.curve(fixed(cohort, 100, sigma), orders) == pytest.approx(exact, rel=1e-12)


def test_composition_adds_up():
    both = Composed(parts=((poisson(0.1, 2.0), 5), (gaussian(9.0), 3)))
    orders = [2.0, 4.0]
    expected = 5 * rdp.curve(poisson(0.1, 2.0), orders) + 3 * rdp.curve(gaussian(9.0), orders)
    assert rdp.curve(both, orders) == pytest.approx(expected)


def test_a_scalar_order_gives_a_scalar():
    assert np.shape(rdp.curve(poisson(0.1, 2.0), 3.0)) == ()


@pytest.mark.parametrize("mechanism", [gaussian(1.0), poisson(0.1, 1.0), fixed(1, 10, 1.0), times(gaussian(1.0), 2)])
@pytest.mark.parametrize("bad", [1.0, [0.5], [], [2.0, math.nan], [-1], ["two"], [math.inf], [[2.0]], None])
def test_orders_must_be_above_1(mechanism, bad):
    refused(InvalidParameter, r"orders=.*must be a finite number above 1", rdp.curve, mechanism, bad)


class TestConversion:
    @given(delta=st.floats(1e-15, 0.5), mu=st.floats(0.05, 5.0))
    def test_is_above_the_exact_gaussian(self, delta, mu):
        exact = float(normal.epsilon(delta, mu, digits=30))
        orders = rdp.FAR_ORDERS
        for conversion in ("improved", "classical"):
            converted = rdp.epsilon_from_curve(orders, orders * mu**2 / 2, delta=delta, conversion=conversion)
            assert converted.epsilon >= exact

    def test_formulas_at_one_order(self):
        """Canonne, Kamath, Steinke 2020, Prop. 12; Mironov 2017, Prop. 3."""
        improved = rdp.epsilon_from_curve([4.0], [0.3], delta=1e-3)
        assert improved.epsilon == pytest.approx(0.3 + math.log(3 / 4) - math.log(4e-3) / 3)
        classical = rdp.epsilon_from_curve([4.0], [0.3], delta=1e-3, conversion="classical")
        assert classical.epsilon == pytest.approx(0.3 + math.log(1e3) / 3)

    def test_the_improved_formula_is_tight_for_its_extreme_law(self):
        """With Pr[loss = x] chosen to attain the inequality, delta at the converted epsilon is the stated one.

        Two outcomes of loss x and -infinity: delta(eps) = p (1 - e^(eps - x)); e^((a-1) rho) = p e^((a-1) x).
        The bound maximises (1 - e^(eps-x)) e^(-(a-1)x), at x = eps + log(a/(a-1)).
        """
        order, epsilon, p = 5.0, 1.0, 1e-3
        loss = epsilon + math.log(order / (order - 1))
        rho = (math.log(p) + (order - 1) * loss) / (order - 1)
        delta = p * -math.expm1(epsilon - loss)
        assert rdp.epsilon_from_curve([order], [rho], delta=delta).epsilon == pytest.approx(epsilon, rel=1e-12)

    @pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.1, 0.9])
    def test_epsilon_is_0_only_where_the_total_variation_is_below_delta(self, delta):
        mu = math.sqrt(-2 * math.log1p(-(delta**2)) / 1.01) * (
            1 - 1e-9
        )  # the largest that Bretagnolle and Huber let pass
        assert rdp.epsilon_from_curve([1.01], [1.01 * mu**2 / 2], delta=delta).epsilon == 0.0
        assert math.erf(mu / math.sqrt(8)) <= delta
        assert rdp.epsilon_from_curve([1.01], [1.02 * mu**2 / 2], delta=delta).epsilon > 0.0 or delta > 0.5

    def test_epsilon_is_0_also_where_the_total_variation_may_be_delta_itself(self):
        """1 - e^-rho = delta^2 exactly, in doubles too."""
        rho = -math.log1p(-0.5625)
        assert -np.expm1(-rho) == 0.5625
        assert rdp.epsilon_from_curve([1.001], [rho], delta=0.75).epsilon == 0.0
        assert rdp.epsilon_from_curve([1.001], [rho * 1.001], delta=0.75).epsilon > 0.0

    def test_never_negative(self):
        assert rdp.epsilon_from_curve([2.0, 3.0], [0.0, 0.0], delta=0.9).epsilon == 0.0

    @pytest.mark.parametrize("curve", [[math.inf, math.inf], [math.nan, math.inf]])
    def test_without_any_finite_order_epsilon_is_infinite(self, curve):
        assert rdp.epsilon_from_curve([2.0, 3.0], curve, delta=1e-5).epsilon == math.inf

    def test_infinite_and_undefined_orders_are_passed_over(self):
        converted = rdp.epsilon_from_curve([2.0, 3.0, 4.0], [math.nan, 0.1, math.inf], delta=1e-5)
        assert converted.order == 3.0
        assert converted.at_end  # of what is usable

    def test_an_end_of_the_grid_is_reported(self):
        curve = np.array([2.0, 3.0, 4.0]) * 1e-6
        assert rdp.epsilon_from_curve([2.0, 3.0, 4.0], curve, delta=1e-9).at_end
        curve = rdp.FAR_ORDERS * 0.02
        assert not rdp.epsilon_from_curve(rdp.FAR_ORDERS, curve, delta=1e-9).at_end

    def test_a_curve_of_whole_numbers_is_a_curve(self):
        """Of unsigned ones too, whose negative is a large number."""
        for kind in (np.uint8, np.int64, np.float32):
            found = rdp.epsilon_from_curve([2.0, 4.0], np.array([3, 5], dtype=kind), delta=1e-3)
            assert found.epsilon == pytest.approx(5 + math.log(3 / 4) - math.log(4e-3) / 3)

    def test_lengths_must_match(self):
        refused(InvalidParameter, "need equal lengths", rdp.epsilon_from_curve, [2.0, 3.0], [0.1], delta=1e-5)

    @pytest.mark.parametrize("bad", ["best", "", None])
    def test_conversion_must_be_known(self, bad):
        with pytest.raises(InvalidParameter, match=r"conversion=.*must be 'improved' or 'classical'"):
            rdp.epsilon_from_curve([2.0], [0.1], delta=1e-5, conversion=bad)


def test_sampled_coins_of_a_cohort_of_all_are_those_coins():
    """Between the computed orders chords are above: (alpha - 1) rho is convex."""
    coins = BernoulliAggregate(dimension=4, cohort=2, floor=0.25, adjacency="zero-out", l2_clip=0.2)
    sampled = Subsampled(mechanism=coins, sampling=PoissonSampling(probability=1.0))
    computed = rdp.curve(coins, [2.0, 3.0, 8.0, 9.0, 10.0])
    found = rdp.curve(sampled, [2.0, 3.0, 8.0, 9.0, 10.0])
    assert found[[0, 1, 2, 4]] == pytest.approx(computed[[0, 1, 2, 4]], rel=1e-12)
    assert computed[3] <= found[3] <= computed[3] * 1.01


def test_orders_without_a_bound_leave_the_others_theirs():
    """Fixed-size sampling has none above 256; the curve is then infinite there and nowhere else."""
    values = rdp.curve(fixed(10, 100, 4.0), [2.0, 256.0, 257.0, 512.0])
    assert np.isfinite(values).tolist() == [True, True, False, False]
    assert values[:2] == pytest.approx([float(rdp.curve(fixed(10, 100, 4.0), order)) for order in (2.0, 256.0)])


def test_a_drawn_coin_costs_no_more_than_one_always_sent():
    """Fixed-size sampling against the replace-one account of the coins themselves, which it can only hide."""
    coins = BernoulliAggregate(dimension=4, cohort=2, floor=0.25, adjacency="replace-one", l2_clip=0.2)
    sampling = FixedSizeSampling(cohort=2, clients=20)
    sampled = rdp.curve(Subsampled(mechanism=coins, sampling=sampling), [2.0, 9.0])
    assert np.all(sampled < 0.5 * rdp.curve(coins, [2.0, 9.0]))
    assert np.all(sampled > 0)


def test_an_order_that_does_not_converge_is_infinite_without_a_word(caplog):
    """dp-accounting warns for each such order through absl, whose verbosity stays what it was."""
    from absl import logging

    before = logging.get_verbosity()
    with caplog.at_level("DEBUG"):
        values = rdp.curve(fixed(1, 10**6, 0.05), rdp.ORDERS)
    assert not caplog.records
    assert logging.get_verbosity() == before
    assert not np.isnan(values).any()


@pytest.mark.parametrize("orders", [rdp.ORDERS, rdp.FAR_ORDERS, COIN_ORDERS, SAMPLED_COIN_ORDERS])
def test_the_default_orders_rise_in_steps_that_cost_little(orders):
    """Ends of a grid are its first and its last; between neighbours alpha - 1 at most triples."""
    assert np.all(np.diff(orders) > 0)
    assert np.all((orders[1:] - 1) <= 3 * (orders[:-1] - 1))
