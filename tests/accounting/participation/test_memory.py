"""Theorem 4 of docs/theory-participation.md: clients that remember their own rounds show no more, by quadrature.

Two rounds, one coordinate. What the client sends in the second depends on the first round's release and on whether it
took part in it; noise of the first is taken back in the second. Nothing here uses the accounts but the last test.
"""

import numpy as np
import pytest
from reference.shorthand import gaussian, times

from accounting import PoissonSampling
from accounting.compose.profiles import profile
from accounting.mechanisms import subsample

GRID = np.linspace(-9, 9, 361)
STEP = GRID[1] - GRID[0]
GAMMAS = np.exp([0.0, 0.3, 0.8])
LAWS = {
    "poisson": {(1, 1): 0.09, (1, 0): 0.21, (0, 1): 0.21, (0, 0): 0.49},
    "balls-and-bins": {(1, 0): 0.5, (0, 1): 0.5},
    "all": {(1, 1): 1.0},
}


def normal(x):
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def divergences(law, back, z, first, second, others=lambda came: 0.0):
    """Both hockey sticks of y_1 = x_1 + z g_1, y_2 = x_2 + back x_1 + z g_2, with the client and without, on a grid.

    first: what the client sends in round 1; second(y_1, came): in round 2; others(came): what others send in round 2.
    """
    y1, y2 = GRID[:, None], GRID[None, :]
    p, q = np.zeros((2, len(GRID), len(GRID)))
    for (one, two), chance in law.items():
        mean1 = one * first / z
        mean2 = (back * one * first + two * second(z * GRID, one) + others(one))[:, None] / z
        p += chance * normal(y1 - mean1) * normal(y2 - mean2)
        q += chance * normal(y1) * normal(y2 - others(one) / z)
    cell = STEP * STEP
    return np.array([[np.maximum(a - gamma * b, 0).sum() * cell for gamma in GAMMAS] for a, b in ((p, q), (q, p))])


def strategies(count, seed):
    """Random bounded functions of the first release, different for a client that came and one that did not."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        shape = rng.normal(size=(2, 3)) * 2
        first = float(rng.choice([1.0, -1.0, rng.uniform(-1, 1)]))
        yield (
            first,
            lambda y, came, shape=shape: np.clip(shape[came] @ np.array([np.ones_like(y), y, np.sin(3 * y)]), -1, 1),
        )


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("back", [0.0, 0.6])
@pytest.mark.parametrize("name", LAWS)
def test_a_client_with_memory_shows_no_more_than_the_pair(name, back):
    """25 strategies, six divergences each; the strategy of the pair attains them."""
    law = LAWS[name]
    most = divergences(law, back, 0.9, 1.0, lambda y, came: np.ones_like(y))
    for first, second in strategies(25, seed=7):
        assert np.all(divergences(law, back, 0.9, first, second) <= most + 1e-6)


def test_without_its_conditions_the_bound_is_exceeded():
    """Where the client's round decides what others send (a fixed size); where the matrix has an entry below 0."""
    law = LAWS["balls-and-bins"]
    most = divergences(law, 0.0, 0.9, 1.0, lambda y, came: np.ones_like(y))
    moved = divergences(law, 0.0, 0.9, 1.0, lambda y, came: np.ones_like(y), others=lambda came: 3.0 * came)
    assert np.any(moved > most + 0.01)
    law = LAWS["all"]
    most = divergences(law, -0.6, 0.9, 1.0, lambda y, came: np.ones_like(y))
    assert np.any(divergences(law, -0.6, 0.9, -1.0, lambda y, came: np.ones_like(y)) > most + 0.01)


def test_the_account_of_two_rounds_is_this_pair():
    most = divergences(LAWS["poisson"], 0.0, 0.9, 1.0, lambda y, came: np.ones_like(y))
    noise = gaussian(0.9, "zero-out")
    run = times(subsample(noise, PoissonSampling(probability=0.3)), 2)
    claimed = profile(run, accountant="pld")(np.log(GAMMAS))
    assert np.all(most.max(axis=0) <= claimed + 1e-5)
    assert np.all(most.max(axis=0) >= claimed - 1e-4)
