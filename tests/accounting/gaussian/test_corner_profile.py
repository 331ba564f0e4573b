"""Corners and covers of fixed-size configurations: against another quadrature, and random triples of vectors."""

import math

import numpy as np
import pytest
import scipy

from accounting.gaussian import configurations
from accounting.gaussian.configurations import RIGHT, Arc, Box, FixedSizeRound, all_arcs, all_triangles

EPSILONS = np.array([0.0, 1e-3, 0.03, 0.2, 0.7, 1.5, 3.0])


def divergence(epsilon, q, x0, a, b, step=0.01):
    """H_gamma of (1-q) N(x0) + q N(a) from (1-q) N(x0) + q N(b), gamma >= 1: the supremum on lines towards b from a.

    On each such line the best set is where the sum of two exponentials is below 1: of one that rises and one that does
    not fall it is a half-line, else an interval; both ends by bisection.
    """
    a, b, x0 = (np.asarray(v, dtype=float) for v in (a, b, x0))
    if np.allclose(a, b):
        return np.zeros(len(epsilon))
    along = (b - a) / np.linalg.norm(b - a)
    across = np.array([-along[1], along[0]])
    far, (u, v) = np.linalg.norm(b - a), ((x0 - a) @ along, (x0 - a) @ across)
    y = np.arange(-9, 9, step)
    eps = np.asarray(epsilon)[:, None]
    with np.errstate(divide="ignore"):
        log_w = np.log((1 - q) / q * np.expm1(eps)) + v * y - (u * u + v * v) / 2

    def total(x):
        return np.logaddexp(log_w + u * x, eps + far * x - far * far / 2)

    if u >= 0:
        low, high = np.full(log_w.shape, -60.0), np.full(log_w.shape, 60.0)
        bottom = low
    else:  # the sum falls and then rises: its least value by its derivative
        with np.errstate(invalid="ignore"):
            bottom = (log_w + math.log(-u) - eps + far * far / 2 - math.log(far)) / (far - u)
        bottom = np.clip(bottom, -60, 60)
        low, high = bottom, np.full(log_w.shape, 60.0)
    exists = total(bottom) < 0
    right = bisected(lambda x: total(x) < 0, low, high)
    left = (
        np.full(log_w.shape, -np.inf) if u >= 0 else bisected(lambda x: total(x) >= 0, np.full_like(low, -60), bottom)
    )

    def mass(mean):
        return scipy.special.ndtr(right - mean) - scipy.special.ndtr(left - mean)

    gain = mass(0) - np.exp(np.minimum(log_w + u * u / 2, 700)) * mass(u) - np.exp(eps) * mass(far)
    return (
        q * (np.where(exists, np.maximum(gain, 0), 0) * np.exp(-y * y / 2)).sum(axis=1) * step / math.sqrt(2 * math.pi)
    )


def bisected(holds, low, high):
    low, high = low.copy(), high.copy()
    for _ in range(60):
        middle = (low + high) / 2
        yes = holds(middle)
        low, high = np.where(yes, middle, low), np.where(yes, high, middle)
    return low


def corner_of(near, far, angle):
    return np.array([near * math.cos(angle), near * math.sin(angle)]), np.zeros(2), np.array([far, 0.0])


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.4, 4.0])
def test_corner_is_another_quadrature(sigma):
    rng = np.random.default_rng(3)
    for _ in range(5):
        near, far, angle = rng.uniform(0, 2 / sigma), rng.uniform(0.3, 2) / sigma, rng.uniform(0, math.pi / 2)
        expected = divergence(EPSILONS, 0.05, *corner_of(near, far, angle))
        found = configurations.corner(EPSILONS, sampling_probability=0.05, near=near, far=far, angle=angle)
        np.testing.assert_allclose(found, expected, rtol=2e-9, atol=1e-15)


def test_a_coarser_quadrature_is_noticed(monkeypatch):
    """Planted: the fixed step of 0.25 at sigma = 0.3 and an obtuse angle, which comes out too small."""
    corner = {"sampling_probability": 0.05, "near": 0.5 / 0.3, "far": 0.5 / 0.3, "angle": 2.8}
    right = configurations.corner(EPSILONS, **corner)
    monkeypatch.setattr(configurations, "_step", lambda near, far, half: 0.25)
    wrong = configurations.corner(EPSILONS, **corner)
    assert np.max(np.abs(wrong / right - 1)[right > 1e-12]) > 1e-7  # 1e-9 is added


def test_ends_of_the_angle():
    row = configurations.collinear_corner(EPSILONS, sampling_probability=0.1, near=1.0, far=0.7)
    np.testing.assert_allclose(
        row, configurations.corner(EPSILONS, sampling_probability=0.1, near=1.0, far=0.7, angle=0.0), rtol=1e-9
    )
    across = configurations.opposite_corner(EPSILONS, sampling_probability=0.1, distance=0.7)
    near = divergence(EPSILONS, 0.1, *corner_of(0.7, 0.7, math.pi), step=0.1)
    np.testing.assert_allclose(across, near, rtol=1e-8, atol=1e-14)


def uniform_cover(times):
    cells = all_triangles()
    for _ in range(times):
        cells = [part for cell in cells for part in cell.parts()]
    return cells


def covered(triple, cells, of, q):
    """Whether some cell is above the triple's profile in both orders, at every loss."""
    x0, a, b = triple
    forth, back = divergence(of.losses, q, x0, a, b, 0.05), divergence(of.losses, q, x0, b, a, 0.05)
    profiles = (cell.profiles(of) for cell in cells)
    return any(np.all(forth <= one + 1e-13) and np.all(back <= two + 1e-13) for one, two in profiles)


def random_triple(rng, s):
    points = rng.normal(size=(3, 2))
    lengths = s * np.where(rng.random(3) < 0.6, 1.0, rng.random(3) ** 0.5)
    return points / np.linalg.norm(points, axis=1)[:, None] * lengths[:, None]


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("q", "sigma"), [(1 / 60, 1.4), (0.3, 0.8)])
def test_random_triples_are_below_a_cell(q, sigma, count):
    rng = np.random.default_rng(8)
    of = FixedSizeRound(q=q, s=1 / sigma, losses=EPSILONS)
    cells = uniform_cover(2)
    assert all(covered(random_triple(rng, of.s), cells, of, q) for _ in range(count))


def test_a_missing_cell_is_noticed():
    """Planted: without the cells of alpha near 0, the client that moves the sum most is not covered."""
    of = FixedSizeRound(q=1 / 60, s=1 / 1.4, losses=EPSILONS)
    s = of.s
    cells = [cell for cell in uniform_cover(2) if isinstance(cell, Box) and cell.alpha[0] > 0]
    assert not covered(np.array([[-s, 0.0], [s, 0.0], [-s, 0.0]]), cells, of, of.q)


@pytest.mark.parametrize("restored", [False, True])
def test_random_pairs_are_below_an_arc(restored):
    rng = np.random.default_rng(9)
    q, of = 0.1, FixedSizeRound(q=0.1, s=0.8, losses=EPSILONS)
    arcs = all_arcs(restored=restored)
    for _ in range(25):
        x0, a, _ = random_triple(rng, of.s)
        triple = (x0, np.zeros(2), a) if restored else (x0, a, np.zeros(2))
        assert covered(triple, arcs, of, q)


def test_cells_leave_no_gap():
    """Parts share their bounds, as whole numbers, and together have the area of the cell but for obtuse corners."""
    for cell in uniform_cover(3):
        (a0, a1), (b0, b1) = cell.alpha, cell.beta
        assert a1 + b1 > RIGHT
        area = sum((p.alpha[1] - p.alpha[0]) * (p.beta[1] - p.beta[0]) for p in cell.parts())
        whole = (a1 - a0) * (b1 - b0)
        assert area == whole or (area * 4 == whole * 3 and a0 + b0 < RIGHT)
    parts = list(Arc(theta=(0, 2 * RIGHT), restored=False).parts())
    assert [part.theta for part in parts] == [(0, RIGHT), (RIGHT, 2 * RIGHT)]
