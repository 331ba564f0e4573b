"""From what the server holds to the network that is evaluated and saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork
from dpfed.models.mask_file import Recipe, mask_file
from dpfed.server.state import ServerState


class Readout(Protocol):
    """Post-processing of the released state."""

    def weights(self, state: ServerState) -> Tensor:
        """The network's weights [d]."""

    def file(self, state: ServerState) -> bytes | None:
        """The content of a mask file that holds exactly these weights; None where no mask does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """What is broadcast is the network."""

    model: FlatModel

    def weights(self, state: ServerState) -> Tensor:
        return state.broadcast

    def file(self, state: ServerState) -> None:
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Masked:
    """What is broadcast are probabilities theta: frozen weights times a mask drawn from them with the seed's public
    dice, the mask 1[theta >= 1/2], or theta itself, the mean of all masks (then no mask is the network)."""

    network: FrozenNetwork
    recipe: Recipe
    how: Literal["sample", "threshold", "mean"]

    def weights(self, state: ServerState) -> Tensor:
        mask = self._mask(state)
        return self.network.weights(state.broadcast if mask is None else mask.to(state.broadcast.dtype))

    def file(self, state: ServerState) -> bytes | None:
        mask = self._mask(state)
        return None if mask is None else mask_file(self.recipe, self.network, mask)

    def _mask(self, state: ServerState) -> Tensor | None:
        theta = state.broadcast
        if self.how == "mean":
            return None
        if self.how == "threshold":
            return theta.ge(0.5)
        return self.network.dice.lt(theta.double())
