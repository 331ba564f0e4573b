"""Certified suprema: known ones, and searches that end early."""

import numpy as np
import pytest

from accounting.bernoulli.majorant import certified_supremum


def evaluate(problem, low, high):
    """-(x - p/10)^2 - |y - 0.3| for problem p: 0 at its top. Bounded by the nearest point of the box."""
    centre = np.stack([problem / 10, np.full(len(problem), 0.3)], axis=1)
    gap = np.abs(np.clip(centre, low, high) - centre)
    middle = np.abs((low + high) / 2 - centre)
    return -(gap[:, 0] ** 2) - gap[:, 1], -(middle[:, 0] ** 2) - middle[:, 1]


def linear(problem, low, high):
    """x + y, bounded with a slack that shrinks with the box; attained at the middle."""
    return high.sum(axis=1) + (high - low).sum(axis=1), (low + high).sum(axis=1) / 2


def search(function, tolerance, problems=3, **limits):
    low, high = np.zeros((problems, 2)), np.ones((problems, 2))
    return certified_supremum(
        function, low, high, problem=np.arange(problems), tolerance=np.full(problems, tolerance),
        widths=lambda a, b: b - a, **limits,
    )  # fmt: skip


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
def test_known_suprema(tolerance):
    found = search(evaluate, tolerance)
    assert np.all(found >= 0)
    assert np.all(found <= tolerance)


@pytest.mark.parametrize("tolerance", [0.3, 1e-3])
def test_at_a_corner(tolerance):
    found = search(linear, tolerance)
    assert np.all(found >= 2)
    assert np.all(found <= 2 + tolerance)


@pytest.mark.parametrize("limits", [{"rounds": 0}, {"rounds": 1}, {"rounds": 5}, {"most": 1}, {"most": 20}])
def test_an_upper_bound_where_it_ends_early(limits):
    found = search(linear, 1e-9, **limits)
    assert np.all(found >= 2)
    assert np.all(found > search(linear, 1e-2))


def test_problems_do_not_mix():
    """Each problem has the supremum of its own boxes, and its own tolerance."""

    def shifted(problem, low, high):
        return high[:, 0] + 10.0 * problem, low[:, 0] + 10.0 * problem

    found = certified_supremum(
        shifted, np.array([[0.0], [0.5], [0.0]]), np.array([[0.5], [1.0], [2.0]]), problem=np.array([0, 0, 1]),
        tolerance=np.array([1e-6, 0.5]), widths=lambda a, b: b - a,
    )  # fmt: skip
    assert 1 <= found[0] <= 1 + 1e-6
    assert 12 <= found[1] <= 12.5


def test_boxes_within_the_tolerance_are_dropped_at_once():
    """A constant is settled by one look at each box, even at tolerance 0; so is a bound exactly the tolerance above."""
    looks = []

    def constant(problem, low, high):
        looks.append(len(problem))
        return np.full(len(problem), 1.5), np.ones(len(problem))

    assert search(constant, 0.5) == pytest.approx([1.5, 1.5, 1.5])
    assert looks == [3]
