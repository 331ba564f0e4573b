"""Laws of sums of coins that sit at the ends c and 1-c."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Laws are kept above this. While alpha log((1-c)/c) stays below LARGEST_EXPONENT, what is dropped is below rounding:
# of relative size 1e-290 exp(600) K alpha^2 / c^2.
_SMALLEST_MASS = 1e-290
LARGEST_EXPONENT = 600.0


class Laws:
    """Laws of j0 coins at 1-c, K-1-j1 at c and the moving one at c; and how moving it tilts them. Made when needed."""

    def __init__(self, cohort: int, c: float) -> None:
        self.cohort, self.c = cohort, c
        self.mass, self.tilt = np.zeros((0, cohort + 1)), np.zeros((0, cohort + 1))
        self.start, self.stop = np.zeros(0, dtype=int), np.zeros(0, dtype=int)
        self._row = np.full((cohort, cohort), -1)

    def index(self, j0: Ints, j1: Ints) -> Ints:
        """Rows of the laws, after making those that are new."""
        wanted = np.unique(np.stack([j0, j1], axis=1)[self._row[j0, j1] < 0], axis=0)
        if len(wanted):
            self._row[wanted[:, 0], wanted[:, 1]] = len(self.mass) + np.arange(len(wanted))
            made = [self._law(int(a), int(b)) for a, b in wanted]
            kept = np.array([law > 0 for law, _ in made])
            self.mass = np.concatenate([self.mass, [law for law, _ in made]])
            self.tilt = np.concatenate([self.tilt, [tilt for _, tilt in made]])
            self.start = np.concatenate([self.start, kept.argmax(axis=1)])
            self.stop = np.concatenate([self.stop, kept.shape[1] - kept[:, ::-1].argmax(axis=1)])
        return np.asarray(self._row[j0, j1])

    def window(self, index: Ints) -> tuple[Floats, Floats]:
        """Masses and tilts of these laws, over the columns where any of them has mass."""
        columns = slice(int(self.start[index].min()), int(self.stop[index].max()))
        return self.mass[index, columns], self.tilt[index, columns]

    def _law(self, j0: int, j1: int) -> tuple[Floats, Floats]:
        others = _two_binomials(self.cohort - 1 - j1, self.c, j0, 1 - self.c)
        heads, tails = np.zeros(self.cohort + 1), np.zeros(self.cohort + 1)
        heads[1 : len(others) + 1], tails[: len(others)] = others, others
        mass = self.c * heads + (1 - self.c) * tails
        kept = mass > _SMALLEST_MASS
        tilt = np.where(kept, heads - tails, 0.0) / np.where(kept, mass, 1.0)
        return np.where(kept, mass, 0.0), tilt


def _two_binomials(n: int, p: float, m: int, q: float) -> Floats:
    """Law of the sum of n coins of probability p and m of probability q, by convolution of positive numbers."""
    from scipy.stats import binom

    return np.convolve(binom.pmf(np.arange(n + 1), n, p), binom.pmf(np.arange(m + 1), m, q))
