"""Whole rounds as in a run: participants, uploads, sum, noise, ledger, and the server's new state.

Only local training is replaced, by the audit's updates. All else is `dpfed.round.run_round` with the stages of the run.
The visible outputs are the new state, and the uploads if each of them is a release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Entry
from dpfed.audit.round.one_round import (
    BOUNDS,
    ENCODERS,
    LedgerInMemory,
    OneRound,
    RecordedRule,
    RowRecorder,
    StateRecorder,
    without_server_half,
)
from dpfed.round import OpenRound, client_groups, run_round
from dpfed.seeds import Seeds
from dpfed.server.rules import Averaging, ServerRule, ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.project import Identity, Project
from dpfed.stages.stage import Map


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundOutcome:
    """Outcome of one round.

    sum_of_moves: [n], the mean move that the server's rule gets, times its divisor; None if there is no sum
    count:   divisor of the mean move
    shown_move: `sum_of_moves` recomputed from the new state if the rule is a step along it; else `sum_of_moves`
    rule_follows: function that returns `follows_rule`, of its call
    uploads: for each client, the row that enters the encoding [sent] and the row that arrives [width]
    total:   decoded sum [width]
    sent:    released sum [sent], before the map's adjoint
    entries: ledger entries of the round
    """

    state: ServerState
    sum_of_moves: Tensor | None
    count: float
    shown_move: Tensor | None
    rule_follows: Callable[[], bool]
    uploads: dict[int, tuple[Tensor, Tensor]]
    total: Tensor
    sent: Tensor
    entries: tuple[Entry, ...]

    @property
    def follows_rule(self) -> bool:
        """True if the rule computes the new state from `sum_of_moves` again, now: after rounds of other updates, also
        from no sum that the rule remembers.
        """
        return self.rule_follows()


@dataclass(frozen=True, kw_only=True, eq=False)
class UpdatesByClient:
    """Source of rows: senders of the cohort send their row of `moves` [clients, d], padding sends zeros."""

    moves: Tensor

    def take_part(self, opened: OpenRound[Any]) -> None:
        cohort, senders = opened.now.task.cohort, opened.total.senders
        trained, fill = np.intersect1d(senders, cohort), np.setdiff1d(senders, cohort)
        opened.now.tally.trained += len(trained)
        for some in client_groups(trained, opened.method.group):
            opened.add_updates(self.moves[torch.from_numpy(some)].clone(), some)
        opened.fill(fill)


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeRounds:
    """Repetitions of `one_round` from its state. Client 0 is under test; all other clients send equal updates."""

    one_round: OneRound

    @cached_property
    def sum_from_move(self) -> Tensor:
        """Matrix [n, sent] from a move of the model to the sum that caused it: the pseudo-inverse of the
        map's adjoint.
        """
        projection = self.one_round.projection
        sent, unit = projection.sent, torch.eye(projection.sent, device=self.one_round.state.broadcast.device)
        there = torch.stack([projection.adjoint(unit[k].clone()) for k in range(sent)]).double()
        squares = there @ there.T
        length = float(squares.diagonal().mean())
        if torch.allclose(squares, length * torch.eye(sent, dtype=squares.dtype), atol=1e-6 * length):
            return there.T / length
        inverse: Tensor = torch.linalg.pinv(there)
        return inverse

    def smallest_cohort(self) -> NDArray[np.int64]:
        """Return the cohort of the first `one.clients` clients, the fewest of a released sum, with the client under
        test.
        """
        return np.arange(self.one_round.clients, dtype=np.int64)

    def moves(self, own: Tensor | None, rest: Tensor) -> Tensor:
        """Return all clients' updates [clients, d]: `own` for client 0 (None for zeros), and `rest` for each other
        client.
        """
        given = rest.expand(self.one_round.method.sampler.clients, -1).clone()
        given[0] = 0.0 if own is None else own
        return given

    def run(self, moves: Tensor, cohort: NDArray[np.int64]) -> RoundOutcome:
        """Run one round with this cohort. moves: updates of all clients [clients, d]."""
        one, method = self.one_round, self.one_round.method
        (stages, last, halves), rule, book = self._recording_chain, RecordedRule(method.server), LedgerInMemory()
        halves.clear()
        seen = RowRecorder(stages)
        recorded = replace(method, server=rule, stages=stages)
        given = UpdatesByClient(moves=moves)
        done = run_round(one.state, recorded, given, seeds=one.seeds, ledger=book, cohort=cohort, observer=seen)
        moved = None if rule.move is None else rule.move * rule.count
        adaptive = rule.move is not None and stages.adaptive_clip is not None
        norm = last.clip_norm if adaptive else one.state.clip_norm
        return RoundOutcome(
            state=done.state,
            sum_of_moves=moved,
            count=rule.count,
            shown_move=moved if moved is None else _shown_move(method.server, one.state, done.state, rule, moved),
            rule_follows=partial(_follows_by_rule, one.state, done.state, rule, norm, tuple(halves)),
            uploads=seen.uploads,
            total=seen.total,
            sent=seen.sent,
            entries=tuple(book.entries),
        )

    @cached_property
    def _recording_chain(self) -> tuple[Stages, StateRecorder, list[Callable[[], bool]]]:
        """Chain with a recording stage at its end, with the round's map computed once, as it is public and constant,
        and without server halves of custom stages in front of the bound: they post-process the noisy sum, while a half
        behind it may scale the sum before its noise. Tests of the halves that are left out are in the list.
        """
        one, last, halves = self.one_round, StateRecorder(), list[Callable[[], bool]]()
        sent, bits = one.method.stages.project.sent, one.method.stages.project.choice.downlink_bits
        known = _PrecomputedMap(sent=sent, downlink_bits=bits, projection=one.projection)
        stages = one.method.stages.replace_stage(Project, lambda stage: replace(stage, choice=known))
        place = next((n for n, stage in enumerate(stages) if isinstance(stage, (*BOUNDS, *ENCODERS))), 0)
        ahead = (without_server_half(each, halves) if each in stages.own else each for each in tuple(stages)[:place])
        return Stages(*ahead, *tuple(stages)[place:], last), last, halves

    def released_sum(self, outcome: RoundOutcome, *, by_state: bool = True) -> Tensor:
        """Return the released sum [sent] in float64, recomputed from the new state; zeros if the round has no result.

        by_state: False for the sum that the server's rule gets.
        """
        moved = outcome.shown_move if by_state else outcome.sum_of_moves
        if moved is None:
            return torch.zeros(self.one_round.projection.sent, dtype=torch.float64)
        if isinstance(self.one_round.projection, Identity):
            return moved.double()
        through = self.one_round.projection.adjoint(outcome.sent.clone())  # the map may hide a part of the sum
        return outcome.sent.double() + (moved.double() - through.double()) @ self.sum_from_move

    def rounding(self, outcome: RoundOutcome) -> float:
        """Return a bound on the rounding error of `released_sum`, which arises since the new state is float32."""
        step = step_size_of(self.one_round.method.server)
        if step is None or outcome.sum_of_moves is None:
            return 0.0
        state = float(torch.linalg.vector_norm(outcome.state.broadcast.double()))
        return 2.0**-23 * state * outcome.count / step * self._norm_of_sum_from_move

    @cached_property
    def _norm_of_sum_from_move(self) -> float:
        whole = isinstance(self.one_round.projection, Identity)
        return 1.0 if whole else float(torch.linalg.matrix_norm(self.sum_from_move, 2))


def step_size_of(rule: ServerRule) -> float | None:
    """Return the step size of a rule that only adds step size times mean move to the model; None for any other rule."""
    if not isinstance(rule, Averaging) or rule.edge is not None or rule.averaged is not None:
        return None
    return rule.learning_rate


def _shown_move(rule: ServerRule, before: ServerState, after: ServerState, seen: RecordedRule, moved: Tensor) -> Tensor:
    step = step_size_of(rule)
    return moved if step is None else (after.broadcast.double() - before.broadcast.double()) * (seen.count / step)


def _follows_by_rule(
    before: ServerState,
    after: ServerState,
    rule: RecordedRule,
    norm: float | None,
    halves: Sequence[Callable[[], bool]],
) -> bool:
    """Return True if `after` follows by the rule from the state before and the mean move.

    norm:   clip norm of the next round: that of this round unless an adaptive clip changes it
    halves: tests of custom server halves
    """
    if not all(half() for half in halves):
        return False
    again = rule.repeat_last_step(before) or before
    return (
        torch.equal(again.broadcast, after.broadcast)
        and after.clip_norm == norm
        and again.memory.keys() == after.memory.keys()
        and all(torch.equal(value, after.memory[name]) for name, value in again.memory.items())
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _PrecomputedMap:
    """Map choice that always returns one precomputed map."""

    sent: int
    downlink_bits: int
    projection: Map

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        return self.projection
