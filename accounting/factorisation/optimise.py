"""Optimisation of banded and buffered Toeplitz matrices C for the smallest error |A C^-1|_F sens(C).

Both searches are over positive, non-increasing columns, for which the sensitivity is exact. Gradients have a closed
form and take about T log T steps each, so a search takes a second. It ends in a local minimum; privacy does not depend
on reaching the global one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter
from scipy.special import expit

from accounting import require
from accounting.arrays import Floats
from accounting.factorisation.toeplitz import Workload, buffered, square_root, worst_pattern

_DIGITS = 9
_OPTIONS = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-11, "gtol": 1e-7}


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """Logarithm of the squared error at equal privacy, and its gradient with respect to the first column of C."""

    workload: Workload
    separation: int
    participations: int | None

    def __call__(self, c: Floats) -> tuple[float, Floats]:
        rounds = self.workload.rounds
        separation, participations = self.separation, self.participations
        pattern_of = partial(worst_pattern, rounds=rounds, separation=separation, participations=participations)
        pattern = pattern_of(c)
        squared_sensitivity = float(pattern @ pattern)
        gradient_of_sensitivity = 2 * pattern_of(pattern, back=True)[: len(c)]
        unit_vector = np.zeros(rounds)
        unit_vector[0] = 1.0
        d = lfilter([1.0], c, unit_vector)
        column, times = self.workload.column(d), self.workload.squared_weights
        squared_error = float(times @ column**2)
        gradient_of_inverse = self.workload.transposed_column(2 * times * column)
        returned = fftconvolve(d, d)[:rounds]  # the change of d is -(d * d * change of c)
        gradient_of_error = -fftconvolve(gradient_of_inverse, returned[::-1])[rounds - 1 :][: len(c)]
        gradient = gradient_of_sensitivity / squared_sensitivity + gradient_of_error / squared_error
        return float(np.log(squared_sensitivity) + np.log(squared_error)), gradient


def banded(bands: int, workload: Workload, *, separation: int, participations: int | None = None) -> Floats:
    """Return the first column of a banded C of nearly the smallest error at equal privacy. Shape: [bands] or [rounds].

    It is parametrised as c_j = c_(j-1) expit(u_j) and rounded to 9 digits. The search starts at the square root of
    prefix sums. bands = 1: independent noise.
    """
    width = min(require.count(bands=bands), workload.rounds)
    loss = _Loss(workload=workload, separation=separation, participations=participations)

    def loss_of_ratios(u: Floats) -> tuple[float, Floats]:
        ratios = expit(u)
        c = np.concatenate([[1.0], np.cumprod(ratios)])
        value, gradient = loss(c)
        return value, (1 - ratios) * np.cumsum((gradient[1:] * c[1:])[::-1])[::-1]

    if width == 1:
        return np.ones(1)
    u = _minimiser(loss_of_ratios, np.log(2 * np.arange(1.0, width) - 1))
    found = np.round(np.concatenate([[1.0], np.cumprod(expit(u))]), _DIGITS)
    return found if loss(found)[0] <= loss(square_root(width))[0] else square_root(width)


def buffers(
    count: int, workload: Workload, *, separation: int, participations: int | None = None
) -> tuple[Floats, Floats]:
    """Return weights and decays of a BLT with `count` buffers of nearly the smallest error at equal privacy. Shapes:
    [count].

    The search starts with decays from 1/2 to 1 - 2/T. Results are rounded to 9 digits, weights downwards.
    """
    rounds, buffer_count = workload.rounds, require.count(buffers=count)
    loss = _Loss(workload=workload, separation=separation, participations=participations)
    lags = np.arange(rounds - 1, dtype=float)

    def parts(x: Floats) -> tuple[Floats, Floats]:
        grown = np.exp(np.minimum(x[buffer_count:], 50.0))
        return grown / (1 + grown.sum()), expit(x[:buffer_count])

    def loss_of_parts(x: Floats) -> tuple[float, Floats]:
        weights, decays = parts(x)
        value, gradient = loss(buffered(weights, decays, rounds=rounds))
        powers = decays[:, None] ** lags
        of_weights = powers @ gradient[1:]
        of_decays = weights * ((powers[:, :-1] * lags[1:]) @ gradient[2:])
        of_x = weights * of_weights - weights * (weights @ of_weights)
        return value, np.concatenate([of_decays * decays * (1 - decays), of_x])

    first = 1 - np.geomspace(0.5, min(2 / rounds, 0.4), buffer_count)
    x = np.concatenate([np.log(first / (1 - first)), np.full(buffer_count, np.log(1.5 / buffer_count))])
    weights, decays = parts(_minimiser(loss_of_parts, x) if rounds > 2 else x)
    scale = 10.0**_DIGITS
    return np.floor(weights * scale) / scale, np.round(decays, _DIGITS)


def _minimiser(loss: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options=_OPTIONS).x)
