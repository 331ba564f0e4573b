"""An average over the models of past rounds, as the model that is evaluated and saved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.models.frozen import FrozenNetwork
from dpfed.server.readout import Masked, Readout
from dpfed.server.state import ServerRule, ServerState

NAME = "average"
"""Of the average in a state's memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MovingAverage:
    """The state after `rule`, and beside it an exponential moving average of what it broadcasts:

        a = w after the first round, then a = decay a + (1 - decay) w

    Rounds go on from w, as without. Post-processing of released models. Raises ConfigError.
    """

    rule: ServerRule
    decay: float

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ConfigError(f"server.average={self.decay}: must be between 0 and 1.")

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """The state that the next round starts from."""
        after = self.rule.step(state, mean_move, count=count)
        before = state.memory.get(NAME)
        average = after.broadcast.clone() if before is None else before.lerp(after.broadcast, 1 - self.decay)
        return replace(after, memory={**after.memory, NAME: average})


@dataclass(frozen=True, kw_only=True, eq=False)
class Averaged:
    """The network of `last`, made from the average in place of what is broadcast."""

    last: Readout

    def weights(self, state: ServerState) -> Tensor:
        return self.last.weights(_averaged(state))

    def file(self, state: ServerState) -> bytes | None:
        return self.last.file(_averaged(state))


def network_of(readout: Readout) -> FrozenNetwork | None:
    """The frozen network that masks are over, if they are what is trained."""
    last = readout.last if isinstance(readout, Averaged) else readout
    return last.network if isinstance(last, Masked) else None


def _averaged(state: ServerState) -> ServerState:
    """Before the first round there is only the start."""
    return replace(state, broadcast=state.memory.get(NAME, state.broadcast))
