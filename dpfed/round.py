"""One federated round, as the papers write it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Aborted, Entry, LocalRelease, Release
from dpfed.compress.code import Arrived, Code
from dpfed.compress.maps import Map
from dpfed.compress.masks import MapChoice
from dpfed.errors import SecureSumAborted
from dpfed.local.training import LocalTraining
from dpfed.privacy.client_level import Privacy
from dpfed.privacy.clip import Clipped
from dpfed.randomness import Randomness
from dpfed.sampling import Sampler
from dpfed.secagg.summed import OpenSum, Sums
from dpfed.seeds import Seeds
from dpfed.server.state import ServerRule, ServerState


class Book(Protocol):
    """Where releases are charged: an `accounting.Ledger`, or what stands before one."""

    def record(self, entry: Entry) -> None:
        """Charge the release, or note that a round has none, durably; or raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A method: one choice for each step of a round.

    `group` clients are trained and summed at a time. Without privacy the divisor is the realised number of clients, or
    updates are weighted by `client_weights` (examples) and divided by their sum; with it, every client counts the same
    and the divisor is the public `divisor`. `decode_first`: the bound is put on what a trusted aggregator decoded,
    where a bound before the code would not bound what is summed. `slots` is the most uploads that a sum may hold: if
    more are drawn, a uniformly random part of the cohort stays out. `fill` clients take part in every sum: who was not
    drawn sends a row of zeros, noised and masked like any other, so that the number of uploads tells nothing.
    `weigh_first`: weights, at most 1, are put on rows before the code, as integers want it, not on what arrived.
    """

    sampler: Sampler
    randomness: Randomness
    map: MapChoice
    local: LocalTraining
    privacy: Privacy
    code: Code
    sums: Sums
    server: ServerRule
    group: int
    client_weights: NDArray[np.float64] | None
    divisor: float | None
    slots: int | None = None
    fill: int | None = None
    decode_first: bool = False
    weigh_first: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """What the operator may look at and must not publish: no epsilon covers these numbers.

    participants, arrived: uploads that were asked for and that are in the sum, with those of clients that only fill up
    aborted:               why the round has no result, if it has none
    release:               what was charged
    """

    cohort: int
    clipped: int
    not_finite: int
    uplink_bytes: int | None
    participants: int
    arrived: int
    aborted: str | None = None
    release: Release | LocalRelease | None = None


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
    too many clients were lost, leaves the state as it is and costs nothing; the ledger says why.
    """
    cohort = draw_cohort(parts, state.round) if cohort is None else cohort
    participants = _filled_up(parts, cohort, state.round)
    chosen = parts.map.for_round(state.broadcast, state.round, seeds)
    origin = chosen.restrict(state.broadcast)
    total = parts.sums.open(
        participants, size=parts.code.width(chosen.sent), device=state.broadcast.device, round=state.round
    )
    sent = _send_all(state, parts, chosen, origin, total, cohort, seeds)
    facts = RoundFacts(
        cohort=len(cohort),
        clipped=sent.counted - sent.inside,
        not_finite=sent.not_finite,
        uplink_bytes=sent.uplink_bytes,
        participants=len(participants),
        arrived=0,
    )
    of_records = parts.local.release(cohort, round=state.round)  # whoever sums may see their uploads, sum or no sum
    try:
        summed = total.close()
    except SecureSumAborted as reason:
        _write(ledger, of_records or Aborted(round=state.round, reason=str(reason)))
        return replace(state, round=state.round + 1), replace(facts, aborted=str(reason), release=of_records)
    uploads = len(summed.included)
    decoded = parts.code.decode(summed.total, origin, uploads, state.round)
    noisy = parts.privacy.finish(decoded, state.clip_norm, state.round)
    clip_norm = parts.privacy.next_norm(state.clip_norm, sent.inside - sent.counted / 2, state.round)
    release = parts.privacy.release(state.clip_norm, state.round, chosen.sent, uploads) or of_records
    _write(ledger, release)
    divisor = _divisor(parts, np.intersect1d(cohort, summed.included))
    state = parts.server.apply(state, chosen.adjoint(noisy) / divisor, count=divisor, clip_norm=clip_norm)
    return state, replace(facts, arrived=uploads, release=release)


def _write(ledger: Book | None, entry: Entry | None) -> None:
    if ledger is not None and entry is not None:
        ledger.record(entry)


def draw_cohort(parts: Parts, round: int) -> NDArray[np.int64]:
    """The round's clients; at most `slots` of them, the others left out by secret lot."""
    cohort = parts.sampler.sample(parts.randomness, round)
    if parts.slots is None or len(cohort) <= parts.slots:
        return cohort
    return cohort[parts.randomness.subset(parts.slots, len(cohort), "cohort.slots", round)]


def _filled_up(parts: Parts, cohort: NDArray[np.int64], round: int) -> NDArray[np.int64]:
    """The cohort and as many others, by secret lot, as make `fill` of them."""
    if parts.fill is None or len(cohort) >= parts.fill:
        return cohort
    others = np.setdiff1d(np.arange(parts.sampler.clients), cohort)
    chosen = parts.randomness.subset(parts.fill - len(cohort), len(others), "cohort.fill", round)
    return np.sort(np.concatenate([cohort, others[chosen]]))


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """Of the cohort's rows: how many were counted, inside the bound, not finite; and the bytes of all uploads."""

    counted: int
    inside: int
    not_finite: int
    uplink_bytes: int | None


def _send_all(
    state: ServerState,
    parts: Parts,
    chosen: Map,
    origin: Tensor,
    total: OpenSum,
    cohort: NDArray[np.int64],
    seeds: Seeds,
) -> _Sent:
    """Everybody's upload into the sum, group by group."""
    senders = np.intersect1d(total.senders, cohort)
    inside = not_finite = 0
    uplink_bytes: int | None = None
    for group in _groups(senders, parts.group):
        moves = parts.local.train(state.broadcast, group, round=state.round, seeds=seeds)
        rows = chosen.forward(moves, group)
        bounded, arrived = _send(state, parts, rows, origin, group)
        total.add(group, arrived.rows, None if parts.weigh_first else _weights(parts, group))
        inside += int(bounded.inside.sum())
        not_finite += bounded.not_finite + arrived.not_finite
        if arrived.uplink_bytes is not None:
            uplink_bytes = (uplink_bytes or 0) + arrived.uplink_bytes
    for group in _groups(np.setdiff1d(total.senders, cohort), parts.group):
        nothing = torch.zeros(len(group), chosen.sent, device=state.broadcast.device)
        total.add(group, _send(state, parts, nothing, origin, group)[1].rows)
    return _Sent(counted=len(senders) - not_finite, inside=inside, not_finite=not_finite, uplink_bytes=uplink_bytes)


def _send(
    state: ServerState, parts: Parts, rows: Tensor, origin: Tensor, group: NDArray[np.int64]
) -> tuple[Clipped, Arrived]:
    """Bound, noise and code; or code and bound, where the bound is put on what arrived."""
    if parts.decode_first:
        arrived = parts.code.send(rows, origin, group, state.round)
        bounded = parts.privacy.bound(arrived.rows, state.clip_norm)
        return bounded, replace(arrived, rows=bounded.rows)
    bounded = parts.privacy.bound(rows, state.clip_norm)
    weights = _weights(parts, group) if parts.weigh_first else None
    if weights is not None:
        bounded.rows.mul_(weights.to(bounded.rows.dtype)[:, None])
    noised = parts.privacy.share(bounded.rows, group, state.clip_norm, state.round)
    return bounded, parts.code.send(noised, origin, group, state.round)


def _groups(clients: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


def _weights(parts: Parts, group: NDArray[np.int64]) -> Tensor | None:
    if parts.client_weights is None:
        return None
    return torch.from_numpy(parts.client_weights[group]).to(parts.local.labels.device)


def _divisor(parts: Parts, counted: NDArray[np.int64]) -> float:
    if parts.divisor is not None:
        return parts.divisor
    if parts.client_weights is None:
        return float(len(counted) or 1)
    return float(parts.client_weights[counted].sum()) or 1.0
