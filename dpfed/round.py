"""One federated round: announcement, clients' rows (`dpfed.sources`), sum, noise, charge, step of the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Aborted, Entry, LocalRelease, Release
from accounting.mechanisms.samplings.planned import Sampler
from dpfed import replayed
from dpfed.aggregation.messages import Dropouts
from dpfed.aggregation.ranks import Ranks, Task
from dpfed.aggregation.sums import Opened, Sums
from dpfed.clients.training import LocalTraining
from dpfed.compress.rotation import one_thread
from dpfed.diagnostics.watch import RoundWatch
from dpfed.errors import ConfigError, GroupTooLarge, SecureSumAborted
from dpfed.participation.sampling import Canaries, draw_cohort, fill_cohort, members_text
from dpfed.randomness import Randomness
from dpfed.records.round import INTERRUPTED, RoundRecord
from dpfed.seeds import Seeds
from dpfed.server.rules import ServerRule, ServerState
from dpfed.stages.chain import Stages, client_halves, server_halves
from dpfed.stages.clip import Weigh
from dpfed.stages.stage import ManyObservers, Observer, Private, Round, Stage, Tally, stage_attribute

NO_RESULT = "too few clients were left; nothing of the round is released"
"""Public reason of an aborted round. Counts of survivors and the failing step are in diagnostics.jsonl only."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """The components of a method's rounds.

    stages:        steps that an update passes from a client into the model, in order
    clients:       local training; `group` clients are trained and summed at a time
    divisor:       public divisor of the sum in a private run; None: the number of uploads, or the sum of their weights
    fill:          number of clients in every sum: clients that were not drawn send a row of zeros, noised and masked
                   like any other row, so that the number of uploads reveals nothing
    dropouts:      distribution of the clients that drop out of a simulated round; None: no client does
    canaries:      clients of an audit that take part beside the data's clients
    ranks:         processes that share the clients of a round
    counts_errors: True: an exception in a client's training is counted, and its row is not finite; False: it ends the
                   round
    """

    stages: Stages
    sampler: Sampler
    randomness: Randomness
    clients: LocalTraining
    aggregation: Sums[Any]
    server: ServerRule
    group: int
    divisor: float | None
    fill: int | None = None
    dropouts: Dropouts | None = None
    canaries: Canaries | None = None
    ranks: Ranks = field(default_factory=Ranks)
    counts_errors: bool = False

    def announce(self, task: Task, seeds: Seeds) -> Round:
        """Return the round with its public map and reference point, fixed before any client trains."""
        state = task.state
        projection = self.stages.project.choice.for_round(state.broadcast, state.round, seeds)
        return Round(
            task=task,
            projection=projection,
            reference=projection.restrict(state.broadcast),
            memory=self.stages.memory(state.stages),
        )

    def task(self, state: ServerState, cohort: NDArray[np.int64]) -> Task:
        """Return the task of a round: the drawn clients and, with `fill`, further clients that send zeros."""
        participants = cohort
        if self.fill is not None:
            participants = fill_cohort(cohort, self.fill, self.sampler.clients, self.randomness, state.round)
        gone = {} if self.dropouts is None else self.dropouts.draw(participants, state.round)
        return Task(state=state, cohort=cohort, participants=participants, dropouts=gone)

    def release_of_uploads(self, now: Round) -> Release | LocalRelease | None:
        """Return the release charged before aggregation (of records, or of individually visible uploads), else None."""
        of_records = self.clients.release(now.task.cohort, number=now.number)
        if of_records is not None:
            return of_records
        private = self.stages.private
        if private is None or not private.in_every_upload:
            return None
        return private.release(replace(now, uploads=len(now.task.cohort)))

    def release(self, now: Round) -> Release | None:
        """Return the release of the noisy sum; None in a run without privacy."""
        private = self.stages.private
        return None if private is None else private.release(now)

    def sum_divisor(self, counted: NDArray[np.int64]) -> float:
        """Return the divisor for the sum of the rows of the `counted` clients."""
        if self.divisor is not None:
            return self.divisor
        weigh = self.stages.find(Weigh)
        return float(len(counted) or 1) if weigh is None else float(weigh.weights[counted].sum()) or 1.0

    def updates(self, ids: NDArray[np.int64], now: Round, seeds: Seeds, *, at_once: int | None) -> Iterator[Any]:
        """Train clients in groups, halved if there is no memory for one; yield (clients, updates [c, d]) with about
        `at_once` numbers each (None: a group)."""
        more: dict[str, Any] = {"memory": now.memory} if stage_attribute(self.clients, "remembers_clients") else {}
        first, size = 0, self.group
        while first < len(ids):
            group, failed = ids[first : first + size], set[tuple[int, ...]]() if self.counts_errors else None
            try:
                moves = self.clients.train(now.broadcast, group, number=now.number, seeds=seeds, failed=failed, **more)
            except GroupTooLarge:
                if len(group) == 1:
                    raise
                size = len(group) // 2
                continue
            first += size
            now.tally.failed += len(failed or ())
            now.tally.failing += [int(group[place]) for place in sorted({one[0] for one in failed or ()})]
            height = len(group) if at_once is None else max(1, at_once // moves.shape[1])
            for start in range(0, len(group), height):
                yield group[start : start + height], moves[start : start + height]


class Charges(Protocol):
    """Ledger that releases are charged to: an `accounting.Ledger`, or an object that writes to one."""

    def record(self, entry: Entry) -> None:
        """Write the entry (a charge, or a round without a release) to disk; raise if it cannot be written."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenRound(Generic[Opened]):
    """A round whose sum is open: rows from a source are added to it."""

    method: Method
    now: Round
    total: Opened
    watch: RoundWatch

    def add_updates(self, rows: Tensor, ids: NDArray[np.int64], *, counted: bool = True) -> None:
        """Add updates [c, d] after all client halves. counted: True for clients of the cohort, False for any others."""
        now = self.now if counted else replace(self.now, tally=Tally())
        self.arrived(client_halves(self.method.stages, rows, ids, now), ids)

    def arrived(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Add rows in the form in which they arrived."""
        assert self.now.observer is not None
        if (compared := _replay_rounds()) is not None:
            compared.arrived(rows, ids)
        self.now.observer.added(rows, ids)
        self.total.add(ids, rows)  # type: ignore[attr-defined]

    def gather(self, ranks: Ranks) -> None:
        """Add up the sums and records of all ranks; every rank calls this at the same point of a round."""
        self.total.gather(ranks)  # type: ignore[attr-defined]
        self.now.tally.gather(ranks)
        self.watch.gather(ranks, self.now)
        if (compared := _replay_rounds()) is not None:
            compared.gather(ranks)

    def fill(self, ids: NDArray[np.int64]) -> None:
        """Add a row of zeros, noised and masked like any other row, for each of these clients."""
        broadcast = self.now.broadcast
        for some in client_groups(ids, self.method.group):
            self.add_updates(torch.zeros(len(some), len(broadcast), device=broadcast.device), some, counted=False)

    def add_canaries(self, ids: NDArray[np.int64]) -> None:
        """Add the directions of these canaries."""
        for some in client_groups(ids, self.method.group):
            assert self.method.canaries is not None
            self.add_updates(self.method.canaries.updates(some, self.now.broadcast.device), some, counted=False)


class RoundComparison(Protocol):
    """Comparison of a round in a replay audit (`dpfed.audit.replays.rounds`)."""

    def compare_opening(self, now: Round, method: Method, arriving: NDArray[np.int64]) -> Observer:
        """Compare the announcement and the participants; return an observer of rows."""

    def node_observer(self, method: Method) -> Observer:
        """Return an observer of the rows of a node, whose process has built the method itself."""

    def private_rows(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> Tensor:
        """Return the first run's rows after the private stage if each upload is released, else the given rows."""

    def arrived(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Compare uploads."""

    def gather(self, ranks: Ranks) -> None:
        """Add up the sums of the ranks' uploads."""

    def compare_noise(self, stage: Private, total: Tensor, noisy: Tensor, now: Round) -> Tensor:
        """Compare the input of the private stage at the sum, and return its output in the first run."""

    def compare_result(self, done: RoundResult) -> None:
        """Compare the result of a round."""


def _replay_rounds() -> RoundComparison | None:
    replay = replayed.current_replay()
    return None if replay is None else replay.rounds


class Source(Protocol):
    """Provider of a round's rows: clients trained by this process, remote nodes, the caller of a loop, or an audit."""

    def take_part(self, opened: OpenRound[Any]) -> None:
        """Add a row for each client that arrives, and record the clients that drop out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundResult:
    """Next state, charged release and released mean move of a round; an aborted round only advances the state's round.
    `record` is for the operator only: no epsilon covers it. It lacks the traffic that other processes still count for
    `tally`."""

    state: ServerState
    record: RoundRecord
    release: Release | LocalRelease | None
    mean: Tensor | None = None
    tally: Tally = field(default_factory=Tally)

    def whole_record(self) -> RoundRecord:
        """Return the record with all traffic, once it is counted."""
        if not self.tally.counts:
            return self.record
        self.tally.settle()
        return replace(self.record, uplink_bytes=self.tally.uplink_bytes, mask_entropy=self.tally.mask_entropy)


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
    """Run one federated round of `dpfed.run`, of Flower's nodes, of a ClientLevel loop, or of an audit's trial.

    The release is in the ledger, on disk, before the new state is returned: a visible state has been charged. Raises
    LedgerError, and releases nothing, if writing the release fails. If too many clients drop out for a sum, the model
    is unchanged and nothing is charged; the ledger records the abort without numbers. An abort does not depend on the
    drawn cohort: `dpfed.methods.choices` states the reason, and the combinations that are refused.
    """
    cohort = draw_round_cohort(method, state.round) if cohort is None else cohort
    now = method.announce(method.task(state, cohort), seeds)
    of_uploads = method.release_of_uploads(now)
    _record(ledger, of_uploads)
    opened = open_round(now, method, observer=observer)
    source.take_part(opened)
    done = _close(opened, ledger, of_uploads)
    if (compared := _replay_rounds()) is not None:
        compared.compare_result(done)
    return done


@one_thread()
def _close(opened: OpenRound[Any], ledger: Charges | None, of_uploads: Release | LocalRelease | None) -> RoundResult:
    """Close the sum, add the noise, charge the release, and step the model; on one thread, as the stages before."""
    method, now, watch = opened.method, opened.now, opened.watch
    state = now.task.state
    try:
        summed = opened.total.close()
    except SecureSumAborted as reason:
        _record(ledger, Aborted(round=state.round, reason=NO_RESULT) if of_uploads is None else None)
        after = replace(state, round=state.round + 1)
        record = watch.record(now, aborted=str(reason))
        return RoundResult(state=after, record=record, release=of_uploads, tally=now.tally)
    now = replace(now, uploads=len(summed.included_clients))
    moved = server_halves(method.stages, summed.total, now)
    release = of_uploads or method.release(now)
    _record(ledger, release if of_uploads is None else None)
    divisor = method.sum_divisor(np.intersect1d(now.task.cohort, summed.included_clients))
    stepped = method.server.step(state, moved / divisor, count=divisor)
    if getattr(stepped, "round", None) != state.round + 1:  # a round that is run twice has the same noise
        raise ConfigError(
            f"server.rule: its step returns {type(stepped).__name__} of round {getattr(stepped, 'round', None)}; must "
            f"return a state of round {state.round + 1}: dataclasses.replace(state, round=state.round + 1, ...)."
        )
    after = method.stages.next_state(stepped, now)
    record = watch.record(now, moved=moved, divisor=divisor, after=after)
    return RoundResult(state=after, record=record, release=release, mean=moved / divisor, tally=now.tally)


def skipped_round(state: ServerState, method: Method) -> RoundResult:
    """Skip a round that was charged before an interruption: it must not be repeated with fresh noise."""
    drawn = draw_round_cohort(method, state.round)
    record = RoundRecord(
        round=state.round + 1,
        cohort=len(drawn),
        members=members_text(drawn, method.sampler.clients),
        participants=len(drawn),
        aborted=INTERRUPTED,
        noise_known=False,
    )
    return RoundResult(state=replace(state, round=state.round + 1), record=record, release=None)


def run_share_of_round(task: Task, method: Method, source: Source, seeds: Seeds) -> None:
    """Compute this process's part of a round that another process leads, without a charge or a step of the server."""
    source.take_part(open_round(method.announce(task, seeds), method))


def draw_round_cohort(method: Method, number: int) -> NDArray[np.int64]:
    """Draw the clients of round `number`, followed by its canaries."""
    cohort = draw_cohort(method.sampler, method.randomness, number)
    return np.concatenate([cohort, present_canaries(method, number)])


def present_canaries(method: Method, number: int) -> NDArray[np.int64]:
    """Return the canaries that take part in round `number`. A canary is independent of data, so adding it to the sum is
    post-processing."""
    return np.zeros(0, dtype=np.int64) if method.canaries is None else method.canaries.canaries_of_round(number)[0]


def open_round(now: Round, method: Method, *, observer: Observer | None = None) -> OpenRound[Any]:
    """Open an empty sum, with the operator's record and `observer` as observers."""
    total = method.aggregation.open(now.task, size=method.stages.width, dtype=method.stages.summed_as)
    watch = RoundWatch(method.stages, now, total.arriving, clients=method.sampler.clients, canaries=method.canaries)
    observers: list[Observer] = [watch] if observer is None else [watch, observer]
    if (compared := _replay_rounds()) is not None:
        observers.append(compared.compare_opening(now, method, total.arriving))
    seen = watch if len(observers) == 1 else cast(Observer, ManyObservers(observers))
    return OpenRound(method=method, now=replace(now, observer=seen), total=total, watch=watch)


def _record(ledger: Charges | None, entry: Entry | None) -> None:
    if ledger is not None and entry is not None:
        ledger.record(entry)


def client_groups(clients: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the clients in groups of at most `size`."""
    for start in range(0, len(clients), size):
        yield clients[start : start + size]
