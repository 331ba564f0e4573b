"""What a method is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.ranks import Alone, Ranks
from dpfed.aggregation.summed import OpenSum, Sums
from dpfed.clients.training import LocalTraining
from dpfed.participation.canaries import Canaries
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness
from dpfed.server.state import ServerRule
from dpfed.stages.client_level import Privacy
from dpfed.stages.code import Code
from dpfed.stages.masks import MapChoice


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A method: one choice for each step of a round.

    `group` clients are trained and summed at a time. Without privacy the divisor is the realised number of clients, or
    updates are weighted by `client_weights` (examples) and divided by their sum; with it, every client counts the same
    and the divisor is the public `divisor`. `decode_first`: the bound is put on what a trusted aggregator decoded,
    where a bound before the code would not bound what is summed. `slots` is the most uploads that a sum may hold: if
    more are drawn, a uniformly random part of the cohort stays out. `fill` clients take part in every sum: who was not
    drawn sends a row of zeros, noised and masked like any other, so that the number of uploads tells nothing.
    `weigh_first`: weights, at most 1, are put on rows before the code, as integers want it, not on what arrived.
    `canaries` take part beside the clients, for audits. `ranks` are the processes that share a round's clients.
    """

    sampler: Sampler
    randomness: Randomness
    map: MapChoice
    local: LocalTraining
    privacy: Privacy
    code: Code
    sums: Sums[OpenSum]
    server: ServerRule
    group: int
    client_weights: NDArray[np.float64] | None
    divisor: float | None
    slots: int | None = None
    fill: int | None = None
    decode_first: bool = False
    weigh_first: bool = False
    canaries: Canaries | None = None
    ranks: Ranks = field(default_factory=Alone)
