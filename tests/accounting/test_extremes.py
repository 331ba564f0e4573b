"""At every extreme setting: a finite or infinite epsilon, never a NaN, never a stray exception or warning."""

import itertools
import math

import pytest
from reference.shorthand import fixed, gaussian, poisson, times

from accounting import accountant, lower_bound
from accounting.errors import AccountingError

SIGMAS = [1e-9, 1e-3, 0.03, 30.0, 1e9]
ROUNDS = [1, 10**5, 10**15]
DELTAS = [1e-300, 1e-11, 1 - 1e-12]


def mechanisms(sigma):
    yield gaussian(sigma, "replace-one")
    for adjacency in ("add-remove", "replace-one"):
        yield from (poisson(q, sigma, adjacency) for q in (1e-300, 1e-9, 0.5, 1 - 2**-53))
    for adjacency in ("zero-out", "replace-one"):
        yield from (fixed(r, n, sigma, adjacency) for r, n in ((1, 10**15), (1, 2), (10**15 - 1, 10**15), (3, 3)))


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rounds", ROUNDS)
def test_answers_are_numbers_or_clear_refusals(sigma, rounds):
    refusals = 0
    for mechanism, delta in itertools.product(mechanisms(sigma), DELTAS):
        composed = times(mechanism, rounds)
        try:
            epsilon = accountant.epsilon(composed, delta=delta)
        except AccountingError:
            refusals += 1
            continue
        assert type(epsilon) is float
        assert epsilon >= 0  # not NaN
        below = lower_bound.epsilon(composed, delta=delta)
        assert 0 <= below <= epsilon or math.isinf(epsilon)
        assert math.isfinite(below)
    if rounds < 10**15:
        assert refusals <= 2 * len(DELTAS) * 4  # Poisson replace-one has no Renyi bound to fall back on
