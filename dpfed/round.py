"""One federated round, as the papers write it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from accounting.ledger import Release
from dpfed.compress.masks import MapChoice
from dpfed.local.sgd import LocalSgd
from dpfed.privacy.client_level import Privacy
from dpfed.randomness import Randomness
from dpfed.sampling import Sampler
from dpfed.secagg.plain import PlainSum
from dpfed.seeds import Seeds
from dpfed.server.averaging import Averaging, ServerState


class Book(Protocol):
    """Where releases are charged: an `accounting.Ledger`, or what stands before one."""

    def record(self, release: Release) -> None:
        """Charge the release durably, or raise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A method: one choice for each step of a round.

    `group` clients are trained and summed at a time. Without privacy, updates are weighted by `client_weights`
    (examples) and divided by their realised sum; with it, every client counts the same and the divisor is the
    sampler's public expectation.
    """

    sampler: Sampler
    randomness: Randomness
    map: MapChoice
    local: LocalSgd
    privacy: Privacy
    server: Averaging
    group: int
    client_weights: NDArray[np.float64] | None


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """What the operator may look at and must not publish: no epsilon covers these numbers."""

    cohort: int
    clipped: int
    not_finite: int


def run_round(state: ServerState, parts: Parts, *, seeds: Seeds, ledger: Book | None) -> tuple[ServerState, RoundFacts]:
    """Cohort, local training, map, bound, noise, sum, ledger, server step.

    The release is in the ledger, on disk, before the new state is returned: a state that anybody can see has been
    charged. Raises LedgerError, and releases nothing, where that fails.
    """
    cohort = parts.sampler.sample(parts.randomness, state.round)
    chosen = parts.map.for_round(state.weights, state.round, seeds)
    total = PlainSum(chosen.sent, state.weights.device)
    inside = not_finite = 0
    for group in _groups(cohort, parts.group):
        updates = parts.local.train(state.weights, group, round=state.round, seeds=seeds)
        bounded = parts.privacy.bound(chosen.forward(updates, group), state.clip_norm)
        rows = parts.privacy.share(bounded.rows, group, state.clip_norm, state.round)
        total.add(rows, _weights(parts, group))
        inside += int(bounded.inside.sum())
        not_finite += bounded.not_finite
    noisy = parts.privacy.finish(total.close(), state.clip_norm, state.round)
    counted = len(cohort) - not_finite
    clip_norm = parts.privacy.next_norm(state.clip_norm, inside - counted / 2, state.round)
    release = parts.privacy.release(state.clip_norm, state.round, chosen.sent)
    if release is not None and ledger is not None:
        ledger.record(release)
    mean = chosen.adjoint(noisy) / _divisor(parts, cohort)
    facts = RoundFacts(cohort=len(cohort), clipped=counted - inside, not_finite=not_finite)
    return parts.server.apply(state, mean, clip_norm), facts


def _groups(cohort: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(cohort), size):
        yield cohort[start : start + size]


def _weights(parts: Parts, group: NDArray[np.int64]) -> torch.Tensor | None:
    if parts.client_weights is None:
        return None
    return torch.from_numpy(parts.client_weights[group]).to(parts.local.labels.device)


def _divisor(parts: Parts, cohort: NDArray[np.int64]) -> float:
    if parts.client_weights is None:
        return parts.sampler.expected
    return float(parts.client_weights[cohort].sum()) or 1.0
