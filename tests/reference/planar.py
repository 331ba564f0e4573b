"""Hockey-stick divergences in the plane by integration on a grid, and vectors to try."""

import numpy as np

STEP = 0.08


def points_in_the_unit_disc(count: int, *, seed: int) -> list[np.ndarray]:
    """(1, 0), (-1, 0), the origin, then random points, half of them on the rim."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, count)
    radius = np.where(np.arange(count) % 2, 1.0, np.sqrt(rng.uniform(0, 1, count)))
    random = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return [np.array([1.0, 0.0]), np.array([-1.0, 0.0]), np.zeros(2), *random]


def planar_hockey_stick(p, q, gamma: float) -> float:
    """Integral of max(0, p - gamma q) for mixtures [(weight, mean vector)] of unit Gaussians; good to about 1e-4."""
    reach = max(float(np.abs(mean).max()) for _, mean in [*p, *q]) + 6
    axis = np.arange(-reach, reach + STEP, STEP)

    def density(mixture):
        return sum(
            w * np.exp(-((axis[:, None] - m[0]) ** 2) / 2) * np.exp(-((axis[None, :] - m[1]) ** 2) / 2)
            for w, m in mixture
        )

    return float(np.maximum(density(p) - gamma * density(q), 0.0).sum() * STEP**2 / (2 * np.pi))
