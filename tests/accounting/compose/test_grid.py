"""Epsilon over arrays of settings: every cell is that of the accountants."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.shorthand import fixed, poisson, times
from refusals import refused

from accounting.compose import accountant, grid, lower_bound, rdp
from accounting.errors import InvalidParameter

RANDOM = np.random.default_rng(20261121)
CELLS = {
    "sampling_probability": 10 ** RANDOM.uniform(-4, -0.3, 20),
    "noise_multiplier": 10 ** RANDOM.uniform(-0.5, 1.5, 20),
    "rounds": 10.0 ** RANDOM.integers(0, 5, 20),
    "delta": 10 ** RANDOM.uniform(-9, -3, 20),
}


CLIENTS = 10**7
FIXED = {**CELLS, "sampling_probability": np.round(CLIENTS * CELLS["sampling_probability"]) / CLIENTS}


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("conversion", ["improved", "classical"])
def test_every_cell_is_the_accountants(conversion, sampling):
    cells = FIXED if sampling == "fixed" else CELLS
    found = grid.epsilons(**cells, conversion=conversion, sampling=sampling)
    for value, q, z, rounds, delta in zip(found, *cells.values(), strict=True):
        one = fixed(round(q * CLIENTS), CLIENTS, z) if sampling == "fixed" else poisson(q, z)
        run, how = times(one, int(rounds)), {"accountant": "rdp", "conversion": conversion}
        stated = accountant.guarantee(run, delta=delta, with_lower_bound=False, **how)
        assert value == pytest.approx(stated.epsilon, rel=1e-12)


def test_every_cell_is_the_librarys_at_whole_orders():
    orders = np.array([*range(2, 65), 80.0, 128.0, 256.0, 512.0, 1024.0])
    found = grid.epsilons(**CELLS, orders=orders)
    for value, q, z, rounds, delta in zip(found, *CELLS.values(), strict=True):
        upstream = RdpAccountant(orders.tolist())
        upstream.compose(PoissonSampledDpEvent(float(q), GaussianDpEvent(float(z))), int(rounds))
        assert value == pytest.approx(upstream.get_epsilon(delta), rel=1e-6)


def test_no_cell_of_fixed_sizes_is_above_the_librarys_at_whole_orders():
    """At many noise multipliers its alternating sums lose their digits, and it is far above."""
    orders = np.array([*range(2, 33), 64.0])
    some = {name: values[:8] for name, values in FIXED.items()}
    found = grid.epsilons(**some, orders=orders, sampling="fixed")
    for value, q, z, rounds, delta in zip(found, *some.values(), strict=True):
        upstream = RdpAccountant(orders.tolist(), NeighboringRelation.REPLACE_ONE)
        noise = GaussianDpEvent(float(z) / 2)
        upstream.compose(SampledWithoutReplacementDpEvent(CLIENTS, round(q * CLIENTS), noise), int(rounds))
        theirs = upstream.get_epsilon(delta)
        assert value <= theirs * (1 + 1e-9)
        assert value == pytest.approx(theirs, rel=1e-6) or z > 10


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("q", "z", "rounds"), [(1 / 60, 1.4, 180), (0.3, 0.7, 20), (1e-3, 0.5, 1000), (0.9, 5.0, 7)])
def test_no_cell_is_below_the_truth(q, z, rounds):
    """The lower bound meets the truth for Poisson sampling."""
    assert grid.epsilons(q, z, rounds, 1e-5) >= lower_bound.epsilon(times(poisson(q, z), rounds), delta=1e-5)


@settings(max_examples=50)
@given(length=st.integers(1, 40), least=st.integers(0, 39), left=st.floats(0.01, 3.0), right=st.floats(0.01, 3.0))
def test_the_search_finds_the_least_of_every_length(length, least, left, right):
    orders = np.linspace(1.5, 9.0, length)
    values = np.where(np.arange(length) < least, left, right) * np.abs(np.arange(length) - least)
    beyond = np.append(values, np.inf)
    found = grid._fibonacci_minimum(lambda index: beyond[np.minimum(index, length)], cells=1, length=len(orders))
    assert found[0] == values.min()


def test_shapes_broadcast():
    table = grid.epsilons(0.1, np.array([[1.0], [2.0]]), [1, 10, 100], 1e-5)
    assert table.shape == (2, 3)
    assert table[1, 2] == grid.epsilons(0.1, 2.0, 100, 1e-5)
    assert (np.diff(table, axis=1) > 0).all()
    assert (np.diff(table, axis=0) < 0).all()
    assert np.shape(grid.epsilons(0.1, 1.0, 1, 1e-5)) == ()


def test_nothing_sampled_costs_nothing_and_epsilon_is_never_negative():
    assert grid.epsilons(0.0, 1.0, 10, 1e-5) == 0.0
    assert grid.epsilons(1e-6, 10.0, 1, 0.9) == 0.0


def test_a_smaller_set_of_orders_never_lowers_a_cell():
    assert (grid.epsilons(**CELLS, orders=[2.0, 8.0, 33.0]) >= grid.epsilons(**CELLS) * (1 - 1e-12)).all()
    assert (grid.epsilons(**CELLS, orders=rdp.ORDERS[::-1]) == grid.epsilons(**CELLS)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, r"rounds=0: must be integers from 1"),
        ({"rounds": [1.5]}, r"rounds=1.5"),
        ({"rounds": math.nan}, r"rounds=nan"),
        ({"delta": 0.0}, r"delta=0.0: must be numbers strictly between 0 and 1"),
        ({"delta": [0.5, 1.0]}, r"delta=1"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier=-1.0"),
        ({"sampling_probability": 2}, r"sampling_probability=2.0"),
        ({"rounds": [1, 2], "delta": [0.1, 0.2, 0.3]}, r"shapes broadcast"),
        ({"orders": [1.0]}, r"orders=.*above 1"),
        ({"conversion": "best"}, r"conversion='best'"),
        ({"sampling": "all"}, r"sampling='all': must be one of poisson, fixed"),
    ],
)
def test_outside_the_domain_is_an_error(changes, message):
    setting = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "rounds": 5, "delta": 1e-5, **changes}
    refused(InvalidParameter, message, grid.epsilons, **setting)
