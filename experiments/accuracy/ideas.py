"""Variants of Fed-SMP that were tried, as custom code for ideas.toml (--load).

Masks of changing size, masks from released models, and server rules that reduce noise. All of them are public or
post-processing: the epsilon of a run depends on its noise only.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from accounting import budget
from accounting.budget import Plan
from dpfed import methods, server
from dpfed.stages.project import RandomSharedMask, SharedMask, random_indices, top_indices

# --- masks


@dataclass(frozen=True, kw_only=True)
class ChangingMask(RandomSharedMask):
    """Random mask whose share of coordinates changes linearly from `first` to `last`; at most `kept` are sent."""

    first: float
    last: float
    rounds: int

    def for_round(self, weights, number, seeds):
        share = self.first + (self.last - self.first) * number / max(self.rounds - 1, 1)
        kept = max(1, round(self.size * share))
        drawn = seeds.generator("mask.shared", number).permutation(self.size)[: self.kept]
        return PartOfMask(size=self.size, indices=torch.from_numpy(drawn), scale=self.size / kept, kept=kept)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartOfMask(SharedMask):
    """Mask of the first `kept` indices; other entries are sent as zeros and dropped on return."""

    kept: int

    def forward(self, updates, clients):
        rows = super().forward(updates, clients)
        rows[:, self.kept :] = 0
        return rows

    def adjoint(self, total):
        total = total.clone()
        total[self.kept :] = 0
        return super().adjoint(total)


def _changing(s, first, last):
    kept = round(s.size * max(first, last))
    return s.updates(ChangingMask(size=s.size, kept=kept, first=first, last=last, rounds=s.config.federation.rounds))


@methods.register("fading-masks")
def fading_masks(s):
    """Draw 70% of the coordinates in the first round, 10% in the last, by the round's public seed."""
    return _changing(s, 0.7, 0.1)


@methods.register("growing-masks")
def growing_masks(s):
    """Draw 10% of the coordinates in the first round, 70% in the last, by the round's public seed."""
    return _changing(s, 0.1, 0.7)


@dataclass(frozen=True, kw_only=True, eq=False)
class MostMoved(RandomSharedMask):
    """Mask of the coordinates that changed most in the released model, and as many random other coordinates.

    No public data are needed."""

    start: torch.Tensor

    def for_round(self, weights, number, seeds):
        size, half = self.size, self.kept // 2
        chosen = top_indices((weights - self.start.to(weights.device))[None], half)[0] if number else torch.arange(0)
        rest = torch.ones(size, dtype=torch.bool)
        rest[chosen.cpu()] = False
        rest = rest.nonzero()[:, 0]
        drawn = rest[random_indices(len(rest), self.kept - len(chosen), seeds, "mask.shared", number)]
        indices = torch.cat([chosen.cpu(), drawn]).sort().values.to(weights.device)
        return SharedMask(size=size, indices=indices, scale=1.0)


@methods.register("most-moved", sparse="yes", preset={"method": {"keep": 0.05}})
def most_moved(s):
    """Keep k coordinates: half with the largest change of the released model, half drawn at random."""
    start = s.model.initial(s.seeds.integer("weights"))
    return s.updates(MostMoved(size=s.size, kept=s.kept, start=start))


@methods.register("half-drawn", sparse="yes", preset={"method": {"keep": 0.05}})
def half_drawn(s):
    """Control of most-moved: k coordinates drawn in every round, not scaled."""
    return s.updates(Unscaled(size=s.size, kept=s.kept))


class Unscaled(RandomSharedMask):
    def for_round(self, weights, number, seeds):
        return replace(super().for_round(weights, number, seeds), scale=1.0)


# --- post-processing of a sum


@dataclass(frozen=True, kw_only=True)
class Denoised:
    """Server rule that shrinks each layer of the released mean by the share of its norm that noise explains.

    James-Stein estimator, positive part: 1 - m s^2 / |y|^2 for the m sent entries; with `memory` the mean square is a
    moving average over the rounds (Wiener). s: noise of an entry, for the plan of ideas.toml.
    """

    learning_rate: float
    memory: float

    @cached_property
    def noise(self):
        return budget.noise_multiplier(Plan(clients=6000, cohort=100), epsilon=1.01, rounds=60) / 100

    def step(self, state, mean_move, *, count):
        move, powers, at = mean_move.clone(), [], 0
        before = state.memory.get("power")
        for place, length in enumerate(LAYERS):
            part = move[at : at + length]
            sent = int((part != 0).sum())
            power = part.square().sum() / max(sent, 1)
            if before is not None and self.memory:
                power = self.memory * before[place] + (1 - self.memory) * power
            powers.append(power)
            part *= max(0.0, 1.0 - float((self.noise * state.clip_norm) ** 2 / power)) if sent > 2 else 1.0
            at += length
        memory = {"power": torch.stack(powers)} if self.memory else {}
        moved = state.broadcast + self.learning_rate * move
        return replace(state, round=state.round + 1, broadcast=moved, memory=memory)


LAYERS = (16 * 25, 32 * 16 * 25, 64 * 32 * 49, 640)


@server.register("james-stein")
def james_stein(*, learning_rate, momentum):
    return Denoised(learning_rate=learning_rate, memory=0.0)


@server.register("wiener")
def wiener(*, learning_rate, momentum):
    return Denoised(learning_rate=learning_rate, memory=0.9)


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """Server rule that continues omitted coordinates by their last released step, which decays by `momentum`."""

    learning_rate: float
    momentum: float

    def step(self, state, mean_move, *, count):
        last = state.memory.get("last", torch.zeros_like(mean_move))
        move = torch.where(mean_move != 0, mean_move, self.momentum * last)
        moved = state.broadcast + self.learning_rate * move
        return replace(state, round=state.round + 1, broadcast=moved, memory={"last": move})


@server.register("remembered")
def remembered(*, learning_rate, momentum):
    return Remembered(learning_rate=learning_rate, momentum=momentum)
