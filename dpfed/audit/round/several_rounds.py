"""Test of several rounds together in two worlds, for participation schedules and correlated noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from accounting.arrays import Floats
from accounting.compose import profiles
from accounting.factorisation import column
from accounting.factorisation.toeplitz import squared_sensitivity
from accounting.ledger import Release
from accounting.mechanisms import BallsAndBins, Composed, CorrelatedRounds, Cyclic, Schedule, gaussian_of, schedule_of
from accounting.rounding import downwards, upwards
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.audit.statistics.rejection import ClaimTest, reject_claim
from dpfed.audit.statistics.thresholds import Thresholds, gaussian_threshold
from dpfed.audit.verdict import Check
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.randomness import Simulated
from dpfed.round import draw_round_cohort
from dpfed.seeds import Seeds

PILOT = 40
_LOUD = 1e3


@dataclass(frozen=True, kw_only=True, eq=False)
class RepeatedRounds:
    """Repeated trials of the first `rounds` rounds of a run: client 0 sends a loud update (world 1) or zeros (world 0).

    All other clients send zeros. Every trial has the run's sampler, stages and noise, with a separate seed. Its outputs
    are inner products with the direction of client 0: of each round's release or, if every upload is visible, of the
    upload of client 0.
    The score is a log-likelihood ratio. With correlated noise, it is given the rounds of client 0, which are public.
    With balls-and-bins, it is that of a client that has the same bin of its lane in every epoch, which finds reused
    bins. With other schedules, it is the sum over rounds at the client's probability to take part.
    """

    one_round: OneRound
    rounds: int

    @property
    def schedule(self) -> Schedule:
        found = schedule_of(self._charged_release.mechanism)
        if found is None:
            raise ConfigError(
                "several rounds together: the test requires a participation schedule or correlated noise."
            )
        return found

    @cached_property
    def claim(self) -> Composed:
        """Claim of all rounds together."""
        return Composed(parts=((self._charged_release.mechanism, self.rounds),))

    def scores(self, world: int, seeds: range) -> Floats:
        """Return one score for each seed, from trials in this world."""
        return np.array([self._score(list(self._outputs(world, seed))) for seed in seeds])

    def claim_test(self, trials: int, *, alpha: float, seed: int = 0) -> ClaimTest:
        """Test the claimed profile of all rounds by `trials` trials, half of them in each world.

        Claim: a run that satisfies the claim is rejected with probability at most alpha.
        """
        first = seed * (2 * trials + 2 * PILOT)
        cuts = self._thresholds(trials, alpha, range(first, first + PILOT))
        at = first + PILOT
        scores = [self.scores(w, range(at + w * (trials // 2), at + (w + 1) * (trials // 2))) for w in (0, 1)]
        return reject_claim(scores[0], scores[1], profiles.profile(self.claim), alpha=alpha, thresholds=cuts)

    @cached_property
    def _charged_release(self) -> Release:
        release = self.one_round.method.release(replace(self.one_round.announcement, uploads=self.one_round.clients))
        assert release is not None  # the caller audits private rounds only
        return release

    @cached_property
    def _direction(self) -> tuple[torch.Tensor, float]:
        """Return the direction of the client's contribution to the release, and the standard deviation
        of fresh noise.
        """
        quiet = WholeRounds(one_round=self.one_round.without_noise)
        shown = quiet.released_sum(quiet.run(self._updates_in_world(quiet, 1), np.zeros(1, dtype=np.int64)))
        return shown / torch.linalg.vector_norm(shown), self._charged_release.noise_std

    def _updates_in_world(self, rounds: WholeRounds, world: int) -> torch.Tensor:
        nothing = torch.zeros(self.one_round.method.clients.course.size)
        return rounds.moves(nothing + _LOUD if world else nothing, nothing)

    def _outputs(self, world: int, seed: int) -> Iterator[tuple[float, bool]]:
        """Yield, for each round, the release along the direction over the noise, and True if client 0 took part."""
        one = self.one_round.with_randomness(Simulated(seeds=Seeds(root=seed)))
        direction, std = self._direction
        for number in range(self.rounds):
            rounds = WholeRounds(one_round=replace(one, state=replace(one.state, round=number)))
            cohort = draw_round_cohort(one.method, number)
            if one.method.stages.every_upload_is_a_release:
                cohort = cohort[:1] if len(cohort) and cohort[0] == 0 else cohort[:0]
            shown = rounds.released_sum(rounds.run(self._updates_in_world(rounds, world), cohort))
            yield float(shown @ direction) / std, bool(len(cohort) and cohort[0] == 0)

    def _score(self, seen: list[tuple[float, bool]]) -> float:
        y, there = np.array([value for value, _ in seen]), np.array([one for _, one in seen], dtype=float)
        noise, schedule = gaussian_of(self._charged_release.mechanism), self.schedule
        assert noise is not None
        if isinstance(schedule, BallsAndBins) and schedule.secret_lanes:
            logs = self._likelihood_ratio(schedule, y, 1 / noise.noise_multiplier, every=1)
            logs = np.append(logs, np.zeros(-len(logs) % schedule.bins))
            in_lane = logs.reshape(-1, schedule.bins // schedule.lanes, schedule.lanes)
            return float(np.logaddexp.reduce(np.logaddexp.reduce(in_lane, axis=1).sum(axis=0)))
        if isinstance(schedule, BallsAndBins):
            logs = self._likelihood_ratio(schedule, y, 1 / noise.noise_multiplier, every=schedule.lanes)
            bins = schedule.lane_schedule.bins
            logs = np.append(logs, np.zeros(-len(logs) % bins))
            return float(np.logaddexp.reduce(logs.reshape(-1, bins).sum(axis=0)))
        if schedule.secret:
            chance, s = schedule.probability, 1 / noise.noise_multiplier
            with np.errstate(divide="ignore"):
                none = np.log1p(-chance) if chance < 1 else -np.inf
            return float(np.logaddexp(none, np.log(chance) + s * y - s * s / 2).sum())
        c = column(schedule, self.rounds) if isinstance(schedule, CorrelatedRounds) else np.ones(1)
        fresh, pattern = (np.convolve(c, part)[: self.rounds] for part in (y, there))
        return float(fresh @ pattern / max(np.linalg.norm(pattern), 1e-300))

    def _likelihood_ratio(self, schedule: BallsAndBins, y: Floats, s: float, *, every: int) -> Floats:
        """Return the log-likelihood ratio that client 0 took part in round r, for r = 0, every, 2 every, ..."""
        c = np.array(schedule.coefficients)
        fresh = np.convolve(c, y)[: self.rounds]
        columns = [(c[: self.rounds - first], first) for first in range(0, self.rounds, every)]
        shown = [
            s * column @ fresh[first : first + len(column)] - s * s * column @ column / 2 for column, first in columns
        ]
        return np.array(shown)

    def _thresholds(self, trials: int, alpha: float, pilot: range) -> Thresholds:
        noise = gaussian_of(self._charged_release.mechanism)
        assert noise is not None
        if not self.schedule.secret:
            mu = squared_sensitivity(self.schedule, self.rounds) ** 0.5 * noise.mu
            return gaussian_threshold(mu, trials=trials // 2, alpha=alpha)
        return Thresholds(values=(float(np.median(self.scores(1, pilot))),), origin="a pilot")


def several_rounds_check(one: OneRound, rounds: int, *, trials: int, alpha: float, seed: int) -> Check:
    """Check that several rounds together satisfy the charged profile.

    For Bernoulli samples, rounds depend on each other only by the public order of clients; the check is then that no
    client takes part more often than this order allows.
    """
    stream = RepeatedRounds(one_round=one, rounds=rounds)
    if one.method.stages.find(PrivateCoins) is not None:
        return _order_check(one, stream.schedule)
    found = stream.claim_test(trials, alpha=alpha, seed=seed)
    detail = (
        f"{trials} trials of {rounds} rounds: at epsilon {upwards(found.epsilon)} they show a delta of at least "
        f"{downwards(max(found.seen, 0.0))}; {upwards(found.claimed)} is claimed."
    )
    return Check(name="several rounds together", passed=not found.rejected, detail=detail)


def _order_check(one: OneRound, schedule: Schedule) -> Check:
    assert isinstance(schedule, Cyclic)  # the only accounted schedule of Bernoulli samples
    rounds = 3 * schedule.period
    came = np.zeros((rounds, one.method.sampler.clients), dtype=int)
    for number in range(rounds):
        came[number, draw_round_cohort(one.method, number)] = 1
    together = np.lib.stride_tricks.sliding_window_view(came, schedule.period, axis=0).sum(axis=-1)
    return Check(
        name="public order",
        passed=int(together.max()) <= 1,
        detail=f"in any {schedule.period} consecutive rounds (one pass of the order) of {rounds} rounds, a client "
        f"takes part at most {int(together.max())} times.",
    )
