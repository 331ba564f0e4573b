"""What an operator keeps of a round for diagnostics.jsonl: enough for an audit to work the round out again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.ranks import Ranks
from dpfed.diagnostics.canary_scores import canary_scores
from dpfed.diagnostics.noise_facts import noise_facts
from dpfed.diagnostics.probes import number, probe, probe_of
from dpfed.diagnostics.record import RoundRecord
from dpfed.diagnostics.update_norms import count_norms, no_norms, typical
from dpfed.mechanisms.integers import Integers
from dpfed.participation import members
from dpfed.participation.canaries import Canaries
from dpfed.server.state import ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip, DropNotFinite, FixedClip, row_norms
from dpfed.stages.clip_moves import ClipMoves
from dpfed.stages.project import Project
from dpfed.stages.stage import Round


class Watch:
    """An observer of one round. No epsilon covers what it holds.

    arriving:      clients whose rows come in time
    largest_norm:  of a clipped row, over the clip norm (of coins: over the nearest of their bounds, in their metric);
                   None: only clients have seen rows
    typical_norm:  the median norm of rows before they are clipped, over the clip norm; None: none was seen
    longest_added: the L2 norm of the longest row where it goes into the sum (or, with noise in rows, where that comes
                   on), in the units it is added in; None: only clients have seen it
    shares, draws: the sum of the noise in the rows that arrive, in their units, and of how many draws; None: no such
                   noise, or (noise_known false) only clients have seen it
    added:         the probe (`dpfed.diagnostics.probes`) of the rows that go into the sum and arrive; None: none seen
    near_the_ends: entries of a sum of integers that have probably wrapped around
    released:      [k], the noisy sum that is released; drawn: the server's noise in it (where clients add some: what
                   they have not), in the units it was added in, of `drawn_draws`
    """

    def __init__(
        self,
        stages: Stages,
        now: Round,
        arriving: NDArray[np.int64],
        *,
        clients: int = 0,
        canaries: Canaries | None = None,
    ) -> None:
        self._clients, self._canaries = clients, canaries
        self._stages, self._clip_norm, self._bounded = stages, now.clip_norm, math.isfinite(now.clip_norm)
        self._reference = now.reference
        self.arriving = arriving
        self.largest_norm: float | None = 0.0
        self.longest_added: float | None = 0.0
        self.noise_known = self.clipping_known = True
        self.shares: Tensor | None = None
        self.draws = 0
        self.added_probe: Tensor | None = None
        self.near_the_ends: int | None = None
        self.released: Tensor | None = None
        self.drawn: Tensor | None = None
        self.drawn_draws = 0
        self._norms = no_norms()
        self._before = torch.empty(0)
        self._summed: int | float | None = None

    @property
    def typical_norm(self) -> float | None:
        return typical(self._norms)

    def entering(self, stage: Any, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, Clip) and self._bounded and len(rows):
            self._norms += count_norms(row_norms(rows), self._clip_norm)
        if self._noises_rows(stage):
            self._measure(rows)
            self._before = self._arrived_sum(rows, ids).clone()

    def left(self, stage: Any, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, Clip | ClipMoves | FixedClip | DropNotFinite) and self._bounded and len(rows):
            self.largest_norm = max(self.largest_norm or 0.0, self._part_of_the_bound(stage, rows))
        if self._noises_rows(stage):
            noise = torch.sub(self._arrived_sum(rows, ids), self._before, out=self._before)
            self.shares = noise if self.shares is None else self.shares.add_(noise)
            self.draws += int(np.isin(ids, self.arriving).sum())
            self._before = torch.empty(0)

    def _part_of_the_bound(self, stage: Any, rows: Tensor) -> float:
        if isinstance(stage, ClipMoves):
            return stage.farthest(rows, self._reference, self._clip_norm)
        return float(row_norms(rows).max()) / self._clip_norm

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if not self._bounded:
            return
        comes = np.isin(ids, self.arriving)
        seen = probe(rows if comes.all() else rows[torch.from_numpy(comes).to(rows.device)])
        self.added_probe = seen if self.added_probe is None else self.added_probe + seen
        if not self._stages.noise_in_rows:
            self._measure(rows)

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        self.drawn, self.drawn_draws = noise, draws

    def summed(self, stage: Any, total: Tensor) -> None:
        if self._summed is None and self._bounded:
            self._summed = probe_of(total)
        if self.near_the_ends is None and (integers := self._stages.find(Integers)) is not None:
            self.near_the_ends = integers.near_the_ends(total)
        if isinstance(stage, Project):
            self.released = total

    def gather(self, ranks: Ranks, now: Round) -> None:
        """What every rank has seen, added up; noise too."""
        at = now.reference.device
        self.draws = int(ranks.total(torch.tensor([self.draws])))
        self.largest_norm = ranks.largest(self.largest_norm or 0.0)
        self._norms = ranks.total(self._norms)
        dtype = self._stages.summed_as
        if self._stages.noise_in_rows:
            none = torch.zeros(self._stages.width, dtype=dtype, device=at)
            self.shares = ranks.total(none if self.shares is None else self.shares)
        if self._bounded:
            self.longest_added = ranks.largest(self.longest_added or 0.0)
            kind = torch.float64 if dtype.is_floating_point else torch.int64
            mine = torch.zeros((), dtype=kind) if self.added_probe is None else self.added_probe
            self.added_probe = ranks.total(mine.to(at))

    def noise_facts(self) -> dict[str, Any] | None:
        """Of the noise in the sum; None where none was seen."""
        if not self._stages.noise_in_rows:
            return None if self.drawn is None else noise_facts(self.drawn, self.drawn_draws)
        own = self.shares if self.drawn is None or self.shares is None else self.shares + self.drawn
        return None if own is None else noise_facts(own, self.draws + self.drawn_draws)

    def record(
        self,
        now: Round,
        *,
        moved: Tensor | None = None,
        divisor: float | None = None,
        after: ServerState | None = None,
        aborted: str | None = None,
    ) -> RoundRecord:
        """Of a round that has ended: with a sum, which `moved` is and which led to the state `after`, or without."""
        tally = now.tally
        drawn = now.task.cohort[now.task.cohort < self._clients]
        probes = None if moved is None or after is None else self.probes(now, moved)
        scored = self._canaries is not None and self.released is not None and moved is not None
        return RoundRecord(
            cohort=len(drawn),
            members=members.written(drawn, self._clients),
            counted=tally.counted if self.clipping_known else None,
            clipped=tally.counted - tally.inside if self.clipping_known else None,
            not_finite=tally.not_finite,
            failed=tally.failed,
            uplink_bytes=tally.uplink_bytes,
            participants=len(now.task.participants),
            arrived=now.uploads,
            largest_norm=self.largest_norm,
            typical_norm=self.typical_norm,
            longest_added=self.longest_added,
            map=now.projection.facts,
            noise_known=self.noise_known,
            aborted=aborted,
            divisor=divisor,
            noise=None if moved is None else self.noise_facts(),
            near_the_ends=None if moved is None else self.near_the_ends,
            probes=None if probes is None or after is None else probes | {"after": probe_of(after.broadcast)},
            canaries=canary_scores(self._canaries, self._stages, now, self.released) if scored else (),  # type: ignore[arg-type]
        )

    def probes(self, now: Round, moved: Tensor) -> dict[str, Any] | None:
        """From the rows in the sum to `moved` [d], what the server steps by; None where nothing is bounded.

        added:    of the rows where they go into the sum
        summed:   of their sum, equal to it, modulo 2^bits if there are bits
        filled:   of the shares of noise that the server adds where clients' are too few
        released: of what the round releases, in the units of updates
        moved:    of the same as a move of the model
        before, before_norm: of what the clients started from
        """
        if not self._bounded or self.released is None:
            return None
        return {
            "added": None if self.added_probe is None else number(self.added_probe),
            "summed": self._summed,
            "bits": self._stages.bits,
            "filled": 0.0 if self.drawn is None or not self._stages.noise_in_rows else probe_of(self.drawn),
            "released": probe_of(self.released),
            "moved": probe_of(moved),
            "before": probe_of(now.broadcast),
            "before_norm": float(torch.linalg.vector_norm(now.broadcast, dtype=torch.float64)),
        }

    def _noises_rows(self, stage: Any) -> bool:
        return self._stages.noise_in_rows and stage is self._stages.private

    def _measure(self, rows: Tensor) -> None:
        """The norms of rows without noise on them."""
        if len(rows):
            longest = float(row_norms(rows if rows.is_floating_point() else rows.double()).max())
            self.longest_added = max(self.longest_added or 0.0, longest)

    def _arrived_sum(self, rows: Tensor, ids: NDArray[np.int64]) -> Tensor:
        """The sum [k] of the rows that arrive; not to be written to."""
        comes = np.isin(ids, self.arriving)
        if len(rows) == 1 and comes.all():
            return rows[0]
        return rows[torch.from_numpy(comes).to(rows.device)].sum(dim=0)
