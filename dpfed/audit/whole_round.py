"""Whole rounds, as a run makes them: who takes part, uploads, sum, noise, ledger, the server's new state.

Only local training is replaced, by updates that the audit gives. Everything else is `dpfed.round.run_round` with the
parts that run; what is looked at is the state that it returns, and what a server sees where uploads are releases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Entry
from dpfed.audit.one_round import Given, OneRound
from dpfed.clients.training import LocalTraining
from dpfed.participation.sampling import Sampler
from dpfed.round import draw_cohort, run_round
from dpfed.seeds import Seeds
from dpfed.server.state import ServerRule, ServerState
from dpfed.stages.code import Arrived, Code
from dpfed.stages.maps import Identity, Map
from dpfed.stages.masks import MapChoice


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What one round came to.

    moved:   [n], the mean move that the server's rule was given, times what it was divided by; None: no sum
    count:   what that is
    shown:   the same as the new state shows it, where the rule is a step along it; else `moved`
    replays: the new state is what the rule makes of `moved`, and nothing else
    uploads: client to what its code was given [sent] and what arrived [width]
    total:   the sum that was decoded [width]
    """

    state: ServerState
    moved: Tensor | None
    count: float
    shown: Tensor | None
    replays: bool
    uploads: dict[int, tuple[Tensor, Tensor]]
    total: Tensor
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeRounds:
    """Rounds of `one` from the same state. Client 0 is under test, all others do the same."""

    one: OneRound

    @cached_property
    def pull(self) -> Tensor:
        """[n, sent]: from a move of the model to the sum that the map's adjoint made it of (its pseudo-inverse)."""
        sent, unit = self.one.map.sent, torch.eye(self.one.map.sent, device=self.one.state.broadcast.device)
        there = torch.stack([self.one.map.adjoint(unit[k].clone()) for k in range(sent)]).double()
        squares = there @ there.T
        length = float(squares.diagonal().mean())
        if torch.allclose(squares, length * torch.eye(sent, dtype=squares.dtype), atol=1e-6 * length):
            return there.T / length
        inverse: Tensor = torch.linalg.pinv(there)
        return inverse

    @property
    def drawn(self) -> bool:
        """Whether the cohort is drawn in every round."""
        return self.one.sampled

    def together(self) -> NDArray[np.int64]:
        """As many clients as a released sum holds at least, the one under test among them."""
        return np.arange(self.one.clients, dtype=np.int64)

    def cohort(self, absent: bool) -> NDArray[np.int64]:
        """Who takes part in a trial; without the client under test where it is not one of the clients at all."""
        if not self.drawn:
            return self.together()[1:] if absent else self.together()
        parts = self.one.parts
        if not absent:
            return draw_cohort(parts, self.one.state.round)
        return 1 + draw_cohort(replace(parts, sampler=one_client_less(parts.sampler)), self.one.state.round)

    def moves(self, own: Tensor | None, rest: Tensor) -> Tensor:
        """[clients, d]."""
        given = rest.expand(self.one.parts.sampler.clients, -1).clone()
        given[0] = 0.0 if own is None else own
        return given

    def run(self, moves: Tensor, cohort: NDArray[np.int64]) -> Outcome:
        """One round in which these clients, having learnt `moves` [clients, d], take part."""
        one, parts = self.one, self.one.parts
        code, rule, book = _SeenCode(parts.code), _SeenRule(parts.server), _Entries()
        watched = replace(
            parts,
            local=cast(LocalTraining, Given(parts.local, moves)),
            code=cast(Code, code),
            server=cast(ServerRule, rule),
            map=cast(MapChoice, _Chosen(parts.map, one.map)),
        )
        state, _ = run_round(one.state, watched, seeds=one.seeds, ledger=book, cohort=cohort)
        moved = None if rule.move is None else rule.move * rule.count
        return Outcome(
            state=state,
            moved=moved,
            count=rule.count,
            shown=moved if moved is None else _shown(parts.server, one.state, state, rule, moved),
            replays=rule.replays(one.state, state),
            uploads=code.uploads,
            total=code.total,
            entries=tuple(book.entries),
        )

    def released(self, outcome: Outcome, *, by_state: bool = True) -> Tensor:
        """The sum [sent] as the new state shows it, float64; zeros where the round has no result."""
        moved = outcome.shown if by_state else outcome.moved
        if moved is None:
            return torch.zeros(self.one.map.sent, dtype=torch.float64)
        return moved.double() if isinstance(self.one.map, Identity) else moved.double() @ self.pull

    def rounding(self, outcome: Outcome) -> float:
        """How far `released` may be off, as the new state is float32."""
        step = step_of(self.one.parts.server)
        if step is None or outcome.moved is None:
            return 0.0
        state = float(torch.linalg.vector_norm(outcome.state.broadcast.double()))
        return 2.0**-23 * state * outcome.count / step * self._pull_norm

    @cached_property
    def _pull_norm(self) -> float:
        return 1.0 if isinstance(self.one.map, Identity) else float(torch.linalg.matrix_norm(self.pull, 2))


def one_client_less(who: Sampler) -> Sampler:
    """The sampler of a neighbouring population under Poisson sampling: the others' coins stay as they are."""
    fewer = who.clients - 1
    return cast(Sampler, replace(cast(Any, who), clients=fewer, cohort=who.law.probability * fewer))


def step_of(rule: Any) -> float | None:
    """The step size of a rule that adds the mean move times it, and does nothing else; None for other rules."""
    if getattr(rule, "edge", 0) is not None or getattr(rule, "averaged", 0) is not None:
        return None
    return float(rule.learning_rate)


def _shown(rule: Any, before: ServerState, after: ServerState, seen: _SeenRule, moved: Tensor) -> Tensor:
    step = step_of(rule)
    return moved if step is None else (after.broadcast.double() - before.broadcast.double()) * (seen.count / step)


@dataclass(kw_only=True)
class _Entries:
    entries: list[Entry] = field(default_factory=list)

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)


class _Chosen:
    """The round's map, made once: it is public, and the same in every trial."""

    def __init__(self, choice: MapChoice, chosen: Map) -> None:
        self._choice, self._chosen = choice, chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._choice, name)

    def for_round(self, weights: Tensor, round: int, seeds: Seeds) -> Map:
        return self._chosen


class _SeenCode:
    """A code that remembers what every client gave it and what came of it, and which sum it decoded."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self.uploads: dict[int, tuple[Tensor, Tensor]] = {}
        self.total = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)

    def send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        given = rows.clone()
        sent = self._code.send(rows, origin, clients, round)
        self.uploads |= {int(one): (given[k], sent.rows[k]) for k, one in enumerate(clients)}
        return sent

    def decode(self, total: Tensor, *rest: Any) -> Tensor:
        self.total = total.clone()
        return self._code.decode(total, *rest)


class _SeenRule:
    """A server's rule that remembers what it was given."""

    def __init__(self, rule: ServerRule) -> None:
        self._rule = rule
        self.move: Tensor | None = None
        self.count = self.clip_norm = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def apply(self, state: ServerState, mean_move: Tensor, *, count: float, clip_norm: float) -> ServerState:
        self.move, self.count, self.clip_norm = mean_move.clone(), count, clip_norm
        return self._rule.apply(state, mean_move, count=count, clip_norm=clip_norm)

    def replays(self, before: ServerState, after: ServerState) -> bool:
        """Whether `after` follows from the state before, the mean move and the clip norm."""
        if self.move is None:
            return torch.equal(before.broadcast, after.broadcast) and before.clip_norm == after.clip_norm
        again = self._rule.apply(before, self.move.clone(), count=self.count, clip_norm=self.clip_norm)
        same = torch.equal(again.broadcast, after.broadcast) and again.clip_norm == after.clip_norm
        return same and again.memory.keys() == after.memory.keys()
