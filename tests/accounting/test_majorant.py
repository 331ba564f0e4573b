"""Bounds by slopes: against the upper hull of the samples, for functions that are far from concave."""

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from accounting import majorant

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
    found = majorant.bound(step, t, phi, certified, ((1e-5, 9),))
    assert np.all(found >= hull * (1 - 1e-12))
    assert np.all(found <= hull * (1 + 2e-5))
