"""Bounds by slopes: against the upper hull of the samples, for functions that are far from concave."""

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from accounting.bernoulli import majorant

FUNCTIONS = {
    "concave": lambda u: np.sqrt(u),
    "convex": lambda u: u**2,
    "a step": lambda u: 1 / (1 + np.exp(-40 * (u - 0.5))) - 1 / (1 + np.exp(20)),
    "two humps": lambda u: np.sin(9 * u) ** 2 / 3 + 3.2 * u,
}


def hull_at(u, phi, step):
    """The least concave majorant of the samples and of 0 at 0, by a convex hull in the plane."""
    points = np.column_stack([[0.0, *u, u[-1], 0.0], [0.0, *phi, -9.0, -9.0]])
    corners = points[np.sort(ConvexHull(points).vertices)][:-2]
    return np.interp(step, *corners.T)


@pytest.mark.parametrize("step", [0.001, 0.1, 0.3, 0.6, 1.0])
def test_the_bound_is_the_hull(step):
    """The samples are all there is, so that the bound is exact but for what the slope is raised, here 1e-5."""
    t = majorant.sample_steps(step, 1.0, 60)
    phi = np.array([function(t * t) for function in FUNCTIONS.values()])

    def certified(slope, tolerance, most):
        return np.maximum((phi - slope[:, None] * t * t).max(axis=1), 0.0)

    hull = np.array([hull_at(t * t, row, step) for row in phi])
    found = majorant.majorant_bound(step, t, phi, certified, ((1e-5, 9),))
    assert np.all(found >= hull * (1 - 1e-12))
    assert np.all(found <= hull * (1 + 2e-5))


@pytest.mark.parametrize("straight", [True, False])
def test_above_a_chord_the_best_move_is_found(straight):
    """The slope is chosen so that a given move inside is where log(1 + F)/(alpha - 1) - slope t^2 is stationary."""
    rng = np.random.default_rng(4)
    n = 300
    alpha, t0, length = 1 + 10 ** rng.uniform(-2, 2, n), rng.uniform(0.05, 0.5, n), rng.uniform(0.01, 0.5, n)
    f0, best = 10 ** rng.uniform(-6, 2, n), t0 + length * rng.uniform(0.05, 0.95, n)
    rise = (1 + f0) / t0 * (rng.uniform(0.01, 0.9, n) if straight else rng.uniform(1.1, 9.0, n))  # 1 + F(0) above 0
    f1, at_best = f0 + rise * length, f0 + rise * (best - t0)
    slope = rise / (1 + at_best) / (alpha - 1) / (2 * best)
    value = np.log1p(at_best) / (alpha - 1) - slope * best**2
    found = majorant.supremum_above_chord(alpha, slope, t0, t0 + length, f0, f1)
    assert found == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert np.all(found >= value - 1e-15 * np.abs(value))
