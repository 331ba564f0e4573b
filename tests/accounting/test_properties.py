"""What must hold for every mechanism: directions, consistency between accountants, order of composition."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.shorthand import fixed, gaussian, poisson, times

from accounting.compose import accountant, pld
from accounting.mechanisms import Composed

# Where two computations differ by their grids only, they may disagree by this much.
GRID = 2e-3

kinds = st.sampled_from(
    ["poisson add-remove", "poisson zero-out", "poisson replace-one", "fixed replace-one", "fixed zero-out"]
)
noise = st.floats(0.3, 20.0)
rounds = st.integers(1, 200)
deltas = st.floats(1e-10, 0.1)
rates = st.integers(1, 100)  # percent


def make(kind, percent, sigma):
    sampling, adjacency = kind.split()
    if sampling == "poisson":
        return poisson(percent / 100, sigma, adjacency)
    return fixed(percent, 100, sigma, adjacency)


def cost(kind, percent, sigma, count, delta):
    return accountant.epsilon(times(make(kind, percent, sigma), count), delta=delta)


def not_above(smaller, larger):
    return smaller <= larger * (1 + GRID) + 1e-9


@settings(max_examples=5)
@given(kind=kinds, percents=st.tuples(rates, rates), sigma=noise, count=rounds, delta=deltas)
def test_a_larger_cohort_costs_more(kind, percents, sigma, count, delta):
    low, high = sorted(percents)
    assert not_above(cost(kind, low, sigma, count, delta), cost(kind, high, sigma, count, delta))


@pytest.mark.slow
@settings(max_examples=8)
@given(percent=rates, sigma=noise, count=rounds, delta=deltas)
def test_a_secret_cohort_size_never_costs_more_than_a_fixed_one(percent, sigma, count, delta):
    for adjacency in ("zero-out", "replace-one"):
        secret = cost(f"poisson {adjacency}", percent, sigma, count, delta)
        assert not_above(secret, cost(f"fixed {adjacency}", percent, sigma, count, delta))


@settings(max_examples=6)
@given(
    first=st.tuples(st.integers(1, 100), noise, st.integers(1, 30)),
    second=st.tuples(st.integers(1, 100), noise, st.integers(1, 30)),
    adjacency=st.sampled_from(["add-remove", "replace-one", "zero-out"]),
    delta=deltas,
)
def test_composition_ignores_the_order(first, second, adjacency, delta):
    parts = tuple((poisson(percent / 100, sigma, adjacency), count) for percent, sigma, count in (first, second))
    forwards, backwards = Composed(parts=parts), Composed(parts=parts[::-1])
    expected = accountant.epsilon(backwards, delta=delta)
    # A transform rounds each order in its own way: no more than the probability that is set aside for it.
    slack = pld.composition_slack(first[2] + second[2])
    for one, other in ((forwards, backwards), (backwards, forwards)):
        most = accountant.epsilon(other, delta=delta - slack)
        assert accountant.epsilon(one, delta=delta) <= most * (1 + 1e-9) + 1e-12
    assert not_above(max(accountant.epsilon(Composed(parts=(part,)), delta=delta) for part in parts), expected)


@given(sigma=noise, count=rounds, delta=deltas, adjacency=st.sampled_from(["add-remove", "replace-one", "zero-out"]))
def test_plain_gaussians_compose_to_one(sigma, count, delta, adjacency):
    together = accountant.epsilon(gaussian(sigma / math.sqrt(count), adjacency), delta=delta)
    assert accountant.epsilon(times(gaussian(sigma, adjacency), count), delta=delta) == pytest.approx(
        together, rel=1e-10
    )


@pytest.mark.parametrize(
    "mechanism", [poisson(1.0, 2.0), poisson(1.0, 2.0, "replace-one"), fixed(7, 7, 2.0), fixed(7, 7, 2.0, "zero-out")]
)
def test_drawing_everybody_costs_what_full_participation_costs(mechanism):
    plain = accountant.epsilon(times(mechanism.mechanism, 20), delta=1e-6)
    assert plain <= accountant.epsilon(times(mechanism, 20), delta=1e-6) <= plain * 1.0005


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
def test_drawing_nobody_costs_nothing(adjacency):
    assert accountant.epsilon(times(poisson(0.0, 0.01, adjacency), 10**6), delta=1e-5) == 0.0


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("kind", ["poisson add-remove", "poisson replace-one", "fixed replace-one", "fixed zero-out"])
def test_as_the_rate_falls_to_nothing_so_does_the_cost(kind):
    sampling, adjacency = kind.split()
    costs = []
    for clients in (10**3, 10**5, 10**7):
        mechanism = poisson(1 / clients, 1.0, adjacency) if sampling == "poisson" else fixed(1, clients, 1.0, adjacency)
        costs.append(accountant.epsilon(times(mechanism, 10), delta=1e-5))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 1e-3
