"""The part of a round that clients do: train, bound, noise, code, and into the sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.plain import PlainSum
from dpfed.aggregation.ranks import Ranks
from dpfed.aggregation.summed import Collecting, Opened, OpenSum
from dpfed.parts import Parts
from dpfed.seeds import Seeds
from dpfed.server.state import ServerState
from dpfed.stages.clip import Clipped, row_norms
from dpfed.stages.code import Arrived
from dpfed.stages.maps import Map
from dpfed.stages.probes import probe

_AT_ONCE = 1 << 21
"""Numbers that go through the steps together: 8 MiB (measured: benchmarks/README.md)."""
_INTEGERS_AT_ONCE = 1 << 18
"""The same of integers and their noise, which pass through in 64 bits."""


@dataclass(kw_only=True)
class Sent:
    """What happened on the way, for the operator and for audits; no epsilon covers it.

    counted, inside, not_finite: of the cohort's rows; clipping_known: clients have told whether they were inside
    largest_norm: of a bounded row, over the clip norm; None: nobody but the clients has seen rows
    noise:        the sum of the noise in the rows that arrive, in the units of those rows; None: no shares, or
                  (noise_known false) nobody but the clients has seen them
    draws:        how many shares that is
    longest_added: the L2 norm of the longest row where it goes into the sum (or, with noise in shares, where its noise
                  comes on), in the units it is added in; None: nobody but the clients has seen it
    added:        the probe (`dpfed.stages.probes`) of the rows that go into the sum and arrive; None: none was seen
    """

    counted: int = 0
    inside: int = 0
    not_finite: int = 0
    clipping_known: bool = True
    uplink_bytes: int | None = None
    largest_norm: float | None = 0.0
    noise: Tensor | None = None
    noise_known: bool = True
    draws: int = 0
    longest_added: float | None = 0.0
    added: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Uploading(Generic[Opened]):
    """One round's uploads: who sends what into which sum. What can be done with them is what that sum can do."""

    state: ServerState
    parts: Parts
    map: Map
    origin: Tensor
    total: Opened
    seeds: Seeds
    sent: Sent = field(default_factory=Sent)

    def everybody(self: Uploading[OpenSum], cohort: NDArray[np.int64], canaries: NDArray[np.int64]) -> Sent:
        """The cohort's clients train; canaries send their direction; whoever else takes part sends zeros.

        This rank's part of them; then everything is added up over the ranks.
        """
        ranks, senders = self.parts.ranks, self.total.senders
        trained = ranks.mine(np.intersect1d(senders, np.setdiff1d(cohort, canaries)))
        for group in groups(trained, self.parts.group):
            moves = self._moves(group)
            for part in self._pieces(moves):
                self._count(*self.upload(self.map.forward(moves[part], group[part]), group[part]))
        self.canaries(ranks.mine(np.intersect1d(senders, canaries)))
        for group in groups(ranks.mine(np.setdiff1d(senders, cohort)), self.parts.group):
            self.upload(self.nothing(group), group)
        self.sent.counted = len(trained) - self.sent.not_finite
        self.total.gather(ranks)
        self._gather(ranks)
        return self.sent

    def canaries(self: Uploading[Collecting], canaries: NDArray[np.int64]) -> None:
        """Canaries' directions into the sum."""
        for group in groups(canaries, self.parts.group):
            assert self.parts.canaries is not None
            loud = self.parts.canaries.updates(group, self.origin.device)
            self.upload(self.map.forward(loud, group), group)

    def trained(self, group: NDArray[np.int64]) -> Tensor:
        """What these clients have learnt, mapped: rows [c, sent]."""
        return self.map.forward(self._moves(group), group)

    def nothing(self, group: NDArray[np.int64]) -> Tensor:
        """The rows of clients that only fill a sum up."""
        return torch.zeros(len(group), self.map.sent, device=self.origin.device)

    def _moves(self, group: NDArray[np.int64]) -> Tensor:
        return self.parts.local.train(self.state.broadcast, group, round=self.state.round, seeds=self.seeds)

    def _pieces(self, rows: Tensor) -> Iterator[slice]:
        """Rows [c, d] a few at a time: on a CPU, about what stays in its caches on the way through all the steps.

        A secure sum gets whole groups: two clients of one share a mask that need not be made twice.
        """
        cached = rows.device.type == "cpu" and isinstance(self.total, PlainSum)
        room = _INTEGERS_AT_ONCE if self.parts.privacy.on_integers else _AT_ONCE
        height = max(1, room // rows.shape[1]) if cached else max(1, len(rows))
        for start in range(0, len(rows), height):
            yield slice(start, start + height)

    def _gather(self, ranks: Ranks) -> None:
        """What every rank has counted, added up; noise too, if there are several."""
        sent = self.sent
        if ranks.count == 1:
            return
        counts = [sent.counted, sent.inside, sent.not_finite, sent.draws, sent.uplink_bytes or 0]
        measured = ranks.largest(float(sent.uplink_bytes is not None)) > 0
        sent.counted, sent.inside, sent.not_finite, sent.draws, uplink = ranks.total(torch.tensor(counts)).tolist()
        sent.uplink_bytes = uplink if measured else None
        sent.largest_norm = ranks.largest(sent.largest_norm or 0.0)
        if self.parts.privacy.in_shares:
            dtype = self.parts.code.summed_as if self.parts.privacy.on_integers else self.origin.dtype
            width = self.parts.code.width(self.map.sent) if self.parts.privacy.on_integers else self.map.sent
            noise = torch.zeros(width, dtype=dtype, device=self.origin.device) if sent.noise is None else sent.noise
            sent.noise = ranks.total(noise)
        if math.isfinite(self.state.clip_norm):
            sent.longest_added = ranks.largest(sent.longest_added or 0.0)
            kind = torch.float64 if self.parts.code.summed_as.is_floating_point else torch.int64
            added = torch.zeros((), dtype=kind) if sent.added is None else sent.added
            sent.added = ranks.total(added.to(self.origin.device))

    def upload(self: Uploading[Collecting], rows: Tensor, group: NDArray[np.int64]) -> tuple[Clipped, Arrived]:
        """Rows [c, sent] of these clients, already mapped, all the way into the sum."""
        bounded, arrived = self._in_order(rows, group)
        self.add(arrived.rows, group)
        return bounded, arrived

    def add(self: Uploading[Collecting], rows: Tensor, group: NDArray[np.int64]) -> None:
        """Rows as they have arrived into the sum; with privacy they are looked at once more, whatever bounded them."""
        if math.isfinite(self.state.clip_norm):
            comes = np.isin(group, self.total.arriving)
            added = probe(rows if comes.all() else rows[torch.from_numpy(comes).to(rows.device)])
            self.sent.added = added if self.sent.added is None else self.sent.added + added
            if not self.parts.privacy.in_shares:
                self._measure(rows)
        self.total.add(group, rows, None if self.parts.weigh_first else weights_of(self.parts, group))

    def _measure(self, rows: Tensor) -> None:
        """The norms of rows without noise on them."""
        if len(rows):
            longest = float(row_norms(rows if rows.is_floating_point() else rows.double()).max())
            self.sent.longest_added = max(self.sent.longest_added or 0.0, longest)

    def messages(self, rows: Tensor, group: NDArray[np.int64]) -> tuple[Clipped | None, list[bytes]]:
        """The clients' end of `upload`: what each of them sends; None where the other end puts the bound."""
        parts, round = self.parts, self.state.round
        if parts.decode_first:
            return None, parts.code.messages(rows, self.origin, group, round)
        bounded = self._ready(rows, group)
        noise = partial(self._noised, group=group) if parts.privacy.on_integers else None
        return bounded, parts.code.messages(bounded.rows, self.origin, group, round, noise)

    def receive(self, messages: Sequence[bytes], group: NDArray[np.int64]) -> tuple[Clipped | None, Arrived]:
        """The server's end of `upload`, but for the sum. WireError for a message that no client could have sent."""
        arrived = self.parts.code.arrived(messages, self.origin, group, self.state.round)
        if not self.parts.decode_first:
            return None, arrived
        bounded = self._bounded(arrived.rows)
        return bounded, replace(arrived, rows=bounded.rows)

    def _in_order(self, rows: Tensor, group: NDArray[np.int64]) -> tuple[Clipped, Arrived]:
        """Bound, noise and code; or code and bound, where the bound is put on what arrived; noise on integers last."""
        parts, round = self.parts, self.state.round
        if parts.decode_first:
            arrived = parts.code.send(rows, self.origin, group, round)
            bounded = self._bounded(arrived.rows)
            return bounded, replace(arrived, rows=bounded.rows)
        bounded = self._ready(rows, group)
        arrived = parts.code.send(bounded.rows, self.origin, group, round)
        if parts.privacy.on_integers:
            arrived = replace(arrived, rows=self._noised(arrived.rows, group))
        return bounded, arrived

    def _ready(self, rows: Tensor, group: NDArray[np.int64]) -> Clipped:
        """Rows as the code gets them: bounded, weighed if integers want it, noised if the noise is not on integers."""
        bounded = self._bounded(rows)
        weights = weights_of(self.parts, group) if self.parts.weigh_first else None
        if weights is not None:
            bounded.rows.mul_(weights.to(bounded.rows.dtype)[:, None])
        if self.parts.privacy.on_integers:
            return bounded
        return replace(bounded, rows=self._noised(bounded.rows, group))

    def _bounded(self, rows: Tensor) -> Clipped:
        bounded = self.parts.privacy.bound(rows, self.state.clip_norm)
        if len(rows) and math.isfinite(self.state.clip_norm):
            norms = row_norms(bounded.rows)
            self.sent.largest_norm = max(self.sent.largest_norm or 0.0, float(norms.max()) / self.state.clip_norm)
        return bounded

    def _noised(self, rows: Tensor, group: NDArray[np.int64]) -> Tensor:
        """Rows with the clients' own noise; what of it arrives is added up."""
        privacy, norm, round = self.parts.privacy, self.state.clip_norm, self.state.round
        if not privacy.in_shares:
            return privacy.share(rows, group, norm, round)
        self._measure(rows)
        comes = np.isin(group, self.total.arriving)
        before = _sum_of(rows, comes).clone()
        noised = privacy.share(rows, group, norm, round)
        noise = torch.sub(_sum_of(noised, comes), before, out=before)
        self.sent.noise = noise if self.sent.noise is None else self.sent.noise.add_(noise)
        self.sent.draws += int(comes.sum())
        return noised

    def _count(self, bounded: Clipped, arrived: Arrived) -> None:
        sent = self.sent
        sent.inside += int(bounded.inside.sum())
        sent.not_finite += bounded.not_finite + arrived.not_finite
        if arrived.uplink_bytes is not None:
            sent.uplink_bytes = (sent.uplink_bytes or 0) + arrived.uplink_bytes


def groups(clients: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """The clients, `size` at a time."""
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


def _sum_of(rows: Tensor, chosen: NDArray[np.bool_]) -> Tensor:
    """The sum [k] of the chosen rows of [c, k]; not to be written to."""
    if len(rows) == 1 and chosen.all():
        return rows[0]
    return rows[torch.from_numpy(chosen).to(rows.device)].sum(dim=0)


def weights_of(parts: Parts, group: NDArray[np.int64]) -> Tensor | None:
    """The weights of these clients' rows; None where every client counts the same."""
    if parts.client_weights is None:
        return None
    return torch.from_numpy(parts.client_weights[group]).to(parts.local.labels.device)
