"""Network that is evaluated and saved, computed from the server's state: its weights, the weights under a mask, or the
average of past rounds' models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork
from dpfed.models.mask_file import Recipe, mask_file
from dpfed.server.state import ServerRule, ServerState

NAME = "average"
"""Key of the moving average in a state's memory."""


class Readout(Protocol):
    """Computation of the network from the released state, which is post-processing."""

    def weights(self, state: ServerState) -> Tensor:
        """Return the network's weights [d]."""

    def file(self, state: ServerState) -> bytes | None:
        """Return a mask file with exactly these weights; None if no mask gives them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightsReadout:
    """Readout of a server that broadcasts the network's weights."""

    model: FlatModel

    def weights(self, state: ServerState) -> Tensor:
        return state.broadcast

    def file(self, state: ServerState) -> None:
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedReadout:
    """Readout of mask probabilities theta: frozen weights times a mask. The mask is drawn from theta with the seed's
    public dice, or 1[theta >= 1/2], or theta itself, the mean of all masks (which no mask file can hold)."""

    network: FrozenNetwork
    recipe: Recipe
    rule: Literal["sample", "threshold", "mean"]

    def weights(self, state: ServerState) -> Tensor:
        mask = self._mask(state)
        return self.network.weights(state.broadcast if mask is None else mask.to(state.broadcast.dtype))

    def file(self, state: ServerState) -> bytes | None:
        mask = self._mask(state)
        return None if mask is None else mask_file(self.recipe, self.network, mask)

    def _mask(self, state: ServerState) -> Tensor | None:
        theta = state.broadcast
        if self.rule == "mean":
            return None
        if self.rule == "threshold":
            return theta.ge(0.5)
        return self.network.dice.lt(theta.double())


@dataclass(frozen=True, kw_only=True, eq=False)
class MovingAverage:
    """State after `rule`, with an exponential moving average of its broadcasts.

        a = w after the first round, then a = decay a + (1 - decay) w

    Rounds continue from w, as without the average. Post-processing of released models. Raises ConfigError.
    """

    rule: ServerRule
    decay: float

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ConfigError(f"server.average={self.decay}: must be between 0 and 1.")

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state that the next round starts from."""
        after = self.rule.step(state, mean_move, count=count)
        before = state.memory.get(NAME)
        average = after.broadcast.clone() if before is None else before.lerp(after.broadcast, 1 - self.decay)
        return replace(after, memory={**after.memory, NAME: average})


@dataclass(frozen=True, kw_only=True, eq=False)
class AveragedReadout:
    """Readout `readout`, applied to the moving average in place of the broadcast."""

    readout: Readout

    def weights(self, state: ServerState) -> Tensor:
        return self.readout.weights(_averaged_state(state))

    def file(self, state: ServerState) -> bytes | None:
        return self.readout.file(_averaged_state(state))


def frozen_network_of(readout: Readout) -> FrozenNetwork | None:
    """Return the frozen network under the masks, if masks are trained; else None."""
    last = readout.readout if isinstance(readout, AveragedReadout) else readout
    return last.network if isinstance(last, MaskedReadout) else None


def _averaged_state(state: ServerState) -> ServerState:
    """Return the state with the moving average as its broadcast; before the first round there is only the broadcast."""
    return replace(state, broadcast=state.memory.get(NAME, state.broadcast))
