"""The rounds of a training loop of one's own, once the size of its updates is known: those of `dpfed.round`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.plain import PlainSums
from dpfed.clients.training import LocalTraining
from dpfed.methods.goals import PrivacyGoal
from dpfed.round import Method
from dpfed.run.client_level.plan import Parts, require_charged_as_drawn, whole_update
from dpfed.server.state import ServerState
from dpfed.stages.chain import Stages
from dpfed.stages.soundness import require_sound

StagesOf = Callable[[Parts], Stages]


@dataclass(frozen=True, kw_only=True, eq=False)
class Machine:
    """A method for rows [c, size], and what one of its rounds is charged for."""

    size: int
    method: Method
    goal: PrivacyGoal


def machine_of(parts: Parts, stages_of: StagesOf | None) -> Machine:
    """For updates of `parts.size` numbers. The goal's mechanism is that of the stage that is charged: nothing else says
    what a round costs. ConfigError for a chain that cannot be charged for what it does."""
    stages = (stages_of or whole_update)(parts)
    if stages_of is None:
        require_sound(stages)
    else:
        require_charged_as_drawn(stages, parts)
    assert stages.private is not None
    goal = replace(parts.goal(stages.project.sent), private=stages.private)
    method = Method(
        stages=stages,
        sampler=parts.sampler,
        randomness=parts.randomness,
        clients=cast(LocalTraining, Elsewhere()),
        aggregation=PlainSums(),
        server=Unmoved(),
        group=1,
        divisor=parts.sampler.expected,
    )
    return Machine(size=parts.size, method=method, goal=goal)


class Elsewhere:
    """Local training that is the caller's: no records are charged here."""

    def release(self, clients: NDArray[np.int64], *, number: int) -> None:
        return None


class Unmoved:
    """The model is the caller's; the released mean goes back to it."""

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        return replace(state, round=state.round + 1)
