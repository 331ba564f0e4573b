"""Toeplitz factorisations: coefficients, sensitivity, inverse, and the error of the models of a run.

Matrices are banded or buffered. The workload of a run is the matrix that maps the sums of its rounds to its models.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import CorrelatedRounds, Schedule

MOST_ROUNDS = 10_000_000
"""Largest number of rounds of one stream."""


def square_root(bands: int, *, power: float = 0.5) -> Floats:
    """Return the first `bands` coefficients c_j = c_(j-1) (2j - 1) / 2j of the square root of the prefix-sum matrix.

    These are the coefficients of (1 - x)^(-1/2), whose square is 1 / (1 - x). They are positive and non-increasing.
    bands = 1: independent noise. power: another power in (0, 1), with coefficients of (1 - x)^-power. Source:
    Fichtenberger, Henzinger, Upadhyay 2023.
    Shape: [bands].
    Errors: InvalidParameter for bands below 1.

    >>> from accounting.factorisation import square_root
    >>> square_root(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    j = np.arange(1, require.count(bands=bands), dtype=float)
    return np.concatenate([[1.0], np.cumprod((2 * j - 2 * (1 - power)) / (2 * j))])


def buffered(weights: ArrayLike, decays: ArrayLike, *, rounds: int) -> Floats:
    """Return the first column of a buffered Toeplitz matrix (BLT): c_0 = 1, c_j = sum_i weights_i decays_i^(j-1).

    Generating the noise needs one stored vector for each weight, for any number of rounds. The column is non-increasing
    if weights are >= 0 with sum at most 1, and decays are in [0, 1].
    Source: McMahan, Xu, Zhang 2024.
    Shapes: weights and decays [buffers], result [rounds].
    Errors: InvalidParameter for rounds below 1.

    >>> from accounting.factorisation import buffered
    >>> buffered([0.5], [0.5], rounds=4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    weight_array, decay_array = np.asarray(weights, dtype=float), np.asarray(decays, dtype=float)
    powers = decay_array[:, None] ** np.arange(_checked_rounds(rounds) - 1)
    return np.concatenate([[1.0], weight_array @ powers])


def column(rounds: CorrelatedRounds, count: int) -> Floats:
    """Return the first column of C for the first `count` rounds of a stream, without trailing zeros.

    Source: `mechanisms.CorrelatedRounds` defines C.
    Shapes: [count] for buffers, [bands] or less for bands.
    Errors: none for a valid stream.

    >>> from accounting.factorisation import column
    >>> from accounting.mechanisms import CorrelatedRounds
    >>> column(CorrelatedRounds(separation=10, coefficients=(1.0, 0.5)), 5).tolist()
    [1.0, 0.5]
    """
    if rounds.weights:
        return buffered(rounds.weights, rounds.decays, rounds=count)
    return np.array(rounds.coefficients[:count])


def sensitivity(coefficients: ArrayLike, *, rounds: int, separation: int, participations: int | None = None) -> float:
    """Return the L2 sensitivity of C x for at most `participations` participations of a client, at least `separation`
    rounds apart.

    Claim: sens^2 = |sum over i of column i * separation of C|^2, over all i within the rounds, is the largest over all
    patterns of participation. Proof: let G(s, t) be the product of columns s and t. G decreases in max(s, t) and in |s
    - t|, because c does not increase. The i-th participation is not before round i * separation, and the i-th and j-th
    are at least |i - j| * separation apart. All products are >= 0, so updates in one direction are the worst.
    Source: Kalinin, Lampert 2024, and this proof.
    Shape: coefficients [bands].
    Units: clip norms.
    Adjacency: zero-out and add-remove; twice that for replace-one.
    Direction of error: none but rounding.
    Errors: InvalidParameter for coefficients that do not begin with 1, are negative or increase.

    >>> from accounting.factorisation import sensitivity
    >>> round(sensitivity([1.0, 0.5], rounds=4, separation=2), 4)
    1.5811
    """
    c = _checked_coefficients(coefficients)[: _checked_rounds(rounds)]
    return float(np.linalg.norm(worst_pattern(c, rounds=rounds, separation=separation, participations=participations)))


def worst_pattern(
    coefficients: Floats, *, rounds: int, separation: int, participations: int | None, back: bool = False
) -> Floats:
    """Return the sum of the columns of C that begin in rounds 0, B, 2B, ..., which is the worst pattern. Shape:
    [rounds].

    back: apply the transpose of this map from the first column to the sum. Time: linear in the rounds.
    """
    gap = min(require.count(separation=separation), rounds)
    times = rounds if participations is None else require.count(participations=participations)
    places = np.zeros(-(-rounds // gap) * gap)
    places[: min(len(coefficients), rounds)] = coefficients[:rounds]
    epochs = places.reshape(-1, gap)
    epochs = epochs[::-1] if back else epochs
    column_sums = np.cumsum(epochs, axis=0)
    if times < len(column_sums):
        column_sums[times:] -= column_sums[:-times].copy()
    return np.asarray((column_sums[::-1] if back else column_sums).ravel()[:rounds])


def inverse(coefficients: ArrayLike, *, rounds: int) -> Floats:
    """Return the first column of C^-1: the coefficients of a round's fresh noise in this round and in later rounds.

    Source: power series division.
    Shapes: coefficients [bands], result [rounds].
    Errors: as `sensitivity`.

    >>> from accounting.factorisation import inverse
    >>> inverse([1.0, 0.5], rounds=4).tolist()
    [1.0, -0.5, 0.25, -0.125]
    """
    unit_vector = np.zeros(_checked_rounds(rounds))
    unit_vector[0] = 1.0
    return np.asarray(scipy.signal.lfilter([1.0], _checked_coefficients(coefficients)[:rounds], unit_vector))


def _checked_rounds(given: int) -> int:
    """Return a number of rounds whose columns fit in memory. Errors: InvalidParameter above `MOST_ROUNDS`."""
    if (rounds := require.count(rounds=given)) > MOST_ROUNDS:
        raise InvalidParameter(
            f"rounds={rounds} of a stream of correlated noise: must be at most {MOST_ROUNDS}. Use fewer rounds, or "
            "independent noise."
        )
    return rounds


def _checked_coefficients(coefficients: ArrayLike) -> Floats:
    c = np.asarray(coefficients, dtype=float)
    if c.ndim != 1 or not c.size or c[0] != 1 or np.any(np.diff(c) > 0) or np.any(c < 0) or not np.isfinite(c).all():
        raise InvalidParameter(
            "coefficients: must be a list that begins with 1 and does not increase, of numbers of at least 0."
        )
    return c


def squared_sensitivity(schedule: Schedule, count: int) -> float:
    """Return the squared sensitivity of the first `count` rounds of a schedule, for updates with a sensitivity of one
    clip norm.

    With independent noise it is the largest number of participations. With correlated noise it is sens(C)^2
    (`factorisation.sensitivity`), relative to the fresh noise.
    Direction of error: none but rounding.
    Errors: UnsupportedMechanism for a secret schedule.
    """
    if schedule.secret_in_lane:
        raise UnsupportedMechanism(
            f"sampling={schedule.name!r}: participation is secret, so the rounds are not one Gaussian mechanism."
        )
    matrix = schedule.matrix
    if matrix is None:
        return float(schedule.most_participations(count))
    most = matrix.participations
    return sensitivity(column(matrix, count), rounds=count, separation=matrix.separation, participations=most) ** 2


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
        return np.asarray(np.cumsum(self.powers * scipy.signal.lfilter([1.0], [1.0, -self.momentum], inverse_column)))

    def transposed_column(self, gradient: Floats) -> Floats:
        """Apply the transpose of the map `column` to a gradient."""
        weighted_sums = self.powers * np.cumsum(gradient[::-1])[::-1]
        return np.asarray(scipy.signal.lfilter([1.0], [1.0, -self.momentum], weighted_sums[::-1])[::-1])

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
