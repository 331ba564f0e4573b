"""Divergence of two coins: many digits, near-equal coins, edges. abs=0: approx alone lets 1e-12 pass."""

import math

import numpy as np
import pytest
from reference import coin
from refusals import refused

from accounting.bernoulli import divergence, floor_of, worst_divergence
from accounting.errors import InvalidParameter

pytestmark = pytest.mark.slow_but_one_in(3)

ORDERS = [1.0, 1 + 1e-9, 1.5, 2.0, 64.0, 1e4, math.inf]
PROBABILITIES = [0.0, 1e-300, 1e-12, 0.1, 0.5, 0.9, 1 - 1e-12, 1.0]


@pytest.mark.parametrize("order", ORDERS)
def test_equals_many_digits(order):
    for p in PROBABILITIES:
        for q in PROBABILITIES:
            exact = float(coin.renyi(order, p, q, digits=700)) if p != q else 0.0
            assert float(divergence(order, p, q)) == pytest.approx(exact, rel=1e-13, abs=0), (p, q)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("move", [1e-12, -1e-12, 1e-9, 1e-7, -1e-7, 1e-3])
def test_nothing_cancels_at_tiny_moves(order, p, move):
    q = p + move
    assert float(divergence(order, p, q)) == pytest.approx(float(coin.renyi(order, p, q)), rel=1e-13, abs=0)


def test_shapes():
    assert divergence([[2.0], [3.0]], [0.1, 0.2, 0.3], 0.5).shape == (2, 3)
    assert np.ndim(divergence(2.0, 0.1, 0.2)) == 0
    assert float(worst_divergence(5.0, c=0.2)) == pytest.approx(float(coin.renyi(5, 0.2, 0.8)), rel=1e-13)


@pytest.mark.parametrize(("order", "p", "q"), [(0.5, 0.1, 0.2), (math.nan, 0.1, 0.2), (2, -0.1, 0.2), (2, 0.1, 1.1)])
def test_refuses(order, p, q):
    refused(InvalidParameter, "", divergence, order, p, q)


@pytest.mark.parametrize("c", [0, 0.5, -0.1, math.nan, "0.1"])
def test_floor_is_refused(c):
    refused(InvalidParameter, "", floor_of, c)
