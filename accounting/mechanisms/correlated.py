"""Rounds with correlated noise: one stream of releases under a factorisation, as a frozen description."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter

_MOST = {"coefficients": 10_000, "weights": 20, "decays": 20}


@dataclass(frozen=True, kw_only=True)
class CorrelatedRounds:
    """Clients at least `separation` rounds apart, publicly; noise C^-1 z of fresh noise z of the stated multiplier.

    C is lower triangular and Toeplitz (`accounting.factorisation`). Banded: its first column begins with `coefficients`
    and is 0 afterwards. Buffered (BLT): 1, then sum over i of weights_i decays_i^(j-1). `participations`: most of one
    client. `count` equal releases are the first `count` rounds of the stream, none left out and none twice; another
    stream has another name.
    Claim: all rounds are one Gaussian whose shift is `factorisation.sensitivity` over z, also if updates depend on
    earlier releases. Source: Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 2.1; McMahan, Xu, Zhang 2024 (BLT).
    Adjacency: any; the shift doubles under replace-one. Errors: InvalidParameter for coefficients that do not begin
    with 1 or increase, weights that sum above 1, decays above 1.

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
    ends_after: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", require.count(separation=self.separation))
        if self.participations is not None:
            object.__setattr__(self, "participations", require.count(participations=self.participations))
        for name in ("coefficients", "weights", "decays"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        require.stream(self.stream)
        banded, buffered = len(self.coefficients), len(self.weights)
        falls = all(first >= second for first, second in zip(self.coefficients, self.coefficients[1:], strict=False))
        if bool(banded) == bool(buffered) or buffered != len(self.decays):
            raise InvalidParameter(
                f"coefficients of length {banded}, weights of {buffered}, decays of {len(self.decays)}: give the first "
                "column of a banded matrix, or as many weights as decays of a buffered one."
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
        """Return the most participations of one client in the first `count` rounds."""
        times = -(-count // self.separation)
        return times if self.participations is None else min(times, self.participations)

    def to_dict(self) -> dict[str, object]:
        matrix: dict[str, object] = {"coefficients": list(self.coefficients)}
        if self.weights:
            matrix = {"weights": list(self.weights), "decays": list(self.decays)}
        most = {} if self.participations is None else {"participations": self.participations}
        return {"name": self.name, "separation": self.separation, **matrix, **most, "stream": self.stream}


def _numbers(name: str, given: object) -> tuple[float, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > _MOST[name]:
        raise InvalidParameter(f"{name}: must be a list of at most {_MOST[name]} numbers.")
    return tuple(require.nonnegative(**{name: one}) for one in given)
