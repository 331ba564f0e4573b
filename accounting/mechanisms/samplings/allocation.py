"""Balls-and-bins and random allocation: every client in a fixed number of secret rounds of an epoch, or of all."""

import math
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from accounting import require
from accounting.arrays import Ints
from accounting.cohorts import Draws, NamedClients, clients_in_blocks, uniform_integers
from accounting.errors import InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import CohortSampling
from accounting.mechanisms.samplings.sampling import CorrelatedRounds, Schedule
from accounting.options import option

_PARTICIPATIONS = (
    "balls-and-bins, allocation: number of rounds in which a client takes part; the cohort then follows from the "
    "rounds. banded, blt: largest number of such rounds."
)


@dataclass(frozen=True, kw_only=True)
class BallsAndBinsSchedule(Schedule):
    """Epochs of `bins` rounds. Each client takes part in exactly one uniformly drawn round of each epoch, independently
    of other epochs.

    lanes: a client has a public lane 0 .. lanes - 1, a function of its id alone: id mod lanes, or by the hash of its
    name. Its round of an epoch is uniform among the rounds t of its lane, t mod lanes, t counted from the start of the
    run. `lanes` divides `bins`.
    coefficients: first column of C, for noise C^-1 z of fresh noise z of the stated multiplier (`CorrelatedRounds`). At
    most `lanes` of them, so that no two columns of a lane overlap. (1.0,): independent noise.
    secret_lanes: the lane of each client is drawn once for a run, uniformly, secretly and independently.
    Claim: T rounds are dominated by ceil(T / lanes) rounds with bins / lanes bins and independent noise z / |c|, c the
    coefficients. An epoch of B bins is dominated by the pair (mixture of N(s e_1, I), ..., N(s e_B, I); N(0, I)), s = 1
    / noise multiplier.
    Source: Chua et al. 2025; docs/theory-participation.md, Theorems 1 and 5.
    Units: the shift of a participation is in clip norms.
    Adjacency: zero-out or add-remove; replace-one too if public lanes = bins.
    Errors: InvalidParameter for lanes that do not divide the bins, or more coefficients than lanes.

    >>> from accounting.mechanisms import BallsAndBins
    >>> BallsAndBins(bins=60).most_participations(180)
    3
    """

    bins: int
    stream: str = ""
    lanes: int = 1
    coefficients: tuple[float, ...] = (1.0,)
    secret_lanes: bool = False
    name: ClassVar[str] = "balls-and-bins"

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "bins", "lanes")
        require.stream_name(self.stream)
        if self.bins % self.lanes:
            raise InvalidParameter(
                f"lanes={self.lanes} of bins={self.bins}: lanes must divide the rounds of an epoch, so that all lanes "
                f"have equally many rounds. Use a divisor of {self.bins}, such as {math.gcd(self.bins, self.lanes)}."
            )
        if not isinstance(self.secret_lanes, bool):
            raise InvalidParameter(f"secret_lanes={require.short_repr(self.secret_lanes)}: must be true or false.")
        if self.secret_lanes and self.lanes == 1:
            raise InvalidParameter(
                "secret_lanes with lanes=1: there is only one lane, so no lane is drawn. Use more lanes."
            )
        object.__setattr__(self, "coefficients", self.matrix.coefficients)
        if len(self.coefficients) > self.lanes:
            raise InvalidParameter(
                f"coefficients of {len(self.coefficients)} bands with lanes={self.lanes}: noise of two rounds of one "
                f"lane would overlap. Use at most {self.lanes} bands, or more lanes."
            )

    @property
    def secret(self) -> bool:
        """True if a client's round is secret: its lane is secret, or has several rounds in an epoch."""
        return self.secret_lanes or self.secret_in_lane

    @property
    def secret_in_lane(self) -> bool:
        """True if a lane has several rounds in an epoch."""
        return self.lanes < self.bins

    @property
    def turns_follow_ids(self) -> bool:
        """True if the lanes are public."""
        return self.lanes > 1 and not self.secret_lanes

    @property
    def epoch(self) -> int:
        """Rounds after which participation is drawn anew."""
        return self.bins

    @property
    def first_round_probability(self) -> float | None:
        """Probability that a client of the first lane, or of a secret lane, takes part in the first round."""
        bins = self.bins if self.secret_lanes else self.lane_schedule.bins
        return 1 / bins if bins > 1 else None

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        lanes = "lanes: holds if a client's lane depends only on its id, not on other clients"
        return (*super().hypotheses(adjacency), *((lanes,) * self.turns_follow_ids))

    @property
    def probability(self) -> float:
        """Share of the rounds that one client takes part in."""
        return 1 / self.bins

    @property
    def matrix(self) -> CorrelatedRounds:
        """Matrix of the noise over rounds."""
        return CorrelatedRounds(separation=self.lanes, coefficients=self.coefficients, stream=self.stream)

    def norm(self, count: int) -> float:
        """Return the largest norm of a column of C that is cut off after `count` rounds: the shift by one participation
        relative to the fresh noise, in clip norms.
        """
        return math.hypot(*self.coefficients[:count])

    @property
    def lane_schedule(self) -> "BallsAndBinsSchedule":
        """Schedule of the rounds of one lane, for independent noise that is divided by the norm of the coefficients."""
        return BallsAndBinsSchedule(bins=self.bins // self.lanes, stream=self.stream)

    def to_dict(self) -> dict[str, object]:
        omitted = {"lanes": 1, "secret_lanes": False, "coefficients": (1.0,)}
        return {"name": self.name, **{key: value for key, value in asdict(self).items() if omitted.get(key) != value}}

    @property
    def turns(self) -> int:
        """Number of lanes."""
        return self.lanes

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        epoch, place = divmod(number, self.bins)
        lane, turn, turns = number % self.lanes, place // self.lanes, self.bins // self.lanes
        if ids is not None:
            mine = np.flatnonzero(self.public_turns(clients, ids) == lane)
            names = ids.hashes[mine].tolist()
            drawn = [randomness.uniform(1, "participation.bin.id", epoch, name)[0] for name in names]
            return np.asarray(mine[uniform_integers(np.array(drawn, dtype=np.float64), turns) == turn])

        def takes_part(found: Ints, block: int) -> NDArray[np.bool_]:
            drawn = uniform_integers(randomness.uniform(len(found), "participation.bin", epoch, block), turns)
            lanes = found % self.lanes
            if self.secret_lanes:
                lanes = uniform_integers(randomness.uniform(len(found), "participation.lane", block), self.lanes)
            return np.asarray((drawn == turn) & (lanes == lane))

        return clients_in_blocks(clients, takes_part)


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number in increasing order."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*low, *(number // one for one in low)}))


@dataclass(frozen=True, kw_only=True)
class AllocationSchedule(Schedule):
    """Schedule of `rounds` rounds in which each client takes part in a uniformly drawn subset of exactly
    `participations` rounds.

    Claim: all rounds are dominated by `participations` independent blocks, each with one uniform participation. The
    first n rounds are dominated by blocks with at most one participation.
    Source: Feldman, Shenfeld 2025; docs/theory-participation.md, Theorems 2 and 6.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for more participations than rounds.

    >>> from accounting.mechanisms import Allocation
    >>> Allocation(participations=3, rounds=180).most_participations(2)
    2
    """

    participations: int
    rounds: int
    stream: str = ""
    name: ClassVar[str] = "allocation"
    begins_as_poisson: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "rounds", "participations")
        require.stream_name(self.stream)
        if self.participations > self.rounds:
            raise InvalidParameter(
                f"participations={self.participations} in rounds={self.rounds}: a client takes part at most once a "
                "round. Lower the participations or raise the rounds."
            )

    @property
    def probability(self) -> float:
        """Probability that one client takes part in a given round."""
        return self.participations / self.rounds

    @property
    def ends_after(self) -> int | None:
        """Length of the schedule in rounds."""
        return self.rounds

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds."""
        return min(count, self.participations)

    def sets_of_first_rounds(self, count: int) -> tuple[float, ...] | None:
        """Return the probabilities of sets of the first two or three rounds."""
        if count not in (2, 3):
            return None
        inside, outside = self.participations, self.rounds - self.participations
        choices = math.perm(self.rounds, count)
        return tuple(math.perm(inside, j) * math.perm(outside, count - j) / choices for j in range(count + 1))

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        """Return the clients of a round; the subset of each is drawn by Floyd's algorithm."""

        def takes_part(found: Ints, block: int) -> NDArray[np.bool_]:
            chosen = np.full((self.participations, len(found)), -1, dtype=np.int64)
            for place, last in enumerate(range(self.rounds - self.participations, self.rounds)):
                values = randomness.uniform(len(found), "participation.allocation", place, block)
                drawn = uniform_integers(values, last + 1)
                chosen[place] = np.where((chosen[:place] == drawn).any(axis=0), last, drawn)
            return np.asarray((chosen == number).any(axis=0))

        return clients_in_blocks(clients, takes_part)


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(CohortSampling):
    """Balls-and-bins: each client takes part in one secret, independently drawn round of every epoch of clients /
    cohort rounds.

    participations: largest number of epochs.
    Claim: accounted as `mechanisms.BallsAndBins`.
    Source: Chua et al. 2025; docs/theory-participation.md, Theorems 1 and 5.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a count below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.BallsAndBins(cohort=10)).sampler.bins
    60
    """

    participations: int | None = option(_PARTICIPATIONS, None)
    lanes: int | None = option(
        "balls-and-bins: number of public lanes (client id modulo lanes), which take turns; for noise with equally "
        "many bands. Default: 1; with --noise banded the number of lanes of smallest error.",
        None,
    )
    secret_lanes: bool = option(
        "balls-and-bins in lanes: a client's lane is drawn once for the run, and secret. The deterministic epsilon "
        "is that of public lanes; --certificate sampled has a smaller epsilon.",
        False,
    )
    name: ClassVar[str] = "balls-and-bins"
    words: ClassVar[str] = "balls and bins: once in every epoch, in a secret round"
    table_keys: ClassVar[tuple[str, ...]] = ("lanes", "lane_secrecy")

    def most_rounds(self, clients: int) -> int | None:
        """Return the length of the schedule in rounds; None if it is unbounded."""
        return None if self.participations is None else self.participations * self.period(clients)

    def in_turns(self, *, banded: bool) -> bool:
        in_lanes = banded if self.lanes is None else self.lanes > 1
        if self.secret_lanes and not in_lanes:
            raise InvalidParameter(
                "secret_lanes without lanes: without lanes no lane is drawn. Give lanes, or noise='banded'."
            )
        return in_lanes and not self.secret_lanes  # a drawn lane does not depend on the other clients

    def expected(self, clients: int) -> float:
        return clients / self.period(clients)

    def description(self, clients: int) -> str:
        bins, lanes, each = self.period(clients), self.lanes or 1, f"each of {clients} clients in one secret round of"
        if lanes == 1:
            return f"balls-and-bins, {each} every {bins}, drawn anew each time"
        kind = "secret lanes, drawn for the run" if self.secret_lanes else "public lanes"
        lane = f"the {bins // lanes} that its lane has of every {bins}"
        return f"balls-and-bins in {lanes} {kind}, {each} {lane}, drawn anew each time"

    def details(self) -> dict[str, object]:
        lanes: dict[str, object] = {"lanes": self.lanes} if (self.lanes or 1) > 1 else {}
        return lanes | ({"secret_lanes": True} if lanes and self.secret_lanes else {})

    def law(self, clients: int, stream: str) -> BallsAndBinsSchedule:
        lanes, secret = self.lanes or 1, self.secret_lanes and self.lanes is not None
        return BallsAndBinsSchedule(bins=self.period(clients), lanes=lanes, secret_lanes=secret, stream=stream)


@dataclass(frozen=True, kw_only=True)
class Allocation(CohortSampling):
    """Random allocation: each client takes part in `participations` secret rounds. The schedule has participations
    clients / cohort rounds.

    Claim: accounted as `mechanisms.Allocation`.
    Source: Feldman, Shenfeld 2025; docs/theory-participation.md, Theorems 2 and 6.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a count below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Allocation(cohort=10, participations=3)).sampler.rounds
    180
    """

    participations: int = option(_PARTICIPATIONS)
    name: ClassVar[str] = "allocation"
    words: ClassVar[str] = "allocation: in a fixed number of secret rounds"

    def most_rounds(self, clients: int) -> int:
        """Return the length of the schedule in rounds."""
        return round(self.participations * clients / self.cohort)

    def expected(self, clients: int) -> float:
        return clients * self.participations / self.most_rounds(clients)

    def description(self, clients: int) -> str:
        rounds = f"{self.participations} secret rounds of {self.most_rounds(clients)}"
        return f"allocation, each of {clients} clients in {rounds}"

    def law(self, clients: int, stream: str) -> AllocationSchedule:
        return AllocationSchedule(participations=self.participations, rounds=self.most_rounds(clients), stream=stream)
