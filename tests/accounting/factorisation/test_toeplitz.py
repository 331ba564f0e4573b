"""Banded Toeplitz factorisations against matrices, enumeration of all patterns, and published figures."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import solve_triangular, toeplitz

from accounting.errors import InvalidParameter
from accounting.factorisation import prefix_error, sensitivity, square_root
from accounting.factorisation.toeplitz import inverse


def matrix(coefficients, rounds):
    column = np.zeros(rounds)
    column[: len(coefficients)] = coefficients[:rounds]
    return np.tril(toeplitz(column))


def test_the_square_of_all_bands_is_the_matrix_of_prefix_sums():
    root = matrix(square_root(12), 12)
    assert root @ root == pytest.approx(np.tril(np.ones((12, 12))))


@pytest.mark.parametrize(("bands", "factor"), [(1, 16.477), (10, 6.710), (30, 4.975), (60, 4.511), (180, 5.165)])
def test_golden_errors_at_three_participations(bands, factor):
    """Rms of prefix sums times sensitivity, T 180, 60 rounds apart. jax_privacy 2 optimises 60 bands to 4.50."""
    c = square_root(bands)
    assert sensitivity(c, rounds=180, separation=60) * prefix_error(c, rounds=180) == pytest.approx(factor, abs=1e-3)


@pytest.mark.parametrize("bands", [1, 3, 8])
def test_errors_and_inverses_are_those_of_the_matrices(bands):
    c, ones = matrix(square_root(bands), 8), np.tril(np.ones((8, 8)))
    b = solve_triangular(c.T, ones.T, lower=False).T
    assert prefix_error(square_root(bands), rounds=8) == pytest.approx(np.linalg.norm(b) / math.sqrt(8))
    assert inverse(square_root(bands), rounds=8) == pytest.approx(np.linalg.inv(c)[:, 0])


@pytest.mark.parametrize("c", [[1.0], [1.0, 0.5, 0.375], [1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 0.2, 0.2, 0.1, 0.0, 0.0]])
@pytest.mark.parametrize(("separation", "most"), [(1, 2), (2, 9), (3, 2), (4, 9)])
def test_sensitivity_is_the_largest_over_all_patterns(c, separation, most):
    rounds, c_matrix = 9, matrix(c, 9)
    worst = 0.0
    for pattern in itertools.product((0, 1), repeat=rounds):
        places = np.flatnonzero(pattern)
        if len(places) <= most and (len(places) < 2 or np.diff(places).min() >= separation):
            worst = max(worst, float(np.linalg.norm(c_matrix[:, places].sum(axis=1))))
    assert sensitivity(c, rounds=rounds, separation=separation, participations=most) == pytest.approx(worst)


def test_no_directions_of_updates_show_more():
    """2,000 random choices of unit vectors: never above the sensitivity."""
    rng, c = np.random.default_rng(3), square_root(6)
    bound = sensitivity(c, rounds=9, separation=3)
    for _ in range(2000):
        updates = np.zeros((9, 4))
        for place in (0, 3, 6):
            one = rng.standard_normal(4)
            updates[place] = one / np.linalg.norm(one)
        assert np.linalg.norm(matrix(c, 9) @ updates) <= bound + 1e-12


@pytest.mark.parametrize("bad", [[], [0.5], [1.0, 1.1], [1.0, -0.1], [[1.0]], [1.0, math.nan]])
def test_coefficients_that_no_proof_covers(bad):
    with pytest.raises(InvalidParameter, match="coefficients"):
        sensitivity(bad, rounds=5, separation=2)
