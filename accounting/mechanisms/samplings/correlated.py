"""Noise that is correlated over rounds: one stream of releases under a matrix factorisation, and no sampler.

Participations are public, and a client's are at least `separation` rounds apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms.samplings.sampling import Schedule

_LONGEST_LISTS = {"coefficients": 10_000, "weights": 20, "decays": 20}


@dataclass(frozen=True, kw_only=True)
class CorrelatedRounds(Schedule):
    """Rounds with noise C^-1 z, z fresh noise of the stated multiplier. A client's participations are public and at
    least `separation` rounds apart.

    C is lower triangular and Toeplitz (`accounting.factorisation`). Banded: the first column of C is `coefficients`,
    then zeros. Buffered (BLT): the first column is 1, then sum over i of weights_i decays_i^(j-1). `participations`:
    largest number of participations of one client. In a composition `count` equal releases are the first `count` rounds
    of the stream, each exactly once. Independent streams have different names.
    Claim: all rounds are one Gaussian whose shift is `factorisation.sensitivity` over z, also if updates depend on
    earlier releases.
    Source: Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 2.1; McMahan, Xu, Zhang 2024 (BLT).
    Adjacency: any; the shift doubles under replace-one.
    Errors: InvalidParameter for coefficients that do not begin with 1 or increase, weights that sum above 1, decays
    above 1.

    >>> from accounting.mechanisms import CorrelatedRounds
    >>> CorrelatedRounds(separation=60, coefficients=(1.0, 0.5)).most_participations(180)
    3
    """

    separation: int
    coefficients: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    participations: int | None = None
    stream: str = ""
    name: ClassVar[str] = "correlated"
    secret: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "separation")
        require.replace_fields(self, require.or_none(require.count), "participations")
        for name in ("coefficients", "weights", "decays"):
            object.__setattr__(self, name, _checked_numbers(name, getattr(self, name)))
        require.stream_name(self.stream)
        banded, buffered = len(self.coefficients), len(self.weights)
        falls = all(first >= second for first, second in zip(self.coefficients, self.coefficients[1:], strict=False))
        if bool(banded) == bool(buffered) or buffered != len(self.decays):
            raise InvalidParameter(
                f"coefficients of length {banded}, weights of {buffered}, decays of {len(self.decays)}: give the first "
                "column of a banded matrix, or equally many weights and decays of a buffered matrix."
            )
        if banded and not (self.coefficients[0] == 1 and falls):
            raise InvalidParameter("coefficients: must begin with 1 and not increase.")
        if buffered and (sum(self.weights) > 1 or max(self.decays) > 1):
            raise InvalidParameter("weights, decays: weights must add up to at most 1, decays be at most 1 each.")

    @property
    def probability(self) -> float:
        """Share of the rounds that one client takes part in."""
        return 1 / self.separation

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds."""
        times = super().most_participations(count)
        return times if self.participations is None else min(times, self.participations)

    @property
    def rounds_apart(self) -> int:
        """Least number of rounds from one participation of a client to the next."""
        return self.separation

    @property
    def matrix(self) -> "CorrelatedRounds":
        """Matrix of the noise over rounds."""
        return self

    def to_dict(self) -> dict[str, object]:
        matrix: dict[str, object] = {"coefficients": list(self.coefficients)}
        if self.weights:
            matrix = {"weights": list(self.weights), "decays": list(self.decays)}
        most = {} if self.participations is None else {"participations": self.participations}
        return {"name": self.name, "separation": self.separation, **matrix, **most, "stream": self.stream}


def _checked_numbers(name: str, given: object) -> tuple[float, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > _LONGEST_LISTS[name]:
        raise InvalidParameter(f"{name}: must be a list of at most {_LONGEST_LISTS[name]} numbers.")
    return tuple(require.nonnegative(**{name: one}) for one in given)


def noise_matrix(schedule: Schedule) -> CorrelatedRounds | None:
    """Return the matrix of noise that is correlated over rounds; None if the schedule has independent noise.

    >>> from accounting.mechanisms import BallsAndBins, noise_matrix
    >>> noise_matrix(BallsAndBins(bins=4, lanes=2, coefficients=(1.0, 0.5))).coefficients
    (1.0, 0.5)
    """
    matrix = schedule.matrix
    return None if matrix is None or (matrix is not schedule and len(matrix.coefficients) == 1) else matrix
