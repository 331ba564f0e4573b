"""Running epsilon of a run whose rounds differ, and iterators of epsilon after 1, 2, ... equal rounds.

A round needs one convolution instead of a new composition.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from accounting import require
from accounting.arrays import Floats
from accounting.compose import adaptive, loss_grid, pld, rdp
from accounting.compose.accountant import Accountant, analytic_epsilon, epsilon, exact_account, no_bound_message
from accounting.compose.pld import LossAccount
from accounting.compose.twins import Continuous, allowed_loss, continuous, overflow, plain_shift
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Composed, ReleasedRounds, SingleRelease, parts_of, schedule_of

_LARGEST_WIDENING = 4.0
"""Largest factor by which losses may be wider than planned on a grid."""


class Running:
    """Running composition, to which releases are added one by one, and its epsilon at `delta`.

    typical, rounds: a typical release and the planned number of releases, which determine grid and orders. Every value
    is an upper bound, equal to that of `compose.accountant.epsilon` within the tolerance of the grid. "best" is the
    smallest bound of the privacy loss distribution, the adaptive account of fixed-size sampling and the Renyi account;
    the first two require (nearly) Gaussian noise. Rounds of a participation schedule are accounted jointly and again
    for every epsilon, by their round numbers (`mechanisms.stream_rounds`).
    """

    def __init__(self, *, delta: float, typical: SingleRelease, rounds: int, accountant: Accountant = "best") -> None:
        schedule = schedule_of(typical)
        rounds = rounds if schedule is None or schedule.ends_after is None else min(rounds, schedule.ends_after)
        self._delta, self._rounds = delta, rounds = require.open_probability(delta=delta), require.count(rounds=rounds)
        self._scheduled = ReleasedRounds()
        self._lost, self._count = 0.0, 0
        self._accounts: list[_RunningLosses | _RunningCurve] = []
        lost = allowed_loss(delta, rounds)
        losses = [name for name in ("pld", "adaptive") if accountant in ("best", name)]
        large = bool(losses) and delta >= pld.SMALLEST_DELTA
        if large and (replacement := _gaussian_replacement(typical, rounds, lost)) is not None:
            if replacement.pairwise and losses == ["adaptive"]:
                raise UnsupportedMechanism(no_bound_message(accountant, typical, delta))
            self._accounts.append(_RunningLosses(replacement, rounds, delta=delta, lost=lost, accountants=losses))
        if accountant in ("best", "rdp"):
            self._accounts.append(_RunningCurve(typical, rounds, beside_losses=bool(self._accounts)))
        if not self._accounts:
            raise UnsupportedMechanism(no_bound_message(accountant, typical, delta))

    def add(self, release: SingleRelease, count: int = 1, *, first: int | None = None) -> None:
        """Add `count` equal releases.

        first: the round of the first one, if they are consecutive rounds of a schedule; None: the round after the
        largest one so far
        """
        self._count += require.count(count=count)
        if schedule_of(release) is not None:
            first = self._scheduled.stream_of(release).next_round if first is None else require.count(0, first=first)
            for number in range(first, first + count):
                self._scheduled.add(release, number)
            return
        self._lost += count * overflow(release)
        for account in tuple(self._accounts):
            try:
                account.add(release, count)
            except UnsupportedMechanism:
                if len(self._accounts) == 1:
                    raise
                self._accounts.remove(account)  # the other account remains

    def epsilon(self, also: SingleRelease | None = None, *, number: int | None = None) -> float:
        """Return epsilon of all releases so far, followed by `also`.

        number: the round of `also` if it is of a schedule; None: the round after the largest one so far
        """
        if also is None and not self._count:
            return 0.0
        scheduled = self._scheduled
        if also is not None and schedule_of(also) is not None:
            scheduled, also = scheduled.with_release(also, number), None
        schedule_rounds = scheduled.composition() if scheduled else None
        target = self._delta - self._lost - (overflow(also) if also is not None else 0.0)
        if target <= 0:
            return math.inf
        bounds = []
        for account in self._accounts:
            try:
                bounds.append(account.epsilon(target, also, schedule_rounds))
            except UnsupportedMechanism:
                if account is self._accounts[-1]:
                    raise
        return min(bounds)


class _RunningCurve:
    """Running Renyi account: curves with and without caps, and the part of delta that the latter needs."""

    def __init__(self, typical: SingleRelease, rounds: int, *, beside_losses: bool) -> None:
        self._orders, self._rounds, self._beside_losses = rdp.orders(typical), rounds, beside_losses
        zeros = np.zeros_like(self._orders)
        self._sums = zeros, zeros, 0.0

    def add(self, release: SingleRelease, count: int) -> None:
        self._sums = self._with_release(release, count)

    def epsilon(self, delta: float, also: SingleRelease | None, scheduled: Composed | None) -> float:
        curve, uncapped, lost = self._sums if also is None else self._with_release(also, 1)
        schedules = rdp.curve(scheduled, self._orders) if scheduled is not None else 0.0
        choices = [(curve, delta), *([(uncapped, delta - lost)] if 0 < lost < delta else [])]
        return min(rdp.epsilon_from_curve(self._orders, one + schedules, delta=left).epsilon for one, left in choices)

    def _with_release(self, release: SingleRelease, count: int) -> tuple[Floats, Floats, float]:
        curve, uncapped, lost = self._sums
        mechanism, more = rdp.valid_mechanisms(Composed(parts=((release, count),)))[-1]
        ((one, _),) = parts_of(mechanism)
        return curve + count * self._curve_of(release), uncapped + count * self._curve_of(one), lost + more

    def _curve_of(self, release: SingleRelease) -> Floats:
        # The Renyi curve of a discrete Gaussian is that of the planned composition, divided by its number of rounds.
        planned_composition = Composed(parts=((release, self._rounds),))
        try:
            return np.asarray(rdp.curve(planned_composition, self._orders) / self._rounds)
        except UnsupportedMechanism:
            if not self._beside_losses:
                raise
            # Replace-one under Poisson sampling: the account by loss distributions remains.
            return np.full_like(self._orders, np.inf)


class _RunningLosses:
    """Running account by privacy loss distributions, on the grid of the planned rounds, and by the adaptive account."""

    def __init__(
        self, replacement: Continuous, rounds: int, *, delta: float, lost: float, accountants: Sequence[str]
    ) -> None:
        self._rounds, self._delta, self._lost, self._accountants = rounds, delta, lost, accountants
        self._make_account(_repeated(replacement, rounds), pairwise=replacement.pairwise)

    def _make_account(self, mechanism: Composed, *, pairwise: bool) -> None:
        """Make an empty account on the grid of `mechanism`."""
        planned, _ = mechanism.parts[0]
        self._interval = loss_grid.interval(mechanism)
        adapts = "adaptive" in self._accountants and not pairwise
        self._adaptive_account = adaptive.Adding(planned, rounds=self._rounds, delta=self._delta) if adapts else None
        self._accounts: dict[SingleRelease, LossAccount] = {}
        self._runs: list[tuple[SingleRelease, int]] = []
        self._tilt = pld.tilt(planned, self._rounds, self._interval, self._delta)
        self._total: LossAccount | None = None
        self._count = 0

    def _coarsen_grid(self, mechanism: Composed, *, pairwise: bool) -> None:
        """Compose all releases again on the grid of `mechanism`, if its losses do not fit in memory on the present
        grid.

        Every grid gives an upper bound.
        """
        if loss_grid.least_interval(mechanism) <= _LARGEST_WIDENING * self._interval:
            return
        runs = self._runs
        self._make_account(mechanism, pairwise=pairwise)
        for release, count in runs:
            self.add(release, count)

    def add(self, release: SingleRelease, count: int) -> None:
        one = self._account_of(release)
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == release else 0
        self._runs.append((release, before + count))
        self._total = self._with_release(release, count)
        if one.pairwise:  # domination of pairs does not suffice for three vectors (docs/theory.md, section 4)
            self._adaptive_account = None
        if self._adaptive_account is not None:
            self._adaptive_account.add(_one_release(one), count)
        # The ends that a self-composition truncates may also wrap around: 1e-15, twice the slack of five compositions.
        self._count += count + (5 if count > 1 else 0)

    def epsilon(self, delta: float, also: SingleRelease | None, scheduled: Composed | None) -> float:
        last = None if also is None else self._account_of(also)
        replacement = None if scheduled is None else continuous(scheduled, lost=self._lost)
        if replacement is not None:
            if not pld.supports(replacement.mechanism):
                raise UnsupportedMechanism("the rounds of this schedule have no privacy loss distribution.")
            self._coarsen_grid(Composed(parts=parts_of(replacement.mechanism)), pairwise=replacement.pairwise)
        total = self._total if also is None else self._with_release(also)
        count = self._count + (also is not None)
        if replacement is not None:
            total = LossAccount.of(replacement, self._interval, tilt=self._tilt).after(total)
            count += sum(rounds for _, rounds in parts_of(replacement.mechanism)) + 5
        if total is None:
            return 0.0
        left = total.delta_left(delta)
        slack = 2 * pld.composition_slack(count)
        bounds = [total.epsilon(delta, slack) if "pld" in self._accountants else math.inf]
        pairwise = any(one is not None and one.pairwise for one in (last, replacement))
        if self._adaptive_account is not None and left > 0 and not pairwise:
            further = None if last is None else _one_release(last)
            schedule_rounds = None if replacement is None else replacement.mechanism
            bounds.append(self._adaptive_account.epsilon(left, further, scheduled=schedule_rounds))
        alone = self._total is None and last is None and len(self._accountants) > 1
        if replacement is not None and alone and left > 0:
            with suppress(UnsupportedMechanism):  # the first rounds of a schedule have a closed form
                bounds.append(analytic_epsilon(replacement, left))
        return min(bounds) + 2 * total.closeness

    def _with_release(self, release: SingleRelease, count: int = 1) -> LossAccount:
        one = self._account_of(release)
        return (one.repeated(count) if count > 1 else one).after(self._total)

    def _account_of(self, release: SingleRelease) -> LossAccount:
        """Return the account of one release, cached."""
        if release not in self._accounts:
            replacement = _gaussian_replacement(release, self._rounds, self._lost)
            if replacement is None:
                raise UnsupportedMechanism(f"{type(release).__name__}: no privacy loss distribution is implemented.")
            self._coarsen_grid(_repeated(replacement, self._rounds), pairwise=replacement.pairwise)
            self._accounts[release] = LossAccount.of(replacement, self._interval, tilt=self._tilt)
        return self._accounts[release]


def _one_release(account: Continuous) -> SingleRelease:
    ((release, _),) = parts_of(account.mechanism)
    return release


def _repeated(replacement: Continuous, rounds: int) -> Composed:
    return Composed(parts=((_one_release(replacement), rounds),))


def _gaussian_replacement(release: SingleRelease, rounds: int, lost: float) -> Continuous | None:
    """Return one of `rounds` releases with Gaussian noise, and its closeness; None if no Gaussian replaces it."""
    try:
        replacement = continuous(Composed(parts=((release, rounds),)), lost=lost)
    except UnsupportedMechanism:
        return None
    ((twin, _),) = parts_of(replacement.mechanism)
    if not pld.supports(twin):
        return None
    return replace(
        replacement, mechanism=twin, closeness=replacement.closeness / rounds, lost=replacement.lost / rounds
    )


def epsilons(
    mechanism: SingleRelease, *, delta: float, rounds: int, accountant: Accountant = "best"
) -> Iterator[float]:
    """Yield epsilon after 1, 2, ... rounds of `mechanism`, each an upper bound. It is fast enough for progress bars and
    stopping rules.

    rounds: number of planned rounds. Each value equals `epsilon` of the composition within the tolerance of the grid.
    """
    delta = require.open_probability(delta=delta)
    if plain_shift(mechanism) is not None and accountant in ("best", "pld"):
        return (epsilon(Composed(parts=((mechanism, count),)), delta=delta) for count in itertools.count(1))
    streams: list[Iterator[float]] = []
    if accountant == "exact" or (
        accountant == "best" and exact_account(Composed(parts=((mechanism, rounds),))) is not None
    ):
        streams.append(_exact_epsilons(mechanism, delta))
    if accountant in ("best", "pld", "adaptive", "rdp"):
        try:
            streams.append(_running_epsilons(mechanism, delta, rounds, accountant))
        except UnsupportedMechanism:
            if not streams:
                raise
    if not streams:
        raise UnsupportedMechanism(no_bound_message(accountant, mechanism, delta))
    return map(min, zip(*streams, strict=False))


def _exact_epsilons(mechanism: SingleRelease, delta: float) -> Iterator[float]:
    accounts = (exact_account(Composed(parts=((mechanism, count),))) for count in itertools.count(1))
    return (math.inf if account is None else account(delta) for account in accounts)


def _running_epsilons(mechanism: SingleRelease, delta: float, rounds: int, accountant: Accountant) -> Iterator[float]:
    running = Running(delta=delta, typical=mechanism, rounds=rounds, accountant=accountant)

    def after_another(number: int) -> float:
        running.add(mechanism)
        return running.epsilon()

    first = after_another(1)  # now, so that a release without an account is refused before the first round
    return itertools.chain([first], map(after_another, itertools.count(2)))
