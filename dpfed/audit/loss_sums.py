"""The law of a sum of privacy losses of independent coordinates, on a grid, from above."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from accounting.compose.loss_law import LossLaw

Floats = NDArray[np.float64]

_LARGEST_GRID = 1_000_000
_FINENESS = 0.01  # grid spacing over the root mean square spread of one coordinate's loss
_CUT = 1e-16  # tails that one convolution moves to safer places


def _losses(p: Floats, q: Floats) -> Floats:
    """log p/q; +inf where only q is 0, -inf where p is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log(p) - np.log(q)
    return np.where(p > 0, loss, -np.inf)


def spacing(p: Floats, q: Floats) -> float:
    """Fine against one coordinate's spread of loss, coarse enough for the sum's support to fit in memory."""
    widths, variances = [], []
    for one, other in ((p, q), (q, p)):
        loss = _losses(one, other)
        finite = np.where(np.isfinite(loss), loss, 0.0)
        mean = (one * finite).sum(axis=1, keepdims=True)
        variances.append(float((one * np.square(finite - mean) * np.isfinite(loss)).sum()))
        widths.append(finite.max(axis=1) - finite.min(axis=1))
    # The sum is spread over its standard deviations and, if rarely, over the widest single coordinate.
    spread, widest = math.sqrt(max(variances)), max(float(width.max()) for width in widths)
    width = min(max(float(width.sum()) for width in widths), 60 * spread + 2 * widest)
    return max(_FINENESS * spread / math.sqrt(len(p)), width / _LARGEST_GRID, 1e-12)


def sum_of_losses(p: Floats, q: Floats, spacing: float) -> LossLaw:
    """The law under P of the summed loss, dominating it: equal coordinates by powers, then pairwise like a tree."""
    pairs, counts = np.unique(np.concatenate([p, q], axis=1), axis=0, return_counts=True)
    half = p.shape[1]
    laws = [_one_coordinate(row[:half], row[half:], spacing) for row in pairs]
    laws = [law.repeated(int(n), cut=_CUT) for law, n in zip(laws, counts, strict=True)]
    while len(laws) > 1:
        laws = list(_neighbours_composed(laws))
    return laws[0]


def _neighbours_composed(laws: list[LossLaw]) -> Iterator[LossLaw]:
    for i in range(0, len(laws) - 1, 2):
        yield laws[i].plus(laws[i + 1], cut=_CUT)
    if len(laws) % 2:
        yield laws[-1]


def _one_coordinate(p: Floats, q: Floats, spacing: float) -> LossLaw:
    """The losses of one coordinate, each split over the two grid points around it.

    An atom (P, Q) of loss l between a = k spacing and b = a + spacing becomes (u, u e^-a) and (P - u, (P - u) e^-b)
    with u e^-a + (P - u) e^-b = Q, so u = P (e^(a-l) - e^(a-b)) / (1 - e^(a-b)).
    """
    loss = _losses(p, q)
    finite = np.isfinite(loss)
    if not finite.any():
        return LossLaw(spacing=spacing, lowest=0, masses=np.zeros(1), infinite=1.0)
    cells = np.floor(loss[finite] / spacing).astype(int)
    rest = np.clip(loss[finite] - cells * spacing, 0.0, spacing)
    share = np.exp(-rest) * np.expm1(rest - spacing) / np.expm1(-spacing)
    masses = np.zeros(int(cells.max() - cells.min()) + 2)
    np.add.at(masses, cells - cells.min(), p[finite] * share)
    np.add.at(masses, cells - cells.min() + 1, p[finite] * (1 - share))
    infinite = float(p[np.isposinf(loss)].sum())
    return LossLaw(spacing=spacing, lowest=int(cells.min()), masses=masses, infinite=infinite)
