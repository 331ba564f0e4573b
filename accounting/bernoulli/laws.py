"""Laws of sums of coins that sit at the ends c and 1-c."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Laws are kept above this. While alpha log((1-c)/c) stays below LARGEST_EXPONENT, what is dropped is below rounding:
# of relative size 1e-290 exp(600) K alpha^2 / c^2.
_SMALLEST_MASS = 1e-290
LARGEST_EXPONENT = 600.0
_CUT = 1e-300


class Laws:
    """Laws of j0 coins at 1-c, K-1-j1 at c and the moving one at c; and how moving it tilts them. Made when needed.

    Of each the columns with mass are held, some 37 standard deviations to either side: memory grows with sqrt K, not K.
    """

    def __init__(self, cohort: int, c: float) -> None:
        self.cohort, self.c = cohort, c
        self.mass, self.tilt, self.width = np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=int)
        self._keys, self._rows = np.zeros(0, dtype=int), np.zeros(0, dtype=int)

    def index(self, j0: Ints, j1: Ints) -> Ints:
        """Rows of the laws, after making those that are new."""
        keys = j0 * self.cohort + j1
        new = np.setdiff1d(keys, self._keys)
        if len(new):
            self._hold(new, [self._law(*divmod(int(key), self.cohort)) for key in new])
        return np.asarray(self._rows[np.searchsorted(self._keys, keys)])

    def window(self, index: Ints) -> tuple[Floats, Floats]:
        """Masses and tilts of these laws, each from its own first column on, as wide as the widest."""
        columns = slice(0, int(self.width[index].max()))
        return self.mass[index, columns], self.tilt[index, columns]

    def _hold(self, keys: Ints, made: list[tuple[Floats, Floats]]) -> None:
        widths = np.array([len(mass) for mass, _ in made])
        widest = max(self.mass.shape[1], int(widths.max()))
        rows = len(self.mass) + np.arange(len(made))
        self.mass = _stacked(self.mass, [mass for mass, _ in made], widest)
        self.tilt = _stacked(self.tilt, [tilt for _, tilt in made], widest)
        self.width = np.concatenate([self.width, widths])
        self._keys, self._rows = np.concatenate([self._keys, keys]), np.concatenate([self._rows, rows])
        order = np.argsort(self._keys)
        self._keys, self._rows = self._keys[order], self._rows[order]

    def _law(self, j0: int, j1: int) -> tuple[Floats, Floats]:
        # Of j0 coins at 1-c the tails are coins at c: the law of their heads is that of the tails, reversed.
        others = np.convolve(_binomial(self.cohort - 1 - j1, self.c), _binomial(j0, self.c)[::-1])
        heads, tails = np.append(0.0, others), np.append(others, 0.0)
        mass = self.c * heads + (1 - self.c) * tails
        kept = np.flatnonzero(mass > _SMALLEST_MASS)
        inside = slice(int(kept[0]), int(kept[-1]) + 1)
        return mass[inside], (heads - tails)[inside] / mass[inside]


def _stacked(rows: Floats, more: list[Floats], width: int) -> Floats:
    """[rows + more, width], zero beyond each row's end."""
    stacked = np.zeros((len(rows) + len(more), width))
    stacked[: len(rows), : rows.shape[1]] = rows
    for place, row in enumerate(more, start=len(rows)):
        stacked[place, : len(row)] = row
    return stacked


@lru_cache(maxsize=1024)
def _binomial(n: int, p: float) -> Floats:
    """Law of the sum of n coins of probability p, its tails cut off: what that takes from a law of `Laws` is far below
    what those leave out themselves."""
    from scipy.stats import binom

    law = binom.pmf(np.arange(n + 1), n, p)
    kept = np.flatnonzero(law > _CUT)
    return np.asarray(law[kept[0] : kept[-1] + 1])
