"""Epsilon during a run: after the rounds so far, and after one more round; error texts for budgets that are too
small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.caveats import no_round_fits_message
from accounting.compose import accountant, running
from accounting.compose.histories import Histories
from accounting.compose.running import Running
from accounting.ledger import LocalRelease, Release
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import Composed, ReleasedRounds, schedule_of
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.methods.records import AnyTarget, RecordTarget
from dpfed.runs.book import LedgerBook
from dpfed.runs.experiment import Experiment

_TOLERANCE = 1e-2
"""Relative excess over the budget below which a running account is replaced by the account of all releases together."""


class Spending(Protocol):
    """A running account of epsilon: `with_round` is called before a round, `charge` after it."""

    def with_round(self, cohort: NDArray[np.int64], number: int) -> float:
        """Return epsilon including one more round of this cohort, with its largest possible charge."""

    def charge(self, release: Release | LocalRelease | None) -> float:
        """Charge the release of a round, None if it has no release, and return epsilon so far."""


def spending_account(experiment: Experiment, book: LedgerBook | None, rounds_done: int) -> Spending | None:
    """Return the running account for the remaining rounds; None in a run without privacy.

    Every epsilon is an upper bound.
    """
    privacy_target = experiment.privacy_target
    if privacy_target is None or book is None:
        return None
    before = book.counted_releases(rounds_done)
    if privacy_target.unit == "record":
        return RecordSpending(experiment, privacy_target, before)
    lines = [release for release in before if isinstance(release, Release)]
    scheduled = privacy_target.schedule is not None or schedule_of(privacy_target.mechanism) is not None
    if scheduled or privacy_target.charge_varies:
        return VaryingRounds(privacy_target, experiment.config.federation.rounds, lines)
    return EqualRounds(privacy_target, experiment.config.federation.rounds, len(lines))


class EqualRounds:
    """Account of rounds with equal mechanisms, with one convolution of loss distributions per round."""

    def __init__(self, privacy_target: PrivacyTarget, rounds: int, charged: int) -> None:
        self._target = privacy_target
        self._values: list[float] = [0.0]
        self._stream: Iterator[float] = running.epsilons(
            privacy_target.mechanism, delta=privacy_target.delta, rounds=rounds, accountant=privacy_target.accountant
        )
        self._charged = charged

    def with_round(self, cohort: NDArray[np.int64], number: int) -> float:
        return self.epsilon_after(self._charged + 1)

    def charge(self, release: Release | LocalRelease | None) -> float:
        self._charged += release is not None
        return self.epsilon_after(self._charged)

    def epsilon_after(self, count: int) -> float:
        """Return epsilon of `count` rounds."""
        while len(self._values) <= count:
            self._values.append(next(self._stream))
        return _stated_epsilon(
            self._target, self._values[count], lambda: Composed(parts=((self._target.mechanism, count),))
        )


class VaryingRounds:
    """Account of rounds that differ: by the noise that arrived, by a noise schedule, or by a participation schedule.

    The next round is assumed to have its largest possible charge; rounds of a participation schedule are accounted
    together.
    """

    def __init__(self, privacy_target: PrivacyTarget, rounds: int, before: list[Release]) -> None:
        self._target, self._released = privacy_target, ReleasedRounds()
        self._running = Running(
            delta=privacy_target.delta,
            typical=privacy_target.mechanism,
            rounds=rounds,
            accountant=privacy_target.accountant,
        )
        for release in before:
            self._add(release)

    def with_round(self, cohort: NDArray[np.int64], number: int) -> float:
        release = self._target.mechanism_of_round(number)
        return _stated_epsilon(
            self._target,
            self._running.epsilon(release, number=number),
            lambda: self._released.with_release(release, number).composition(),
        )

    def charge(self, release: Release | LocalRelease | None) -> float:
        if isinstance(release, Release):
            self._add(release)
        return _stated_epsilon(self._target, self._running.epsilon(), self._released.composition)

    def _add(self, release: Release) -> None:
        self._running.add(release.mechanism, first=release.round)
        self._released.add(release.mechanism, release.round)


def _stated_epsilon(privacy_target: PrivacyTarget, found: float, releases: Callable[[], Composed]) -> float:
    """Return the epsilon `found` of a running account, or the epsilon of all releases accounted together if `found` is
    just above the budget.

    Both are upper bounds. Noise is calibrated with the account of all releases together, so that the last planned round
    is within budget.
    """
    if privacy_target.budget is None or not 0 < found / privacy_target.budget - 1 < _TOLERANCE:
        return found
    return min(found, accountant.epsilon(releases(), delta=privacy_target.delta, accountant=privacy_target.accountant))


class RecordSpending:
    """Account of private records: every client is charged for its own steps, and epsilon is that of the worst
    client."""

    def __init__(
        self, experiment: Experiment, privacy_target: RecordTarget, before: list[Release | LocalRelease]
    ) -> None:
        self._local, self._target, self._histories = experiment.method.clients, privacy_target, Histories()
        for release in before:
            if isinstance(release, LocalRelease):
                self._histories.add(release.steps)

    def with_round(self, cohort: NDArray[np.int64], number: int) -> float:
        release = self._local.release(cohort, number=number)
        assert release is not None
        self._histories.add(release.steps)
        return self._epsilon()

    def charge(self, release: Release | LocalRelease | None) -> float:
        return self._epsilon()

    def _epsilon(self) -> float:
        return self._histories.epsilon(delta=self._target.delta, accountant=self._target.accountant)


def over_budget_text(privacy_target: AnyTarget, after: float) -> str:
    """Return the error text for a budget that the first round would exceed; `after` is epsilon after this round."""
    return no_round_fits_message(
        f"{privacy_target.table}.epsilon",
        allowed=privacy_target.budget or 0.0,
        after=after,
        delta=privacy_target.delta,
        advice=f"{privacy_target.advice} or {privacy_target.table}.epsilon.",
    )


def over_project_budget_text(privacy_target: AnyTarget, project: ProjectLedger, why: str) -> str:
    """Return the error text for a project's budget that the first round would exceed, for the reason `why`."""
    return (
        f"{project.ledger.path} (a project ledger): not even one round fits: {why} {privacy_target.advice}, or do "
        "without the run."
    )
