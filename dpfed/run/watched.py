"""A round that the operator watches: the same round, and what diagnostics.jsonl has of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting.ledger import LocalRelease, Release
from dpfed.aggregation.sums import Opened, OpenSum, Sums
from dpfed.participation import members
from dpfed.participation.canaries import CanaryScore
from dpfed.round import Charges, EndedRound, Method, OpenRound, begin_round, cohort_of, end_round, open_round, take_part
from dpfed.run.canary_scores import canary_scores
from dpfed.run.probes import probe_of
from dpfed.run.watch import Watch
from dpfed.seeds import Seeds
from dpfed.server.state import ServerState
from dpfed.stages.observer import Observer, Together
from dpfed.stages.stage import Round

INTERRUPTED = "interrupted after its charge; nothing of it was used"
"""What ledgers' readers find of a round of a schedule that a crash ended: charged, and without a result."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchedRound(OpenRound[Opened]):
    """A round whose sum is open, and what is kept of it."""

    watch: Watch


def open_watched(
    now: Round, method: Method, sums: Sums[Opened], *, observer: Observer | None = None
) -> WatchedRound[Opened]:
    """As `open_round`, watched by the operator, and by an observer more."""
    opened = open_round(now, method, sums)
    watch = Watch(method.stages, now, opened.total.arriving)
    seen = watch if observer is None else Together((watch, observer))
    return WatchedRound(method=method, now=replace(opened.now, observer=seen), total=opened.total, watch=watch)


def take_part_watched(opened: WatchedRound[OpenSum], *, seeds: Seeds) -> None:
    """As `take_part`; what several processes have seen is added up."""
    take_part(opened, seeds=seeds)
    if opened.method.ranks.count > 1:
        opened.watch.gather(opened.method.ranks, opened.now)


def watched_round(
    state: ServerState,
    method: Method,
    *,
    seeds: Seeds,
    ledger: Charges | None,
    cohort: NDArray[np.int64] | None = None,
    observer: Observer | None = None,
) -> tuple[ServerState, RoundFacts]:
    """`dpfed.round.run_round`, and what the operator keeps of it."""
    cohort = cohort_of(method, state.round) if cohort is None else cohort
    now = begin_round(state, method, cohort, seeds=seeds, ledger=ledger)
    opened = open_watched(now, method, method.aggregation, observer=observer)
    take_part_watched(opened, seeds=seeds)
    ended = end_round(opened, ledger=ledger)
    return ended.state, facts_of(ended, opened.watch, method)


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """What the operator may look at and must not publish: no epsilon covers these numbers.

    cohort, members:       clients that were drawn, canaries not counted, and which (`dpfed.participation.members`)
    counted:               of the cohort's rows; None where clients do not say which were inside the bound
    failed:                clients (records, where these are private) whose training raised, and ended nothing
    participants, arrived: uploads that were asked for and that are in the sum, with those of clients that only fill up
    aborted:               why the round has no result, if it has none; others get no more than `NO_RESULT`
    release:               what was charged
    divisor:               what the sum was divided by
    noise:                 of the sum, in the units it was added in (`dpfed.run.noise_facts`)
    typical_norm, near_the_ends, longest_added, probes: what was added up and what became of it (`dpfed.run.watch`)
    map:                   the coordinates of the round, where public data chose them (`dpfed.stages.maps.Map.facts`)
    """

    cohort: int
    members: str
    counted: int | None
    clipped: int | None
    not_finite: int
    uplink_bytes: int | None
    participants: int
    arrived: int
    largest_norm: float | None
    failed: int = 0
    typical_norm: float | None = None
    aborted: str | None = None
    release: Release | LocalRelease | None = None
    divisor: float | None = None
    noise: dict[str, Any] | None = None
    noise_known: bool = True
    near_the_ends: int | None = None
    longest_added: float | None = None
    probes: dict[str, Any] | None = None
    map: dict[str, Any] | None = None
    canaries: tuple[CanaryScore, ...] = ()


def facts_of(ended: EndedRound, watch: Watch, method: Method) -> RoundFacts:
    """Of a round that has ended, with a sum or without one."""
    now, tally, clients = ended.now, ended.now.tally, method.sampler.clients
    drawn = now.task.cohort[now.task.cohort < clients]
    before = RoundFacts(
        cohort=len(drawn),
        members=members.written(drawn, clients),
        counted=tally.counted if watch.clipping_known else None,
        clipped=tally.counted - tally.inside if watch.clipping_known else None,
        not_finite=tally.not_finite,
        failed=tally.failed,
        uplink_bytes=tally.uplink_bytes,
        participants=len(now.task.participants),
        arrived=0,
        largest_norm=watch.largest_norm,
        typical_norm=watch.typical_norm,
        longest_added=watch.longest_added,
        map=now.projection.facts,
        noise_known=watch.noise_known,
        release=ended.release,
        aborted=ended.aborted,
    )
    if ended.moved is None:
        return before
    probes = watch.probes(now, ended.moved)
    return replace(
        before,
        arrived=now.uploads,
        divisor=ended.divisor,
        noise=watch.noise_facts(),
        near_the_ends=watch.near_the_ends,
        probes=None if probes is None else probes | {"after": probe_of(ended.state.broadcast)},
        canaries=_scores(now, watch, method),
    )


def without_result(drawn: NDArray[np.int64], clients: int, why: str) -> RoundFacts:
    """Of a round that was drawn, and that nobody has seen a result of."""
    return RoundFacts(
        cohort=len(drawn),
        members=members.written(drawn, clients),
        counted=None,
        clipped=None,
        not_finite=0,
        uplink_bytes=None,
        participants=len(drawn),
        arrived=0,
        largest_norm=None,
        noise_known=False,
        aborted=why,
    )


def facts_record(state: ServerState, facts: RoundFacts, seconds: float) -> dict[str, Any]:
    """What no epsilon covers; the time of a round, too, tells how many took part."""
    return {
        "round": state.round,
        "cohort": facts.cohort,
        "members": facts.members,
        "counted": facts.counted,
        "clipped": facts.clipped,
        "not_finite": facts.not_finite,
        "failed": facts.failed,
        "uplink_bytes": facts.uplink_bytes,
        "participants": facts.participants,
        "arrived": facts.arrived,
        "largest_norm": facts.largest_norm,
        "typical_norm": facts.typical_norm,
        "longest_added": facts.longest_added,
        "divisor": facts.divisor,
        "probes": facts.probes,
        "map": facts.map,
        "noise": facts.noise,
        "noise_known": facts.noise_known,
        "near_the_ends": facts.near_the_ends,
        "aborted": facts.aborted,
        "seconds": seconds,
    }


def _scores(now: Round, watch: Watch, method: Method) -> tuple[CanaryScore, ...]:
    if method.canaries is None or watch.released is None:
        return ()
    return canary_scores(method.canaries, method.stages, now, watch.released)
