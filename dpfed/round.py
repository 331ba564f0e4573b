"""One federated round: what is announced, what clients do, what the sum becomes, what is charged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Aborted, Entry, LocalRelease, Release
from dpfed.aggregation.dropouts import Dropouts
from dpfed.aggregation.plain import PlainSum
from dpfed.aggregation.ranks import Alone, Ranks, Task
from dpfed.aggregation.summed import Collecting, Opened, OpenSum, Sums
from dpfed.clients.training import LocalTraining
from dpfed.diagnostics.record import RoundRecord
from dpfed.diagnostics.watch import Watch
from dpfed.errors import SecureSumAborted
from dpfed.participation.canaries import Canaries
from dpfed.participation.sampling import Sampler, draw_cohort, with_others
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.server.state import ServerRule, ServerState
from dpfed.stages.chain import Stages, client_halves, server_halves
from dpfed.stages.observer import Observer, Together
from dpfed.stages.remembering import memory_of
from dpfed.stages.stage import Round, Stateful, Tally
from dpfed.stages.weigh import Weigh

NO_RESULT = "too few clients were left; nothing of the round is released"
"""What ledger and metrics say of a round that has ended: how many came, and at which step, is the operator's."""

_AT_ONCE = 1 << 21
"""Numbers that go through the stages together: 8 MiB (measured: benchmarks/README.md)."""
_INTEGERS_AT_ONCE = 1 << 18
"""The same of integers and their noise, which pass through in 64 bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """What a round is made of.

    stages:  the steps of an update on its way into the model, in their order
    clients: how they train; `group` of them are trained and summed at a time
    divisor: of the sum, public, where something is private; None: the number of uploads, or the sum of their weights
    slots:   the most uploads that a sum may hold: if more are drawn, a uniformly random part of them is left out
    fill:    clients that take part in every sum: who was not drawn sends a row of zeros, noised and masked like any
             other, so that the number of uploads tells nothing
    dropouts: which clients drop out of a round in a simulation; None: none does
    canaries: take part beside the clients, for audits
    ranks:   the processes that share a round's clients
    counts_errors: an exception in a client's training is counted, and its row not finite; else it ends the round
    """

    stages: Stages
    sampler: Sampler
    randomness: Randomness
    clients: LocalTraining
    aggregation: Sums[Any]
    server: ServerRule
    group: int
    divisor: float | None
    slots: int | None = None
    fill: int | None = None
    dropouts: Dropouts | None = None
    canaries: Canaries | None = None
    ranks: Ranks = field(default_factory=Alone)
    counts_errors: bool = False

    def announce(self, task: Task, seeds: Seeds) -> Round:
        """The round's public map and reference point, before any client trains."""
        state = task.state
        projection = self.stages.project.choice.for_round(state.broadcast, state.round, seeds)
        return Round(
            task=task,
            projection=projection,
            reference=projection.restrict(state.broadcast),
            memory=memory_of(self.stages.private, state.stages),
        )

    def task(self, state: ServerState, cohort: NDArray[np.int64]) -> Task:
        """A round from this state, for those who were drawn; with `fill`, others take part beside them."""
        participants = cohort
        if self.fill is not None:
            participants = with_others(cohort, self.fill, self.sampler.clients, self.randomness, state.round)
        gone = {} if self.dropouts is None else self.dropouts.draw(participants, state.round)
        return Task(state=state, cohort=cohort, participants=participants, dropouts=gone)

    def release_of_uploads(self, now: Round) -> Release | LocalRelease | None:
        """The release that uploads are by themselves: of their clients' records, or where every upload may be seen."""
        of_records = self.clients.release(now.task.cohort, number=now.number)
        if of_records is not None:
            return of_records
        private = self.stages.private
        if private is None or not private.in_every_upload:
            return None
        return private.release(replace(now, uploads=len(now.task.cohort)))

    def release(self, now: Round) -> Release | None:
        """The release that the sum is; None if nothing is private."""
        private = self.stages.private
        return None if private is None else private.release(now)

    def divided_by(self, counted: NDArray[np.int64]) -> float:
        """What the sum of these clients' rows is divided by."""
        if self.divisor is not None:
            return self.divisor
        weigh = self.stages.find(Weigh)
        return float(len(counted) or 1) if weigh is None else float(weigh.weights[counted].sum()) or 1.0

    def updates(self, ids: NDArray[np.int64], now: Round, seeds: Seeds, *, at_once: int | None) -> Iterator[Any]:
        """Clients and what they have learnt, rows [c, d]: trained in groups, and passed on `at_once` numbers at a
        time (None: whole groups)."""
        for group in groups(ids, self.group):
            failed: set[tuple[int, ...]] | None = set() if self.counts_errors else None
            moves = self.clients.train(now.broadcast, group, number=now.number, seeds=seeds, failed=failed)
            now.tally.failed += len(failed or ())
            height = len(group) if at_once is None else max(1, at_once // moves.shape[1])
            for start in range(0, len(group), height):
                yield group[start : start + height], moves[start : start + height]


class Charges(Protocol):
    """Where releases are charged: an `accounting.Ledger`, or what stands before one."""

    def record(self, entry: Entry) -> None:
        """Charge the release, or note that a round has none, durably; or raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenRound(Generic[Opened]):
    """A round whose sum is open: what a source adds rows to."""

    method: Method
    now: Round
    total: Opened
    watch: Watch

    def halves(self, rows: Tensor, ids: NDArray[np.int64], *, counted: bool = True) -> None:
        """Rows [c, d] of these clients through all client halves and into the sum. counted: the cohort's own."""
        now = self.now if counted else replace(self.now, tally=Tally())
        self.arrived(client_halves(self.method.stages, rows, ids, now), ids)

    def arrived(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Rows as they have arrived, into the sum."""
        assert self.now.observer is not None
        self.now.observer.added(rows, ids)
        self.total.add(ids, rows)  # type: ignore[attr-defined]


class Source(Protocol):
    """Whoever has the rows of a round: clients that this process trains, nodes, the caller of a loop, an audit."""

    def take_part(self, opened: OpenRound[Any]) -> None:
        """Add a row for everyone who arrives, and say who is lost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundResult:
    """What came of a round: the next state, what was charged, the released mean move; or why there is no sum. `record`
    is the operator's, and covered by no epsilon."""

    state: ServerState
    record: RoundRecord
    release: Release | LocalRelease | None
    mean: Tensor | None = None


def run_round(
    state: ServerState,
    method: Method,
    source: Source,
    *,
    seeds: Seeds,
    ledger: Charges | None,
    cohort: NDArray[np.int64] | None = None,
    observer: Observer | None = None,
) -> RoundResult:
    """One federated round: of `dpfed.run`, of Flower's nodes, of a ClientLevel loop, of an audit's trial.

    The release is in the ledger, on disk, before the new state is returned: a state that anybody can see has been
    charged. Raises LedgerError, and releases nothing, where that fails. A round whose sum does not come about, since
    too many clients dropped out, leaves the state as it is and is not charged; the ledger says so, without numbers.
    That it ends does not depend on who was drawn: `dpfed.methods.aborts` says why, and which combinations are refused.
    """
    cohort = cohort_of(method, state.round) if cohort is None else cohort
    now = method.announce(method.task(state, cohort), seeds)
    of_uploads = method.release_of_uploads(now)
    _record(ledger, of_uploads)  # what uploads tell by themselves, before any client is asked
    opened = open_round(now, method, observer=observer)
    source.take_part(opened)
    now, watch = opened.now, opened.watch
    try:
        summed = opened.total.close()
    except SecureSumAborted as reason:
        _record(ledger, Aborted(round=state.round, reason=NO_RESULT) if of_uploads is None else None)
        after = replace(state, round=state.round + 1)
        record = watch.record(now, aborted=str(reason))
        return RoundResult(state=after, record=record, release=of_uploads)
    now = replace(now, uploads=len(summed.included))
    moved = server_halves(method.stages, summed.total, now)
    release = of_uploads or method.release(now)
    _record(ledger, release if of_uploads is None else None)
    divisor = method.divided_by(np.intersect1d(now.task.cohort, summed.included))
    after = method.server.step(state, moved / divisor, count=divisor)
    for stage in method.stages:
        if isinstance(stage, Stateful):
            after = stage.next_state(after, now)
    after = replace(after, stages=now.memory)
    record = watch.record(now, moved=moved, divisor=divisor, after=after)
    return RoundResult(state=after, record=record, release=release, mean=moved / divisor)


def cohort_of(method: Method, number: int) -> NDArray[np.int64]:
    """The round's clients, and its canaries on top."""
    cohort = draw_cohort(method.sampler, method.randomness, method.slots, number)
    return np.concatenate([cohort, present_canaries(method, number)])


def present_canaries(method: Method, number: int) -> NDArray[np.int64]:
    """Canaries that take part in this round. Beyond what is accounted a canary adds noise or coins of its own:
    independent of data, so post-processing."""
    return np.zeros(0, dtype=np.int64) if method.canaries is None else method.canaries.of_round(number)[0]


def open_round(now: Round, method: Method, *, observer: Observer | None = None) -> OpenRound[Any]:
    """An empty sum, watched by the operator, and by an observer more."""
    total = method.aggregation.open(
        now.task.participants,
        dropouts=now.task.dropouts,
        size=method.stages.width,
        dtype=method.stages.summed_as,
        device=now.broadcast.device,
        number=now.number,
    )
    watch = Watch(method.stages, now, total.arriving, clients=method.sampler.clients, canaries=method.canaries)
    seen = watch if observer is None else Together((watch, observer))
    return OpenRound(method=method, now=replace(now, observer=seen), total=total, watch=watch)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Clients that this process trains, or its part of them: the cohort by `method.clients`, canaries send their
    direction, whoever else takes part sends zeros."""

    seeds: Seeds

    def take_part(self, opened: OpenRound[OpenSum]) -> None:
        method, now, total = opened.method, opened.now, opened.total
        ranks, canaries = method.ranks, present_canaries(method, now.number)
        mine = ranks.mine if ranks.count > 1 else np.asarray
        trained = mine(np.intersect1d(total.senders, np.setdiff1d(now.task.cohort, canaries)))
        now.tally.trained += len(trained)
        for ids, updates in method.updates(trained, now, self.seeds, at_once=_at_once(opened)):
            opened.halves(updates, ids)
        add_canaries(opened, mine(np.intersect1d(total.senders, canaries)))
        for ids in groups(mine(np.setdiff1d(total.senders, now.task.cohort)), method.group):
            opened.halves(torch.zeros(len(ids), len(now.broadcast), device=now.broadcast.device), ids, counted=False)
        if ranks.count > 1:
            total.gather(ranks)
            now.tally.gather(ranks)
            opened.watch.gather(ranks, now)


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """Rows of the cohort's clients, in its order, a few at a time: those of a caller, or of an audit."""

    rows: Iterator[Tensor]

    def take_part(self, opened: OpenRound[OpenSum]) -> None:
        cohort, start = opened.now.task.cohort, 0
        for rows in self.rows:
            ids = cohort[start : start + len(rows)]
            opened.now.tally.trained += len(ids)
            opened.halves(rows, ids)
            start += len(ids)


def add_canaries(opened: OpenRound[Collecting], ids: NDArray[np.int64]) -> None:
    """Canaries' directions into the sum."""
    method, now = opened.method, opened.now
    for group in groups(ids, method.group):
        assert method.canaries is not None
        opened.halves(method.canaries.updates(group, now.broadcast.device), group, counted=False)


def _at_once(opened: OpenRound[OpenSum]) -> int | None:
    """On a CPU, about what stays in its caches on the way through all the stages. A secure sum gets whole groups: two
    clients of one share a mask that need not be made twice."""
    if opened.now.broadcast.device.type != "cpu" or not isinstance(opened.total, PlainSum):
        return None
    private = opened.method.stages.private
    whole = private is not None and not opened.method.stages.summed_as.is_floating_point
    return _INTEGERS_AT_ONCE if whole else _AT_ONCE


def _record(ledger: Charges | None, entry: Entry | None) -> None:
    if ledger is not None and entry is not None:
        ledger.record(entry)


def groups(clients: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """The clients, `size` at a time."""
    for start in range(0, len(clients), size):
        yield clients[start : start + size]
