"""Frozen descriptions of participation schedules and of noise that is correlated over their rounds.

Participation in a round depends on earlier rounds. Correlated noise is one stream of releases under a matrix
factorisation.

In a composition `count` releases of equal schedules are the first `count` rounds of that schedule, each exactly once.
Independently drawn schedules have different `stream` names. This includes two runs on the same clients, and an
interrupted run that draws again.

Clients must be drawn independently of each other. If the differing client changes the participation of other clients
(as with groups of exactly equal size), no account of these schedules holds.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.participation import Participation

_LONGEST_LISTS = {"coefficients": 10_000, "weights": 20, "decays": 20}


class _Schedule(Participation):
    """Base class of schedules, in which participation depends on earlier rounds."""

    lanes: int = 1
    is_schedule: ClassVar[bool] = True

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
        return self  # type: ignore[return-value]

    @property
    def ends_after(self) -> int | None:
        """Length of the schedule in rounds; None if it is unbounded."""
        return None

    @property
    def matrix(self) -> "CorrelatedRounds | None":
        """Matrix of the noise over rounds; None for independent noise."""
        return None

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        if not self.secret:
            return ()
        return (f"{self.name}: holds if clients are drawn independently of each other, and participation stays secret",)


@dataclass(frozen=True, kw_only=True)
class CorrelatedRounds(_Schedule):
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
        times = -(-count // self.separation)
        return times if self.participations is None else min(times, self.participations)

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


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(_Schedule):
    """Epochs of `bins` rounds. Each client takes part in exactly one uniformly drawn round of each epoch, independently
    of other epochs.

    lanes: a client has a public lane 0 .. lanes - 1, a function of its id alone. Its round of an epoch is uniform among
    the rounds t of its lane, t mod lanes, t counted from the start of the run. `lanes` divides `bins`.
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
    def lane_schedule(self) -> "BallsAndBins":
        """Schedule of the rounds of one lane, for independent noise that is divided by the norm of the coefficients."""
        return BallsAndBins(bins=self.bins // self.lanes, stream=self.stream)

    def lane_rounds(self, count: int) -> int:
        """Return the largest number of rounds of one lane among the first `count` rounds."""
        return -(-count // self.lanes)

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds."""
        return -(-count // self.bins)

    def to_dict(self) -> dict[str, object]:
        record = {"name": self.name, **asdict(self)}
        if self.lanes == 1:
            del record["lanes"]
        if not self.secret_lanes:
            del record["secret_lanes"]
        if self.coefficients == (1.0,):
            del record["coefficients"]
        return record


def turns_follow_ids(schedule: object) -> bool:
    """Return True if the clients' ids determine a public order of participation, in lanes or client by client.

    Then adding a client must not change the id of another client, so an id must not be a position in a list.

    >>> from accounting.mechanisms.schedules import Cyclic, turns_follow_ids
    >>> turns_follow_ids(Cyclic(period=3))
    True
    """
    return bool(getattr(schedule, "turns_follow_ids", False))


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number in increasing order."""
    low = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*low, *(number // one for one in low)}))


def noise_matrix(schedule: "Schedule") -> CorrelatedRounds | None:
    """Return the matrix of noise that is correlated over rounds; None if the schedule has independent noise.

    >>> from accounting.mechanisms import BallsAndBins, noise_matrix
    >>> noise_matrix(BallsAndBins(bins=4, lanes=2, coefficients=(1.0, 0.5))).coefficients
    (1.0, 0.5)
    """
    matrix = schedule.matrix
    return None if matrix is None or (matrix is not schedule and len(matrix.coefficients) == 1) else matrix


@dataclass(frozen=True, kw_only=True)
class Allocation(_Schedule):
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
    def first_round_probability(self) -> float:
        """Probability that a client takes part in the first round."""
        return self.probability

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


@dataclass(frozen=True, kw_only=True)
class MinSeparation(_Schedule):
    """Schedule with rests: a client skips `separation` - 1 rounds after a participation. Then an independent Bernoulli
    sample of each round decides whether it participates.

    `probability`: probability that a client participates in a given round. It is equal in all rounds, because the
    schedule starts stationary.
    Claim: T rounds are dominated by independent blocks of `separation` rounds with at most one participation each.
    Source: docs/theory-participation.md, Theorem 3.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a probability of 0 or above 1 / separation.

    >>> from accounting.mechanisms import MinSeparation
    >>> round(MinSeparation(separation=10, probability=0.05).coin, 4)
    0.0909
    """

    separation: int
    probability: float
    stream: str = ""
    name: ClassVar[str] = "min-separation"

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", require.count(separation=self.separation))
        rate = require.probability(sampling_probability=self.probability)
        object.__setattr__(self, "probability", rate)
        require.stream_name(self.stream)
        if not 0 < rate * self.separation <= 1 + 1e-12:
            raise InvalidParameter(
                f"separation={self.separation} with probability={rate}: a client that takes part every "
                f"{1 / rate if rate else float('inf'):g} rounds cannot rest for {self.separation - 1} rounds. The "
                "separation must be at most clients / cohort, and the probability above 0."
            )

    @property
    def first_round_probability(self) -> float:
        """Probability that a client takes part in the first round."""
        return self.probability

    @property
    def coin(self) -> float:
        """Participation probability of a client that does not rest: p / (1 - p (separation - 1))."""
        return min(self.probability / (1 - self.probability * (self.separation - 1)), 1.0)

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds."""
        return -(-count // self.separation)


@dataclass(frozen=True, kw_only=True)
class Cyclic(_Schedule):
    """Each client takes part in every `period`-th round, in a public order.

    Claim: T rounds compose as ceil(T / period) unsampled releases, without amplification.
    Source: docs/theory-participation.md, Theorem 5 with as many lanes as bins.
    Adjacency: any.
    Errors: InvalidParameter for a period below 1.

    >>> from accounting.mechanisms import Cyclic
    >>> Cyclic(period=60).most_participations(180)
    3
    """

    period: int
    stream: str = ""
    name: ClassVar[str] = "cyclic"
    secret: ClassVar[bool] = False
    turns_follow_ids: ClassVar[bool] = True
    public_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", require.count(period=self.period))
        require.stream_name(self.stream)

    @property
    def separation(self) -> int:
        """Number of rounds from one participation of a client to the next."""
        return self.period

    @property
    def probability(self) -> float:
        """Share of the rounds that one client takes part in."""
        return 1 / self.period

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds."""
        return -(-count // self.period)

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        turns = "cyclic: holds if a client's turn depends only on its id, not on other clients"
        return (turns,) if adjacency is Adjacency.ADD_REMOVE else ()


@dataclass(frozen=True, kw_only=True)
class Shuffled(_Schedule):
    """Epochs of a uniformly random order of all clients, drawn anew for each epoch and cut into batches of exactly
    `cohort`; the last, smaller batch is dropped.

    Claim: T rounds compose as ceil(T / period) unsampled releases: given the orders, a client takes part at most once
    an epoch, and the orders do not depend on its data. No smaller bound is known for usual deltas.
    Source: Chua et al. 2024, arXiv 2411.04205 (lower bound: `compose.lower_bound`).
    Adjacency: zero-out or replace-one. One client added would move others to other batches.
    Errors: InvalidParameter for a cohort larger than the population.

    >>> from accounting.mechanisms import Shuffled
    >>> Shuffled(cohort=256, clients=60_000).most_participations(2340)
    10
    """

    cohort: int
    clients: int
    stream: str = ""
    name: ClassVar[str] = "shuffled"
    secret: ClassVar[bool] = False
    attack_is_weaker: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "cohort", "clients")
        require.stream_name(self.stream)
        if self.cohort > self.clients:
            raise InvalidParameter(f"cohort={self.cohort} of clients={self.clients}: must be at most all clients.")

    @property
    def period(self) -> int:
        """Number of rounds of an epoch."""
        return self.clients // self.cohort

    @property
    def probability(self) -> float:
        """Probability that one client takes part in a given round."""
        return self.cohort / self.clients

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds."""
        return -(-count // self.period)

    @property
    def epoch(self) -> int:
        """Rounds after which participation is drawn anew."""
        return self.period

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (
            "shuffled: a client takes part once in an epoch of a random order, which has no known amplification at "
            "this delta; the epsilon of Poisson sampling does not hold (lower bound: arXiv 2411.04205)",
        )


Schedule = BallsAndBins | Allocation | MinSeparation | Cyclic | Shuffled | CorrelatedRounds
"""Participation schedule over many rounds."""

SCHEDULES: dict[str, type[Schedule]] = dict(Participation.kinds)
"""Class of each schedule by name."""
