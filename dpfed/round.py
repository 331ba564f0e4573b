"""One federated round, as the papers write it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from accounting.ledger import LocalRelease, Release
from dpfed.compress.code import Code
from dpfed.compress.masks import MapChoice
from dpfed.local.training import LocalTraining
from dpfed.privacy.client_level import Privacy
from dpfed.randomness import Randomness
from dpfed.sampling import Sampler
from dpfed.secagg.plain import PlainSum
from dpfed.seeds import Seeds
from dpfed.server.state import ServerRule, ServerState


class Book(Protocol):
    """Where releases are charged: an `accounting.Ledger`, or what stands before one."""

    def record(self, release: Release | LocalRelease) -> None:
        """Charge the release durably, or raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A method: one choice for each step of a round.

    `group` clients are trained and summed at a time. Without privacy the divisor is the realised number of clients, or
    updates are weighted by `client_weights` (examples) and divided by their sum; with it, every client counts the same
    and the divisor is the public `divisor`. `decode_first`: the bound is put on what a trusted aggregator decoded,
    where a bound before the code would not bound what is summed. `slots` is the most uploads that a sum may hold: if
    more are drawn, a uniformly random part of the cohort stays out.
    """

    sampler: Sampler
    randomness: Randomness
    map: MapChoice
    local: LocalTraining
    privacy: Privacy
    code: Code
    server: ServerRule
    group: int
    client_weights: NDArray[np.float64] | None
    divisor: float | None
    slots: int | None = None
    decode_first: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """What the operator may look at and must not publish: no epsilon covers these numbers."""

    cohort: int
    clipped: int
    not_finite: int
    uplink_bytes: int | None


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
    charged. Raises LedgerError, and releases nothing, where that fails.
    """
    cohort = draw_cohort(parts, state.round) if cohort is None else cohort
    chosen = parts.map.for_round(state.broadcast, state.round, seeds)
    origin = chosen.restrict(state.broadcast)
    total = PlainSum(chosen.sent, state.broadcast.device)
    inside = not_finite = 0
    uplink_bytes: int | None = None
    for group in _groups(cohort, parts.group):
        moves = parts.local.train(state.broadcast, group, round=state.round, seeds=seeds)
        rows = chosen.forward(moves, group)
        if parts.decode_first:
            arrived = parts.code.send(rows, origin, group, state.round)
            bounded = parts.privacy.bound(arrived.rows, state.clip_norm)
            total.add(bounded.rows, _weights(parts, group))
        else:
            bounded = parts.privacy.bound(rows, state.clip_norm)
            noised = parts.privacy.share(bounded.rows, group, state.clip_norm, state.round)
            arrived = parts.code.send(noised, origin, group, state.round)
            total.add(arrived.rows, _weights(parts, group))
        inside += int(bounded.inside.sum())
        not_finite += bounded.not_finite + arrived.not_finite
        if arrived.uplink_bytes is not None:
            uplink_bytes = (uplink_bytes or 0) + arrived.uplink_bytes
    decoded = parts.code.decode(total.close(), origin, len(cohort), state.round)
    noisy = parts.privacy.finish(decoded, state.clip_norm, state.round)
    counted = len(cohort) - not_finite
    clip_norm = parts.privacy.next_norm(state.clip_norm, inside - counted / 2, state.round)
    of_clients = parts.privacy.release(state.clip_norm, state.round, chosen.sent)
    of_records = parts.local.release(cohort, round=state.round)
    for release in (of_clients, of_records):
        if release is not None and ledger is not None:
            ledger.record(release)
    divisor = _divisor(parts, cohort)
    state = parts.server.apply(state, chosen.adjoint(noisy) / divisor, count=divisor, clip_norm=clip_norm)
    facts = RoundFacts(cohort=len(cohort), clipped=counted - inside, not_finite=not_finite, uplink_bytes=uplink_bytes)
    return state, facts


def draw_cohort(parts: Parts, round: int) -> NDArray[np.int64]:
    """The round's clients; at most `slots` of them, the others left out by secret lot."""
    cohort = parts.sampler.sample(parts.randomness, round)
    if parts.slots is None or len(cohort) <= parts.slots:
        return cohort
    return cohort[parts.randomness.subset(parts.slots, len(cohort), "cohort.slots", round)]


def _groups(cohort: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(cohort), size):
        yield cohort[start : start + size]


def _weights(parts: Parts, group: NDArray[np.int64]) -> torch.Tensor | None:
    if parts.client_weights is None:
        return None
    return torch.from_numpy(parts.client_weights[group]).to(parts.local.labels.device)


def _divisor(parts: Parts, cohort: NDArray[np.int64]) -> float:
    if parts.divisor is not None:
        return parts.divisor
    if parts.client_weights is None:
        return float(len(cohort) or 1)
    return float(parts.client_weights[cohort].sum()) or 1.0
