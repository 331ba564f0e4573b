"""Pairs of neighbouring rounds: updates in both worlds, and how far the releases are apart without noise."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.round.bound_checks import in_charged_metric
from dpfed.audit.round.one_round import Claim, OneRound, RandomnessByCallOrder
from dpfed.audit.round.whole_round import RoundOutcome, WholeRounds
from dpfed.audit.trials import LOUD_NORM, Direction, fixed_signs, layerwise_direction, uneven_directions
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.integers import Integers
from dpfed.models.flat import Block
from dpfed.stages.stage import Map

HUGE = 1e15
TINY = 1e-3
_JUST_INSIDE = 0.9999
_BARELY = 0.01  # relative change of an entry: it changes which entries are the largest, and hardly changes the norm


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """Two neighbouring worlds: updates [d] of the client under test, and the common update of all other clients.

    tested_update: update of the client under test in world 1
    neighbour_update: its update in world 0; None if it sends nothing there
    common_update: update of every other client
    broadcast:  model at the start of the round; None for the model at the start of the run
    """

    name: str
    tested_update: Tensor
    neighbour_update: Tensor | None
    common_update: Tensor
    broadcast: Tensor | None = None


def pairs_of_sums(one: OneRound, claim: Claim, layout: tuple[Block, ...], *, absent: bool) -> list[Neighbours]:
    """Return the pairs for a noised vector. absent: True if in world 0 no row is sent for the client,
    not even zeros.
    """
    size, chosen, bound = one.size, one.projection, claim.bound
    nothing = torch.zeros(size)

    def make_pair(name: str, own: Tensor, rest: Tensor = nothing) -> Neighbours:
        other = -own if claim.adjacency is Adjacency.REPLACE_ONE else None if absent else nothing
        return Neighbours(name=name, tested_update=own, neighbour_update=other, common_update=rest)

    dense, loud, sizes = as_tensor(fixed_signs(size)), LOUD_NORM * bound, block_sizes(layout)
    along = chosen.adjoint(torch.ones(chosen.sent))
    return [
        make_pair("dense", loud * dense / size**0.5),
        make_pair("one entry", loud * _one_transmitted_entry(chosen, size)),
        *([make_pair("along the map", loud * along / along.norm())] if chosen.sent < size else []),
        make_pair("equal norm in every layer", loud * as_tensor(layerwise_direction(sizes))),
        make_pair("dense, all others opposite", loud * dense / size**0.5, -loud * dense / size**0.5),
        make_pair("huge", HUGE * dense),
        make_pair("tiny", TINY * bound * dense / size**0.5),
        *(make_pair(name, loud * as_tensor(row)) for name, row in uneven_directions(sizes).items()),
    ]


def with_count_pair(pairs: list[Neighbours], claim: Claim) -> list[Neighbours]:
    """Return the pairs; under replace-one, with one in which the client is outside the bound in world 1 and inside in
    world 0, which changes the released count of clients inside the bound.
    """
    if claim.adjacency is not Adjacency.REPLACE_ONE:
        return pairs
    inside = -pairs[0].tested_update * (_JUST_INSIDE * claim.bound / torch.linalg.vector_norm(pairs[0].tested_update))
    return [replace(pairs[0], name="dense, outside and inside the bound", neighbour_update=inside), *pairs]


def pairs_of_uploads(pairs: list[Neighbours], one: OneRound, claim: Claim) -> list[Neighbours]:
    """Return the pairs for single uploads, and one more pair, in which only the set of the largest entries changes."""
    even = torch.arange(one.size) % 2 == 0
    values = [claim.bound / one.size**0.5 * (1 + _BARELY * flag) for flag in (even.float(), (~even).float())]
    return [
        *(pair for pair in pairs if "others" not in pair.name),
        Neighbours(
            name="other entries on top",
            tested_update=values[0],
            neighbour_update=values[1],
            common_update=values[0],
        ),
    ]


def pairs_of_samples(one: OneRound, claim: Claim, layout: tuple[Block, ...]) -> list[Neighbours]:
    """Return pairs with the largest allowed moves of probabilities, from the worst starts: the middle and the edge.

    If the client may move in both directions (replace-one), the start is one move away from the edge.
    """
    assert claim.coins is not None
    size, chosen, edge = one.size, one.projection, claim.coins.floor
    nothing, up, uneven = torch.zeros(size), torch.ones(size), uneven_directions(block_sizes(layout))
    both = claim.adjacency is Adjacency.REPLACE_ONE
    low = torch.full((size,), min(edge + (claim.bound / chosen.sent**0.5 if both else 0.0), 0.5))
    deep = torch.full((size,), min(edge + (claim.bound if both else 0.0), 0.5))

    def make_pair(name: str, own: Tensor, broadcast: Tensor | None, rest: Tensor = nothing) -> Neighbours:
        return Neighbours(
            name=name,
            tested_update=own,
            neighbour_update=-own if both else nothing,
            common_update=rest,
            broadcast=broadcast,
        )

    return [
        make_pair("all up from the edge", up, low),
        make_pair("all down from the other edge", -up, 1 - low),
        make_pair("all up from the start", up, None),
        make_pair("both ways from the start", as_tensor(fixed_signs(size)), None),
        make_pair("all up, all others down", up, None, -up),
        make_pair("one probability up", _one_transmitted_entry(chosen, size), deep),
        make_pair("all up from certainty", up, nothing),
        *(make_pair(name, LOUD_NORM * as_tensor(row), None) for name, row in uneven.items()),
    ]


def _one_transmitted_entry(chosen: Map, size: int) -> Tensor:
    """Return the unit vector [d] of one entry that the round's map transmits."""
    marks = torch.arange(1.0, chosen.sent + 1).to(torch.float32)
    back = chosen.adjoint(marks).abs()
    entry = int(back.argmax()) if chosen.sent < size else size // 2
    one = torch.zeros(size)
    one[entry] = 1.0
    return one


def block_sizes(layout: tuple[Block, ...]) -> list[int]:
    """Return the number of entries of each block of a model, in order."""
    return [block.stop - block.start for block in layout]


def as_tensor(direction: Direction) -> Tensor:
    """Return the direction [d] as a float32 tensor."""
    return torch.from_numpy(direction).float()


_ROUNDINGS = 8
_ROUNDS = 3
"""Number of noisy rounds in each world, for the ledger's lines and the rule of the state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairGap:
    """Two neighbouring worlds of one round.

    gap:          distance of the noiseless releases over the claimed sensitivity; 1 if the pair attains it
    lines:        different sets of ledger lines of noisy rounds
    follows_rule: True if every new state follows, by one divisor, from the released sum or samples alone
    """

    name: str
    gap: float
    lines: frozenset[tuple[str, ...]]
    follows_rule: bool


def gap_of_pair(one: OneRound, claim: Claim, pair: Neighbours) -> PairGap:
    """Return the noiseless gap of a pair, from two rounds, and the records of a few noisy rounds in each world.

    one: round that draws new noise in every call."""
    if pair.broadcast is not None:
        one = replace(one, state=replace(one.state, broadcast=pair.broadcast))
    rounds = WholeRounds(one_round=one)
    done = [_round(rounds, claim, pair, own) for own in _worlds(pair) for _ in range(_ROUNDS)]
    divisors = {each.count for each in done if each.sum_of_moves is not None}
    lines = {tuple(json.dumps(entry.to_dict(), sort_keys=True) for entry in each.entries) for each in done}
    return PairGap(
        name=pair.name,
        gap=(_gap_of_vectors if claim.coins is None else _gap_of_probabilities)(one, claim, pair),
        lines=frozenset(lines),
        follows_rule=all(each.follows_rule for each in done)
        and len(divisors) < 2
        and (claim.coins is None or _samples_decide(one, claim, pair)),
    )


def _worlds(pair: Neighbours) -> tuple[Tensor | None, Tensor]:
    return pair.neighbour_update, pair.tested_update


def _round(rounds: WholeRounds, claim: Claim, pair: Neighbours, own: Tensor | None) -> RoundOutcome:
    if claim.visible_output == "uploads":
        given = torch.zeros_like(pair.tested_update) if own is None else own
        return rounds.run(rounds.moves(given, given), rounds.smallest_cohort())
    together = rounds.smallest_cohort()
    return rounds.run(rounds.moves(own, pair.common_update), together[1:] if own is None else together)


def _gap_of_vectors(one: OneRound, claim: Claim, pair: Neighbours) -> float:
    """Return the gap of a noised vector; rows that are rounded at random are averaged."""
    quiet = WholeRounds(one_round=one.without_noise)
    times = _ROUNDINGS if one.method.stages.find(Integers) is not None else 1

    def releases(own: Tensor | None) -> Tensor:
        done = [_round(quiet, claim, pair, own) for _ in range(times)]
        if claim.visible_output == "uploads":  # rows that enter the encoding
            return torch.stack([done[0].uploads[k][0] for k in range(len(done[0].uploads))]).double()
        return torch.stack([quiet.released_sum(each, by_state=False) for each in done])

    absent, present = (releases(own) for own in _worlds(pair))
    return float(torch.linalg.vector_norm(present - absent, dim=1).mean()) / claim.sensitivity


class _NoOnes(RandomnessByCallOrder):
    """Randomness with the largest uniform numbers, so that every Bernoulli sample is 0."""

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        return np.full(count, 1 - 2.0**-53)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        return np.full(count, -1, dtype=np.int64).view(np.uint64)


def _samples_decide(one: OneRound, claim: Claim, pair: Neighbours) -> bool:
    """Return True if both worlds of Bernoulli uploads release one sum if all their samples are 0."""
    rounds = WholeRounds(one_round=one.with_randomness(_NoOnes(0)))
    sums = [_round(rounds, claim, pair, own).sum_of_moves for own in _worlds(pair)]
    return sums[0] is None or sums[1] is None or torch.equal(sums[0], sums[1])


def _gap_of_probabilities(one: OneRound, claim: Claim, pair: Neighbours) -> float:
    """Return the gap of Bernoulli samples: the largest move of their probabilities over the claimed clips."""
    coins, stage = claim.coins, one.method.stages.find(PrivateCoins)
    assert coins is not None
    trials = 1 if stage is None else stage.trials
    client, start, edge = np.zeros(1, dtype=np.int64), one.reference.double(), coins.floor
    ends = [
        (start + one.upload(own[None], client).bounded[0].double()).clamp(edge, 1 - edge)
        for own in _worlds(pair)
        if own is not None
    ]
    moved = in_charged_metric(one, claim, ends[1] - ends[0])
    sizes = ((trials**0.5 * moved.norm(), coins.l2_clip), (moved.abs().max(), coins.linf_clip))
    return max(float(size) / (coins.sensitivity(clip) or 1.0) for size, clip in sizes if clip is not None)
