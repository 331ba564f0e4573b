"""The Renyi curve of Poisson-sampled Gaussians: against many digits, the library, and its own bounds at the edges."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from accounting.compose import rdp
from accounting.errors import InvalidParameter
from accounting.gaussian import sampled_renyi

pytestmark = pytest.mark.slow_but_one_in(3)


def ours(order, q, sigma):
    return float(sampled_renyi.poisson_renyi(order, sampling_probability=q, noise_multiplier=sigma))


def library(orders, q, sigma):
    upstream = RdpAccountant(orders)
    upstream.compose(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)))
    return np.array(upstream.rdp)


def in_many_digits(order, q, sigma):
    """The binomial sum less its sum without noise, which is 1, at whole orders; else a fine sum of the integrand."""
    with mp.workdps(90):
        a, prob, s = mp.mpf(order), mp.mpf(q), 1 / mp.mpf(sigma)
        if order == int(order):
            excess = mp.fsum(
                mp.binomial(order, k) * (1 - prob) ** (a - k) * prob**k * mp.expm1(k * (k - 1) * s * s / 2)
                for k in range(2, int(order) + 1)
            )
        else:
            step = mp.mpf(min(0.12, 0.12 * sigma))
            points = range(int(-12 / step), int((a * s + 12) / step) + 1)

            def integrand(x):
                u = prob * mp.expm1(s * x - s * s / 2)
                return (mp.power(1 + u, a) - 1 - a * u) * mp.exp(-x * x / 2)

            excess = mp.fsum(integrand(step * j) for j in points) * step / mp.sqrt(2 * mp.pi)
        return float(mp.log1p(excess) / (a - 1))


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("q", [1e-30, 1e-6, 1 / 60, 0.5, 0.999999])
@pytest.mark.parametrize("sigma", [0.02, 0.3, 1.4, 10.0, 1e3])
def test_equals_many_digits(q, sigma):
    whole = [2, 3, 17, 256]
    between = [1.01, 3.7, 64.5] if sigma >= 1.4 else [1.5, 8.1] if sigma == 0.3 else []
    for order in whole + between:
        exact = in_many_digits(order, q, sigma)
        assert exact <= ours(order, q, sigma) <= exact * (1 + 2e-10), order


@pytest.mark.parametrize(("q", "sigma"), [(1 / 60, 0.3), (1 / 60, 1.4), (0.5, 0.5), (0.001, 3.0), (0.9, 20.0)])
def test_equals_the_library_at_whole_orders_and_is_never_above_it(q, sigma):
    """Between whole orders the library adds the absolute values of an alternating series."""
    curve = sampled_renyi.poisson_renyi(rdp.ORDERS, sampling_probability=q, noise_multiplier=sigma)
    theirs = library(rdp.ORDERS, q, sigma)
    whole = np.round(rdp.ORDERS) == rdp.ORDERS
    assert curve[whole] == pytest.approx(theirs[whole], rel=1e-8, abs=0)
    assert (curve <= theirs * (1 + 1e-9)).all()


@pytest.mark.parametrize("sigma", [1e-9, 0.005, 0.0199])
@pytest.mark.parametrize("order", [1.01, 1.5, 2, 2.5, 7.3, 100])
def test_leading_terms_at_hardly_any_noise(order, sigma):
    """Between q^a e^(a(a-1)/2 sigma^2), which is one term of it, and that law without sampling."""
    value, q = ours(order, 0.1, sigma), 0.1
    assert order / (2 * sigma**2) + order / (order - 1) * math.log(q) <= value * (1 + 1e-9)
    assert value <= order / (2 * sigma**2) * (1 + 1e-9) + 1e-9


def test_leading_terms_meet_the_trapezoid_rule_where_it_ends():
    for order in (1.01, 1.5, 2.0, 2.5, 20.0):
        below, above = ours(order, 0.01, 0.02 * (1 - 1e-12)), ours(order, 0.01, 0.02)
        assert above * (1 - 1e-9) <= below <= above * (1 + 1e-4)


def test_two_stretches_of_nodes_join_one():
    """At sigma = 0.3 the bulk and the shift are apart from order 8.13 on."""
    orders = np.linspace(7.9, 8.4, 26)
    k = (orders - 1) * sampled_renyi.poisson_renyi(orders, sampling_probability=1 / 60, noise_multiplier=0.3)
    assert np.diff(k, 2) == pytest.approx(np.diff(k, 2).mean(), rel=0.02)


def test_ends_of_the_domain():
    assert ours(5.0, 0.0, 1e-9) == 0.0
    assert ours(5.0, 1.0, 2.0) == 5 / 8
    assert ours(2.0, 1 - 1e-15, 2.0) == pytest.approx(1 / 4, rel=1e-9)
    assert ours(2.0, 1e-300, 1e-2) == pytest.approx(
        1e4 - 200 * math.log(10), rel=1e-6
    )  # 2 log q + 1/sigma^2, q = 1e-100
    assert 0 < ours(2.0, 1e-9, 1e9) < 1e-35
    assert ours(4096.0, 0.5, 1e3) <= 4096 / 2e6


@settings(max_examples=60)
@given(q=st.floats(1e-6, 0.9), sigma=st.floats(0.05, 50), order=st.floats(1.01, 60), more=st.floats(1.0, 1.1))
def test_grows_with_order_and_sampling_and_falls_with_noise(q, sigma, order, more):
    here = ours(order, q, sigma) * (1 + 1e-11)
    assert ours(order, min(q * more, 1.0), sigma) * (1 + 1e-11) >= here / (1 + 1e-11) ** 2
    assert ours(order * more, q, sigma) >= here * (1 - 1e-9)
    assert ours(order, q, sigma * more) <= here * (1 + 1e-9)


def test_arguments_broadcast():
    values = sampled_renyi.poisson_renyi(
        [[2.0], [3.5]], sampling_probability=[0.0, 0.1, 1.0], noise_multiplier=np.array([1.0, 2.0, 3.0])
    )
    assert values.shape == (2, 3)
    assert values[1, 1] == ours(3.5, 0.1, 2.0)
    assert np.shape(sampled_renyi.poisson_renyi(2.0, sampling_probability=0.1, noise_multiplier=1.0)) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"orders": 1.0}, r"orders=1.0: must be finite numbers above 1"),
        ({"orders": [2.0, math.nan]}, r"orders=nan"),
        ({"sampling_probability": 1.5}, r"sampling_probability=1.5: must be probabilities"),
        ({"sampling_probability": -0.1}, r"sampling_probability=-0.1"),
        ({"noise_multiplier": 0.0}, r"noise_multiplier=0.0: must be numbers from 1e-09"),
        ({"noise_multiplier": "loud"}, r"must be numbers, or arrays whose shapes broadcast"),
        ({"orders": [2.0, 3.0], "noise_multiplier": [1.0, 2.0, 3.0]}, r"shapes broadcast"),
    ],
)
def test_outside_the_domain_is_an_error(changes, message):
    setting = {"orders": 2.0, "sampling_probability": 0.1, "noise_multiplier": 1.0, **changes}
    refused(InvalidParameter, message, lambda: sampled_renyi.poisson_renyi(setting.pop("orders"), **setting))


@pytest.mark.parametrize("alpha", [2.0, 2.5, 5.5, 40.0, 200.0])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.3, 0.7), (1e-6, 0.3)])
def test_the_leading_terms_are_the_sum_that_they_are_said_to_be(alpha, q, sigma):
    with mp.workdps(40):
        terms = [
            mp.binomial(alpha, k) * (1 - q) ** (alpha - k) * mp.mpf(q) ** k * mp.exp(k * (k - 1) / (2 * sigma**2))
            for k in range(2, math.ceil(alpha))
        ]
        last = mp.mpf(q) ** alpha * mp.exp(alpha * (alpha - 1) / (2 * sigma**2))
        expected = float(mp.log(mp.fsum([*terms, last])))
    found = sampled_renyi._log_leading_terms(np.array([alpha]), np.array([q]), np.array([sigma]))
    assert found[0] == pytest.approx(expected, rel=1e-9)
