"""At every extreme setting: a finite or infinite epsilon, never a NaN, never a stray exception or warning."""

import itertools
import math
import random

import pytest
from reference.shorthand import fixed, gaussian, poisson, times

from accounting.compose import accountant, lower_bound
from accounting.errors import AccountingError

SIGMAS = [1e-9, 1e-3, 0.03, 30.0, 1e9]
ROUNDS = [1, 10**5, 10**15]
DELTAS = [1e-300, 1e-11, 1e-4, 1 - 1e-12]


def mechanisms(sigma):
    yield gaussian(sigma, "replace-one")
    for adjacency in ("add-remove", "replace-one"):
        yield from (poisson(q, sigma, adjacency) for q in (1e-300, 1e-9, 0.5, 1 - 2**-53))
    for adjacency in ("zero-out", "replace-one"):
        yield from (fixed(r, n, sigma, adjacency) for r, n in ((1, 10**15), (1, 2), (10**15 - 1, 10**15), (3, 3)))


def settings(sigma, count):
    """A seeded choice of all combinations."""
    everything = list(itertools.product(mechanisms(sigma), ROUNDS, DELTAS))
    return random.Random(f"{sigma}").sample(everything, count)


@pytest.mark.slow_but_one_in(10)
@pytest.mark.parametrize(
    ("mechanism", "rounds", "delta"), [setting for sigma in SIGMAS for setting in settings(sigma, 4)]
)
def test_the_answer_is_a_number_or_a_clear_refusal(mechanism, rounds, delta):
    composed = times(mechanism, rounds)
    below = lower_bound.epsilon(composed, delta=delta)
    assert 0 <= below < math.inf
    try:
        epsilon = accountant.epsilon(composed, delta=delta)
    except AccountingError:
        return
    assert type(epsilon) is float
    assert epsilon >= below  # not NaN
