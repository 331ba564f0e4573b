"""Recorders of an audited round: an observer of its stages, and wrappers that record the server's rule and state."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Entry
from dpfed.mechanisms.bernoulli import Coins, PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.integers import Integers
from dpfed.server.rules import ServerRule, ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip, ClipMoves, DropNotFinite, FixedClip
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.stage import Round, Stage
from dpfed.stages.wires import Symbols

_ENCODERS = (Encode, Integers, Coins, PrivateCoins, Symbols, DitheredNoise)
_BOUNDS = (Clip, ClipMoves, FixedClip, DropNotFinite)


class RowRecorder:
    """Observer that keeps the rows of a round between stages, and their sum.

    bounded: rows after the bound [n, sent], or after the map if there is no bound. given: rows that enter the encoding
    [n, sent]. arrived: rows after the wire, or after a bound behind it [n, width]. total: decoded sum [width].
    """

    def __init__(self, stages: Stages) -> None:
        self._last = next((stage for stage in stages.after_wire if isinstance(stage, _BOUNDS)), stages.wire)
        self._rows: dict[str, list[Tensor]] = {"mapped": [], "bounded": [], "given": [], "arrived": []}
        self._ids: list[NDArray[np.int64]] = []
        self.total = torch.empty(0)

    @property
    def bounded(self) -> Tensor:
        return torch.cat(self._rows["bounded"] or self._rows["mapped"])

    @property
    def given(self) -> Tensor:
        return torch.cat(self._rows["given"])

    @property
    def arrived(self) -> Tensor:
        return torch.cat(self._rows["arrived"])

    @property
    def uploads(self) -> dict[int, tuple[Tensor, Tensor]]:
        """For each client, the row that enters the encoding [sent] and the row that arrives [width]."""
        if not self._ids:
            return {}
        rows = zip(self.given, self.arrived, strict=True)
        return {int(one): row for one, row in zip(np.concatenate(self._ids), rows, strict=True)}

    def entering(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, _ENCODERS):
            self._rows["given"].append(rows.clone())
            self._ids.append(ids)

    def norms_before_clip(self, norms: Tensor) -> None:
        pass

    def left(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, Project):
            self._rows["mapped"].append(rows.clone())
        if isinstance(stage, _BOUNDS):
            self._rows["bounded"].append(rows.clone())
        if stage is self._last:
            self._rows["arrived"].append(rows.clone())

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        pass

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        pass

    def summed(self, stage: Stage, total: Tensor) -> None:
        if isinstance(stage, _ENCODERS):
            self.total = total.clone()


class RecordedRule:
    """Server's rule that records its last inputs."""

    def __init__(self, rule: ServerRule) -> None:
        self._rule = rule
        self.move: Tensor | None = None
        self.count = 1.0

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        self.move, self.count = mean_move.clone(), count
        return self._rule.step(state, mean_move, count=count)

    def repeat_last_step(self, before: ServerState) -> ServerState | None:
        """Return the state that the rule computes from `before` and its last inputs; None if it was not called."""
        return None if self.move is None else self._rule.step(before, self.move.clone(), count=self.count)


class StateRecorder(Stage):
    """Last stage of a chain, which changes nothing and records the clip norm of the next state."""

    def __init__(self) -> None:
        self.clip_norm: float | None = None

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        self.clip_norm = state.clip_norm
        return state


class LedgerInMemory:
    """Ledger that keeps its entries in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)
