"""Workload of a run: the matrix that maps the sums of its rounds to its models."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from accounting import require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter
from accounting.factorisation.toeplitz import inverse


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Workload A: the model after each of `rounds` rounds.

    The model is a sum of eta_s v_s, v_s = momentum v_(s-1) + x_s, eta_s = decay^s.
    momentum: momentum of the server; decay: factor of its learning rate per round. With momentum 0 and decay 1 the
    workload is prefix sums.
    Errors: InvalidParameter for a momentum outside [0, 1) or a decay outside (0, 1].
    """

    rounds: int
    momentum: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        require.count(rounds=self.rounds)
        if not 0 <= require.real("in [0, 1)", momentum=self.momentum) < 1:
            raise InvalidParameter(f"momentum={self.momentum}: must be in [0, 1).")
        if not 0 < require.real("above 0 and at most 1", decay=self.decay) <= 1:
            raise InvalidParameter(f"decay={self.decay}: must be above 0 and at most 1.")

    @property
    def powers(self) -> Floats:
        """Vector of decay^0, decay^1, ..., one entry for each round."""
        return np.asarray(self.decay ** np.arange(self.rounds, dtype=float))

    def column(self, inverse_column: Floats) -> Floats:
        """Return the first column of A C^-1 from that of C^-1.

        Column s of A C^-1 is a prefix of the first column, times decay^s.
        """
        return np.asarray(np.cumsum(self.powers * lfilter([1.0], [1.0, -self.momentum], inverse_column)))

    def transposed_column(self, gradient: Floats) -> Floats:
        """Apply the transpose of the map `column` to a gradient."""
        weighted_sums = self.powers * np.cumsum(gradient[::-1])[::-1]
        return np.asarray(lfilter([1.0], [1.0, -self.momentum], weighted_sums[::-1])[::-1])

    @property
    def squared_weights(self) -> Floats:
        """Weight of each squared entry of the first column in |A C^-1|_F^2, summed over all columns that contain the
        entry.
        """
        return np.asarray(np.cumsum(self.powers**2)[::-1])


def error(coefficients: ArrayLike, workload: Workload) -> float:
    """Return the root mean square over rounds of the noise in the model, |A C^-1|_F / sqrt(T), for z of variance 1.

    For independent noise and prefix sums it is sqrt((T + 1) / 2).
    Direction of error: none except rounding.
    """
    column = workload.column(inverse(coefficients, rounds=workload.rounds))
    return math.sqrt(float(workload.squared_weights @ column**2) / workload.rounds)
