"""Factorisations of least error |A C^-1|_F sens(C), over banded and over buffered Toeplitz matrices.

Both searches are over positive, non-increasing columns, for which the sensitivity is exact. Gradients are in closed
form, in about T log T steps each, so a search takes a second; it ends in a local minimum, which is as private as any
other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter
from scipy.special import expit

from accounting import require
from accounting.arrays import Floats
from accounting.factorisation.toeplitz import buffered, square_root, worst_pattern
from accounting.factorisation.workload import Workload

_DIGITS = 9
_OPTIONS = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-11, "gtol": 1e-7}


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """Logarithm of the squared error at equal privacy, and its gradient in the first column of C."""

    workload: Workload
    separation: int
    participations: int | None

    def __call__(self, c: Floats) -> tuple[float, Floats]:
        rounds = self.workload.rounds
        who: dict[str, Any] = {"rounds": rounds, "separation": self.separation, "participations": self.participations}
        pattern = worst_pattern(c, **who)
        shown = float(pattern @ pattern)
        of_shown = 2 * worst_pattern(pattern, **who, back=True)[: len(c)]
        once = np.zeros(rounds)
        once[0] = 1.0
        d = lfilter([1.0], c, once)
        column, times = self.workload.column(d), self.workload.times
        off = float(times @ column**2)
        of_d = self.workload.columns_back(2 * times * column)
        returned = fftconvolve(d, d)[:rounds]  # d moves by -(d * d * change of c)
        of_off = -fftconvolve(of_d, returned[::-1])[rounds - 1 :][: len(c)]
        return float(np.log(shown) + np.log(off)), of_shown / shown + of_off / off


def banded(bands: int, workload: Workload, *, separation: int, participations: int | None = None) -> Floats:
    """Return the first column of a banded C of nearly least error at equal privacy. Shape: [bands] or [rounds].

    c_j = c_(j-1) expit(u_j), started at the square root. Rounded to 9 digits. bands = 1: independent noise.
    """
    width = min(require.count(bands=bands), workload.rounds)
    loss = _Loss(workload=workload, separation=separation, participations=participations)

    def of_ratios(u: Floats) -> tuple[float, Floats]:
        ratios = expit(u)
        c = np.concatenate([[1.0], np.cumprod(ratios)])
        value, gradient = loss(c)
        return value, (1 - ratios) * np.cumsum((gradient[1:] * c[1:])[::-1])[::-1]

    if width == 1:
        return np.ones(1)
    u = _least(of_ratios, np.log(2 * np.arange(1.0, width) - 1))
    found = np.round(np.concatenate([[1.0], np.cumprod(expit(u))]), _DIGITS)
    return found if loss(found)[0] <= loss(square_root(width))[0] else square_root(width)


def buffers(
    count: int, workload: Workload, *, separation: int, participations: int | None = None
) -> tuple[Floats, Floats]:
    """Return weights and decays of a BLT with `count` buffers of nearly least error at equal privacy. Shapes: [count].

    Decays start spread from 1/2 to 1 - 2/T. Rounded to 9 digits, weights downwards.
    """
    rounds, many = workload.rounds, require.count(buffers=count)
    loss = _Loss(workload=workload, separation=separation, participations=participations)
    lags = np.arange(rounds - 1, dtype=float)

    def parts(x: Floats) -> tuple[Floats, Floats]:
        grown = np.exp(np.minimum(x[many:], 50.0))
        return grown / (1 + grown.sum()), expit(x[:many])

    def of_parts(x: Floats) -> tuple[float, Floats]:
        weights, decays = parts(x)
        value, gradient = loss(buffered(weights, decays, rounds=rounds))
        powers = decays[:, None] ** lags
        of_weights = powers @ gradient[1:]
        of_decays = weights * ((powers[:, :-1] * lags[1:]) @ gradient[2:])
        of_x = weights * of_weights - weights * (weights @ of_weights)
        return value, np.concatenate([of_decays * decays * (1 - decays), of_x])

    first = 1 - np.geomspace(0.5, min(2 / rounds, 0.4), many)
    x = np.concatenate([np.log(first / (1 - first)), np.full(many, np.log(1.5 / many))])
    weights, decays = parts(_least(of_parts, x) if rounds > 2 else x)
    scale = 10.0**_DIGITS
    return np.floor(weights * scale) / scale, np.round(decays, _DIGITS)


def _least(loss: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options=_OPTIONS).x)
