"""Pairs of neighbouring worlds for one round: updates of the client under test in both worlds, and of all others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.trials import LOUD_NORM, Direction, fixed_signs, layerwise_direction, uneven_directions
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


def pairs_of_sums(
    layout: tuple[Block, ...], chosen: Map, adjacency: Adjacency, *, bound: float, size: int, absent: bool
) -> list[Neighbours]:
    """Return the pairs for a noised vector. absent: True if in world 0 no row is sent for the client,
    not even zeros.
    """
    nothing = torch.zeros(size)

    def make_pair(name: str, one: Tensor, rest: Tensor = nothing) -> Neighbours:
        other = -one if adjacency is Adjacency.REPLACE_ONE else None if absent else nothing
        return Neighbours(name=name, tested_update=one, neighbour_update=other, common_update=rest)

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


def with_count_pair(pairs: list[Neighbours], adjacency: Adjacency, *, bound: float) -> list[Neighbours]:
    """Return the pairs; under replace-one, with one in which the client is outside the bound in world 1 and inside in
    world 0, which changes the released count of clients inside the bound.
    """
    if adjacency is not Adjacency.REPLACE_ONE:
        return pairs
    inside = -pairs[0].tested_update * (_JUST_INSIDE * bound / torch.linalg.vector_norm(pairs[0].tested_update))
    return [replace(pairs[0], name="dense, outside and inside the bound", neighbour_update=inside), *pairs]


def pairs_of_uploads(pairs: list[Neighbours], *, bound: float, size: int) -> list[Neighbours]:
    """Return the pairs for single uploads, and one more pair, in which only the set of the largest entries changes."""
    even = torch.arange(size) % 2 == 0
    values = [bound / size**0.5 * (1 + _BARELY * flag) for flag in (even.float(), (~even).float())]
    return [
        *(pair for pair in pairs if "others" not in pair.name),
        Neighbours(
            name="other entries on top",
            tested_update=values[0],
            neighbour_update=values[1],
            common_update=values[0],
        ),
    ]


def pairs_of_samples(
    layout: tuple[Block, ...], chosen: Map, adjacency: Adjacency, *, edge: float, bound: float, size: int
) -> list[Neighbours]:
    """Return pairs with the largest allowed moves of probabilities, from the worst starts: the middle and the edge.

    If the client may move in both directions (replace-one), the start is one move away from the edge.
    """
    nothing, up = torch.zeros(size), torch.ones(size)
    both = adjacency is Adjacency.REPLACE_ONE
    low = torch.full((size,), min(edge + (bound / chosen.sent**0.5 if both else 0.0), 0.5))
    deep = torch.full((size,), min(edge + (bound if both else 0.0), 0.5))

    def make_pair(name: str, one: Tensor, broadcast: Tensor | None, rest: Tensor = nothing) -> Neighbours:
        return Neighbours(
            name=name,
            tested_update=one,
            neighbour_update=-one if both else nothing,
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
        *(
            make_pair(name, LOUD_NORM * as_tensor(row), None)
            for name, row in uneven_directions(block_sizes(layout)).items()
        ),
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
