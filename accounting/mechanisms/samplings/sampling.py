"""Base classes of the distributions of samplers, and the schedule of noise that is correlated over rounds.

A sampler is one file with two classes:

- its distribution, a `Sampling` or `Schedule`: the record of a ledger line, with the answers that accounts read, and
  the draws;
- a `PlannedSampling` (planned.py): name, options, refusals, and the distribution for a number of clients.

docs/participation.md compares the privacy of the samplers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from accounting import require
from accounting.arrays import Ints
from accounting.cohorts import Draws, NamedClients
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency


class Sampling:
    """Base class of distributions of cohorts: draws, and answers that accounts read, by default for rounds that are
    drawn independently.

    A class with a `name` is registered under it in `kinds`, and is read from ledger lines of this name.

    >>> from accounting.mechanisms import Sampling
    >>> Sampling.kinds["poisson"](probability=0.1).independent
    True
    """

    kinds: ClassVar[dict[str, type["Sampling"]]] = {}
    name: ClassVar[str] = ""
    displaces: ClassVar[bool] = False
    """True if another client may take the place of the differing one, so that the sum moves by 2 clips."""
    independent: ClassVar[bool] = False
    """True if each client is drawn independently of other clients and rounds, so that cohort sizes vary."""
    fixed_size: ClassVar[bool] = False
    """True if each cohort is a uniform subset of a fixed size, drawn without replacement."""
    takes_all: ClassVar[bool] = False
    """True if every client takes part in every round."""
    is_schedule: ClassVar[bool] = False
    """True if participation depends on earlier rounds, so that all rounds have one account."""
    begins_as_poisson: ClassVar[bool] = False
    """True if each client takes part in the first round independently and secretly, with `probability`."""
    public_order: ClassVar[bool] = False
    """True if clients take part in turn, in an order that is public."""
    attack_is_weaker: ClassVar[bool] = False
    """True if no attack is known that reaches the account, which assumes a public order."""
    secret_lanes: bool = False
    """True if each client draws a secret lane once for a run."""

    if TYPE_CHECKING:

        @property
        def probability(self) -> float:
            """Probability that one client takes part in a given round."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            Sampling.kinds[cls.name] = cls

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        """Return the sorted ids, of 0 .. clients - 1, of the clients of round `number`, counted from 0.

        ids: names of the clients, from which public lanes and turns follow; None: they follow from 0 .. clients - 1.
        Errors: UnsupportedMechanism for a distribution that has an account only.
        """
        raise UnsupportedMechanism(f"sampling={self.name!r}: has an account, and no draws.")

    def base_adjacency(self, adjacency: Adjacency) -> Adjacency:
        """Return the adjacency of the release that this sampling amplifies: replace-one under fixed size, which covers
        zero-out, else the given one.
        """
        return Adjacency.REPLACE_ONE if self.fixed_size else adjacency

    @property
    def cohort_cap(self) -> int | None:
        """Cap of capped Poisson sampling, else None."""
        return None

    @property
    def rounds_apart(self) -> int:
        """Least number of rounds from one participation of a client to the next; 0 if none is stated."""
        return 0

    @property
    def turns_follow_ids(self) -> bool:
        """True if the clients' ids determine a public order of participation, in lanes or client by client.

        Then adding a client must not change the id of another client, so an id must not be a position in a list.
        """
        return False

    @property
    def turns(self) -> int:
        """Number of public turns: lanes, or rounds of a public order; 1 without turns."""
        return 1

    def public_turns(self, clients: int, ids: NamedClients | None = None) -> Ints:
        """Return the public turn of each client: its lane, or its place in a public order. ids: as for `sample`."""
        return np.arange(clients) % self.turns if ids is None else ids.lanes(self.turns)

    @property
    def secret_in_lane(self) -> bool:
        """True if a client's round is secret from an attacker who knows its lane, which deterministic accounts
        assume.
        """
        return True

    @property
    def epoch(self) -> int | None:
        """Rounds after which participation is drawn anew; None: never."""
        return None

    def norm(self, count: int) -> float:
        """Return the shift by one participation relative to the fresh noise of `count` rounds, in clip norms."""
        return 1.0

    def participation_probability(self, adjacency: Adjacency) -> float:
        """Return the probability that one client takes part in a round."""
        return self.probability

    def binds(self, adjacency: Adjacency) -> bool:
        """Return True if a cap can be exceeded in one of the neighbours; False without a cap."""
        return False

    def full_rounds(self, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
        """Return (zeta, p) of rounds that are full under a cap (`CappedPoissonSampling`); none without a cap."""
        return ()

    @property
    def first_round_probability(self) -> float | None:
        """Probability that a client takes part in the first round, secretly; None if it is public, or if other
        clients depend on it. Public lanes: that of a client of the first lane.
        """
        return self.probability if self.begins_as_poisson else None

    def sets_of_first_rounds(self, count: int) -> tuple[float, ...] | None:
        """Return, for j = 0 to `count`, the probability that a client takes part, secretly, in exactly j given ones of
        the first `count` rounds; None if it is not known or differs between sets of j rounds.
        """
        return None

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        """Return notes on the conditions under which the account holds."""
        return ()

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a ledger line."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]  # a dataclass


class Schedule(Sampling):
    """Base class of schedules over many rounds, in which participation depends on earlier rounds.

    In a composition `count` releases of equal schedules are the first `count` rounds of that schedule, each exactly
    once. Independently drawn schedules have different `stream` names. This includes two runs on the same clients, and
    an interrupted run that draws again.

    Clients must be drawn independently of each other. If the differing client changes the participation of other
    clients (as with groups of exactly equal size), no account of these schedules holds.

    >>> from accounting.mechanisms import Schedule
    >>> issubclass(Schedule.kinds["cyclic"], Schedule)
    True
    """

    lanes: int = 1
    is_schedule: ClassVar[bool] = True

    if TYPE_CHECKING:

        @property
        def stream(self) -> str:
            """Name of the random stream of this schedule."""

    @property
    def secret(self) -> bool:
        """True if a client's rounds are secret."""
        return True

    @property
    def secret_in_lane(self) -> bool:
        return self.secret

    @property
    def lane_schedule(self) -> "Schedule":
        """Schedule of the rounds of one lane, with independent noise."""
        return self

    @property
    def ends_after(self) -> int | None:
        """Length of the schedule in rounds; None if it is unbounded."""
        return None

    @property
    def matrix(self) -> "CorrelatedRounds | None":
        """Matrix of the noise over rounds; None for independent noise."""
        return None

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds: one in each epoch, or
        in each `rounds_apart` rounds.
        """
        return -(-count // (self.epoch or self.rounds_apart or 1))

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        if not self.secret:
            return ()
        return (f"{self.name}: holds if clients are drawn independently of each other, and participation stays secret",)


def turns_follow_ids(schedule: object) -> bool:
    """Return `turns_follow_ids` of a sampling, False for other objects: its name up to version 0.3."""
    return isinstance(schedule, Sampling) and schedule.turns_follow_ids


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
