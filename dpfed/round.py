"""One federated round, as the papers write it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Aborted, Entry, LocalRelease, Release
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.summed import Closing, Opened, OpenSum, Sums
from dpfed.errors import SecureSumAborted
from dpfed.participation import members
from dpfed.participation.canaries import CanaryScore
from dpfed.participation.sampling import drawn_clients
from dpfed.parts import Parts
from dpfed.round_probes import after_step, of_sum
from dpfed.seeds import Seeds
from dpfed.sending import Sent, Uploading
from dpfed.server.state import ServerState
from dpfed.stages.maps import Map
from dpfed.stages.noise_facts import noise_facts

NO_RESULT = "too few clients were left; nothing of the round is released"
"""What ledger and metrics say of a round that has ended: how many came, and at which step, is the operator's."""


class Book(Protocol):
    """Where releases are charged: an `accounting.Ledger`, or what stands before one."""

    def record(self, entry: Entry) -> None:
        """Charge the release, or note that a round has none, durably; or raise."""


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """What the operator may look at and must not publish: no epsilon covers these numbers.

    cohort, members:       clients that were drawn, canaries not counted, and which (`dpfed.participation.members`)
    counted:               of the cohort's rows; None where clients do not tell which were inside the bound
    participants, arrived: uploads that were asked for and that are in the sum, with those of clients that only fill up
    aborted:               why the round has no result, if it has none; others get no more than `NO_RESULT`
    release:               what was charged
    divisor:               what the sum was divided by
    near_the_ends:         entries of a sum of integers that have probably wrapped around
    noise:                 of the sum, in the units it was added in (`dpfed.stages.noise_facts`)
    longest_added, probes: what was added up and what became of it (`dpfed.sending.Sent`, `dpfed.round_probes`)
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


def run_round(
    state: ServerState,
    parts: Parts,
    *,
    seeds: Seeds,
    ledger: Book | None,
    cohort: NDArray[np.int64] | None = None,
) -> tuple[ServerState, RoundFacts]:
    """Cohort (unless `draw_cohort` has given it), local training, map, bound, noise, code, sum, ledger, server step.

    The release is in the ledger, on disk, before the new state is returned: a state that anybody can see has been
    charged. Raises LedgerError, and releases nothing, where that fails. A round whose sum does not come about, since
    too many clients were lost, leaves the state as it is and costs nothing; the ledger says so, without numbers. That
    it ends does not depend on who was drawn: `dpfed.methods.aborts` says why, and which combinations are refused.
    """
    cohort = draw_cohort(parts, state.round) if cohort is None else cohort
    task = begin_round(state, parts, cohort, ledger=ledger)
    parts.ranks.lead(task)
    uploading, sent = take_part(task, parts, seeds=seeds)
    return end_round(task, uploading, sent, ledger=ledger)


def begin_round(state: ServerState, parts: Parts, cohort: NDArray[np.int64], *, ledger: Book | None) -> Task:
    """Who takes part. What uploads tell by themselves, sum or no sum, is charged here, before anybody is asked."""
    _write(ledger, _told_by_uploads(state, parts, cohort))
    return Task(state=state, cohort=cohort, participants=_filled_up(parts, cohort, state.round))


def open_uploads(task: Task, parts: Parts, *, seeds: Seeds) -> Uploading[OpenSum]:
    """The round's map and its empty sum in this process."""
    return open_into(parts.sums, task, parts, seeds=seeds)


def open_into(sums: Sums[Opened], task: Task, parts: Parts, *, seeds: Seeds) -> Uploading[Opened]:
    """The round's map and an empty sum of `sums`."""
    state = task.state
    chosen = parts.map.for_round(state.broadcast, state.round, seeds)
    total = sums.open(
        task.participants,
        size=parts.code.width(chosen.sent),
        dtype=parts.code.summed_as,
        device=state.broadcast.device,
        round=state.round,
    )
    origin = chosen.restrict(state.broadcast)
    return Uploading(state=state, parts=parts, map=chosen, origin=origin, total=total, seeds=seeds)


def take_part(task: Task, parts: Parts, *, seeds: Seeds) -> tuple[Uploading[OpenSum], Sent]:
    """The part of a round that all processes of a run do: train their clients, and add everything up."""
    uploading = open_uploads(task, parts, seeds=seeds)
    return uploading, uploading.everybody(task.cohort, canaries_of(parts, task.state.round)[0])


def end_round(
    task: Task, uploading: Uploading[Closing], sent: Sent, *, ledger: Book | None
) -> tuple[ServerState, RoundFacts]:
    """Sum, noise, ledger, server step, once the uploads are in."""
    state, parts, cohort, chosen = task.state, uploading.parts, task.cohort, uploading.map
    told = _told_by_uploads(state, parts, cohort)
    drawn = cohort[cohort < parts.sampler.clients]
    facts = RoundFacts(
        cohort=len(drawn),
        members=members.written(drawn, parts.sampler.clients),
        counted=sent.counted if sent.clipping_known else None,
        clipped=sent.counted - sent.inside if sent.clipping_known else None,
        not_finite=sent.not_finite,
        uplink_bytes=sent.uplink_bytes,
        participants=len(task.participants),
        arrived=0,
        largest_norm=sent.largest_norm,
        longest_added=sent.longest_added,
        map=chosen.facts,
        noise_known=sent.noise_known,
        release=told,
    )
    try:
        summed = uploading.total.close()
    except SecureSumAborted as reason:
        _write(ledger, Aborted(round=state.round, reason=NO_RESULT) if told is None else None)
        return replace(state, round=state.round + 1), replace(facts, aborted=str(reason))
    uploads = len(summed.included)
    near_the_ends = parts.code.near_the_ends(summed.total)
    noisy, noise = noisy_sum(state, parts, summed.total, uploading.origin, uploads, sent)
    clip_norm = parts.privacy.next_norm(state.clip_norm, sent.inside - sent.counted / 2, state.round)
    release = told or parts.privacy.release(state.clip_norm, state.round, chosen.sent, uploads)
    _write(ledger, release if told is None else None)
    divisor = _divisor(parts, np.intersect1d(cohort, summed.included))
    scores = _canary_scores(state, parts, chosen, noisy)
    probes = of_sum(state, parts, sent, summed.total, noisy, chosen)
    state = parts.server.apply(state, chosen.adjoint(noisy) / divisor, count=divisor, clip_norm=clip_norm)
    return state, replace(
        facts,
        arrived=uploads,
        release=release,
        divisor=divisor,
        noise=noise,
        near_the_ends=near_the_ends,
        probes=after_step(probes, state),
        canaries=scores,
    )


def _told_by_uploads(state: ServerState, parts: Parts, cohort: NDArray[np.int64]) -> Release | LocalRelease | None:
    """The release that uploads are by themselves: of their clients' records, or where every upload may be seen."""
    of_records = parts.local.release(cohort, round=state.round)
    if of_records is not None:
        return of_records
    if not parts.privacy.in_every_upload:
        return None
    return parts.privacy.release(state.clip_norm, state.round, parts.map.sent, len(cohort))


def draw_cohort(parts: Parts, round: int) -> NDArray[np.int64]:
    """The round's clients, at most `slots` of them, the others left out by secret lot; and its canaries on top.

    Beyond what is accounted a canary adds noise or coins of its own: independent of data, so post-processing.
    """
    cohort = drawn_clients(parts.sampler, parts.randomness, parts.slots, round)
    return np.concatenate([cohort, canaries_of(parts, round)[0]])


def canaries_of(parts: Parts, round: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Canaries that take part in this round, and that might have."""
    nobody = np.zeros(0, dtype=np.int64)
    return (nobody, nobody) if parts.canaries is None else parts.canaries.of_round(round)


def _filled_up(parts: Parts, cohort: NDArray[np.int64], round: int) -> NDArray[np.int64]:
    """The cohort and as many others, by secret lot, as make `fill` clients of them."""
    drawn = int((cohort < parts.sampler.clients).sum())
    if parts.fill is None or drawn >= parts.fill:
        return cohort
    chosen = parts.randomness.subset(parts.fill - drawn, parts.sampler.clients - drawn, "cohort.fill", round)
    passed = np.sort(cohort)[:drawn] - np.arange(drawn)  # for each of the cohort, how many others come before it
    others = chosen + np.searchsorted(passed, chosen, side="right")
    return np.sort(np.concatenate([cohort, others]))


def noisy_sum(
    state: ServerState, parts: Parts, total: Tensor, origin: Tensor, uploads: int, sent: Sent
) -> tuple[Tensor, dict[str, Any] | None]:
    """The sum as it is released, and what is to be known of its noise.

    A secure sum is known modulo 2^b. So its noise goes onto the integers, and `decode` reduces their sum again:
    (S mod M + N) mod M = (S + N) mod M. Noise on what it decodes to would hide no wrap-around.
    """
    privacy, norm, round = parts.privacy, state.clip_norm, state.round
    if privacy.on_integers:
        own = privacy.finish(torch.zeros_like(total, dtype=torch.int64), norm, round)
        released = parts.code.decode(total + own, origin, uploads, round)
    else:
        decoded = parts.code.decode(total, origin, uploads, round)
        own = privacy.finish(torch.zeros_like(decoded), norm, round)
        released = decoded + own
    noise, draws = (sent.noise, sent.draws) if privacy.in_shares else (own, 1)
    return released, None if noise is None else noise_facts(noise, draws)


def _canary_scores(state: ServerState, parts: Parts, chosen: Map, noisy: Tensor) -> tuple[CanaryScore, ...]:
    """How much of each canary's own bounded row is in the noisy sum."""
    if parts.canaries is None:
        return ()
    present, absent = canaries_of(parts, state.round)
    ids = np.concatenate([present, absent])
    rows = chosen.forward(parts.canaries.updates(ids, noisy.device), ids)
    rows = parts.privacy.bound(rows, state.clip_norm).rows.double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    scores = rows @ noisy.double() / norms.square()
    return tuple(
        CanaryScore(canary=int(one), present=index < len(present), score=float(score), norm=float(norm))
        for index, (one, score, norm) in enumerate(zip(ids, scores, norms, strict=True))
    )


def _write(ledger: Book | None, entry: Entry | None) -> None:
    if ledger is not None and entry is not None:
        ledger.record(entry)


def _divisor(parts: Parts, counted: NDArray[np.int64]) -> float:
    if parts.divisor is not None:
        return parts.divisor
    if parts.client_weights is None:
        return float(len(counted) or 1)
    return float(parts.client_weights[counted].sum()) or 1.0
