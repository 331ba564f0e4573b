"""Multiset of the rounds of one stream: the releases of a schedule that ran, by their round numbers, never by a count.

Claim: let every round up to the largest, T - 1, have at most m releases. Then all of them are dominated by the first T
rounds of the schedule with m releases each. A release that was left out is a query of zeros, so this also holds if the
set of rounds was chosen by looking at results. Releases of one round are of the same participants, so m of them are not
m independent schedules: m Gaussian releases of one round are one of noise multiplier z / sqrt(m).
Correlated noise: a row that was left out is post-processing only if its noise was drawn all the same, and rows must be
released in order, once each.
Streams that are interleaved with each other, or with other releases, compose as if they ran one after the other:
Haney et al. 2023, arXiv 2309.05901.
Source: docs/theory-participation.md, Theorem 9.
Direction of error: upper bound.
"""

from collections import Counter
from collections.abc import Set
from copy import copy
from dataclasses import replace

from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.descriptions import Composed, SingleRelease, Subsampled, gaussian_of, schedule_of, unsampled
from accounting.mechanisms.samplings.sampling import Schedule, noise_matrix

_ROUNDING = 1 + 1e-15
"""Factor above the relative error of z / sqrt(m)."""
_SHORT, _SPARSE = 10_000, 100
"""Rounds of a schedule that are accounted with amplification: this many, or this many for each release."""


class StreamRounds:
    """Rounds of one stream with their numbers of releases.

    release: the release of every round. drawn: rounds without a release whose correlated noise was drawn.
    Adjacency: that of the release.

    >>> from accounting import Gaussian, subsample
    >>> from accounting.mechanisms import Cyclic
    >>> rounds = StreamRounds(subsample(Gaussian(noise_multiplier=1.0, adjacency="zero-out"), Cyclic(period=10)))
    >>> for number in (0, 10, 20, 30):
    ...     rounds.add(number)
    >>> rounds.part()[1]
    4
    """

    def __init__(self, release: SingleRelease, drawn: Set[int] = frozenset()) -> None:
        schedule = schedule_of(release)
        assert schedule is not None  # the caller has checked
        self.release, self.schedule = release, schedule
        self._drawn = drawn
        self._times: Counter[int] = Counter()
        self._nonces: set[tuple[int, str]] = set()
        self.next_round, self._has_gap = 0, False  # next_round: the round after the largest one

    @property
    def is_exact(self) -> bool:
        """True if these are the first rounds, each once."""
        return len(self._times) == self._times.total() == self.next_round

    def __contains__(self, number: int) -> bool:
        return self._times[number] > 0

    def add(self, number: int, nonce: str | None = None) -> None:
        """Add one release of a round. A second line with the nonce of an earlier one is the same release."""
        if nonce is not None:
            if (number, nonce) in self._nonces:
                return
            self._nonces.add((number, nonce))
        self._has_gap |= self._leaves_gap(number)
        self._times[number] += 1
        self.next_round = max(self.next_round, number + 1)

    def with_round(self, number: int) -> "StreamRounds":
        """Return these rounds and one more release of round `number`."""
        found = copy(self)
        found._times, found._nonces = self._times.copy(), set()
        found.add(number)
        return found

    def _leaves_gap(self, number: int) -> bool:
        """Return True if correlated noise of this round does not follow the rows before it."""
        return is_correlated(self.schedule) and (
            number < self.next_round or not all(row in self._drawn for row in range(self.next_round, number))
        )

    def refusal(self, release: SingleRelease, number: int, nonce: str | None = None) -> str | None:
        """Return the reason for which a further release of this stream would have no account, or repeats a round; None
        without one.
        """
        if nonce is not None and (number, nonce) in self._nonces:
            return None
        stream = f"stream {self.schedule.stream!r} of {self.schedule.name!r}"
        last = self.schedule.ends_after
        if release != self.release:
            return f"{stream} has another release, and all rounds of one schedule must have the same release."
        if number in self:
            return (
                f"{stream} has a release of round {number} already, and a round has one release. Lines of one release "
                "carry the same nonce."
            )
        if last is not None and number >= last:
            return f"{stream} ends after {last} rounds, and rounds are numbered from 0."
        if self._leaves_gap(number):
            return (
                f"{stream} has correlated noise, whose next row is {self.next_round}. State that the noise of rounds "
                "without a release was drawn, by Aborted(round=..., reason=..., noise_drawn=True), and release rows in "
                "order."
            )
        return None

    def part(self) -> tuple[SingleRelease, int]:
        """Return the part of a composition that dominates these rounds: (release, number of first rounds).

        Errors: UnsupportedMechanism for rounds without an account.
        """
        rounds, most = self.next_round, max(self._times.values())
        named = f"stream={self.schedule.stream!r} with sampling={self.schedule.name!r}"
        if self._has_gap:
            raise UnsupportedMechanism(
                f"{named}: rows of correlated noise are missing, repeated or out of order, so their noise is not that "
                "of the matrix. No epsilon is known."
            )
        last = self.schedule.ends_after
        if last is not None and rounds > last:
            raise UnsupportedMechanism(f"{named}: has round {rounds - 1}, but the schedule ends after {last} rounds.")
        total, noise = self._times.total(), gaussian_of(self.release)
        if most == 1 and (total == rounds or is_correlated(self.schedule)):
            return self.release, rounds
        if self.schedule.secret and (most == 1 or noise is not None) and rounds <= max(_SHORT, _SPARSE * total):
            if noise is None or most == 1:
                return self.release, rounds
            smaller = replace(noise, noise_multiplier=noise.noise_multiplier / most**0.5 / _ROUNDING)
            return Subsampled(mechanism=smaller, sampling=self.schedule), rounds
        # Divergences are jointly convex in the pattern of participations, and every pattern is a composition.
        return unsampled(self.release), min(total, most * self.schedule.most_participations(rounds))


def is_correlated(schedule: Schedule) -> bool:
    """Return True if the noise of a round is subtracted again in later rounds."""
    matrix = noise_matrix(schedule)
    return matrix is not None and (len(matrix.coefficients) > 1 or bool(matrix.weights))


class ReleasedRounds:
    """Releases in order, with the rounds of every stream by their numbers.

    >>> from accounting import Gaussian, subsample
    >>> from accounting.mechanisms import Cyclic
    >>> released = ReleasedRounds()
    >>> turns = subsample(Gaussian(noise_multiplier=1.0, adjacency="zero-out"), Cyclic(period=10))
    >>> released.add(turns, 0)
    >>> released.add(turns, 1)
    >>> released.composition().parts[0][1], released.is_exact
    (2, True)
    """

    def __init__(self) -> None:
        self.streams: dict[str, StreamRounds] = {}
        self._drawn: set[int] = set()
        self._runs: list[tuple[SingleRelease, int] | StreamRounds] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def is_exact(self) -> bool:
        """True if `composition` is of exactly these releases, so that its lower bound is theirs."""
        return all(one.is_exact for one in self.streams.values())

    def add(self, release: SingleRelease, number: int, nonce: str | None = None) -> None:
        """Add one release of round `number`."""
        schedule = schedule_of(release)
        if schedule is None:
            last = self._runs[-1] if self._runs else None
            if isinstance(last, tuple) and last[0] == release:
                self._runs[-1] = release, last[1] + 1
            else:
                self._runs.append((release, 1))
            return
        stream = self.streams.get(schedule.stream)
        if stream is None or stream.release != release:
            stream = self.streams[schedule.stream] = StreamRounds(release, self._drawn)
            self._runs.append(stream)
        stream.add(number, nonce)

    def with_release(self, release: SingleRelease, number: int | None) -> "ReleasedRounds":
        """Return these releases and one more; number None: the round after the largest one of its schedule."""
        found = copy(self)
        found._runs, found.streams = list(self._runs), dict(self.streams)
        schedule = schedule_of(release)
        known = None if schedule is None else self.streams.get(schedule.stream)
        if known is None or known.release != release:  # `composition` refuses two releases of one stream
            found.add(release, number or 0)
            return found
        more = known.with_round(known.next_round if number is None else number)
        found.streams[known.schedule.stream] = more
        found._runs[next(place for place, run in enumerate(found._runs) if run is known)] = more
        return found

    def add_drawn(self, number: int) -> None:
        """Add a round without a release whose correlated noise was drawn."""
        self._drawn.add(number)

    def refusal(self, release: SingleRelease, number: int, nonce: str | None = None) -> str | None:
        """Return the reason for which a further release would have no account, or repeats a round of a schedule; None
        without one.
        """
        return None if schedule_of(release) is None else self.stream_of(release).refusal(release, number, nonce)

    def stream_of(self, release: SingleRelease) -> StreamRounds:
        """Return the rounds so far of the schedule of a release."""
        new = StreamRounds(release, self._drawn)
        return self.streams.get(new.schedule.stream, new)

    def composition(self) -> Composed:
        """Return the composition that dominates these releases; there must be at least one.

        A schedule has the place of its first round, because accounts that depend on the order put it first.
        Errors: UnsupportedMechanism for rounds without an account; those of `Composed`.
        """
        streams = tuple((run.release, 1) for run in self._runs if isinstance(run, StreamRounds))
        if len(streams) > 1:
            Composed(parts=streams)  # raises for two releases of one stream
        return Composed.of_runs(run.part() if isinstance(run, StreamRounds) else run for run in self._runs)
