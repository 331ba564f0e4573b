"""A network whose weights are one vector: what clients train, compress and send."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Block:
    """One named parameter tensor inside the flat vector: entries start .. stop-1, of the given shape."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class FlatModel:
    """A module seen as a function of a flat weight vector of d entries, in the module's parameter order.

    Raises ConfigError for a module with buffers (BatchNorm's running statistics would neither be sent nor
    noised) or dropout (its coins would come from torch's global state).
    """

    def __init__(self, factory: Callable[[], nn.Module]) -> None:
        """`factory` builds the module with fresh random weights each time it is called."""
        self._factory = factory
        with torch.random.fork_rng(devices=[]):
            self._module = factory()
        _refuse_hidden_state(self._module)
        self.layout: tuple[Block, ...] = _layout(self._module)
        """The parameters by name, in order."""
        self.size: int = self.layout[-1].stop
        """d, the number of weights."""
        self._lengths = [block.stop - block.start for block in self.layout]
        self._forward_clients = torch.vmap(self.forward)

    def initial(self, seed: int) -> Tensor:
        """Fresh weights, float32 [d]: the same for the same seed. Leaves torch's global generators alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = self._factory()
        return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])

    def forward(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Logits [b, classes] of inputs [b, ...] under weights [d]. Differentiable in both.

        Not for several threads at once: each takes a module of its own from `bind`.
        """
        parts = torch.split(weights, self._lengths)
        parameters = {block.name: part.view(block.shape) for block, part in zip(self.layout, parts, strict=True)}
        logits: Tensor = functional_call(self._module, parameters, (inputs,))
        return logits

    def forward_clients(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Logits [c, b, classes] of inputs [c, b, ...], client i under its own weights[i] of [c, d]."""
        logits: Tensor = self._forward_clients(weights, inputs)
        return logits

    def bind(self, weights: Tensor) -> nn.Module:
        """A new module whose parameters are views of weights [d]: changing either in place changes the other."""
        module = copy.deepcopy(self._module)
        self.rebind(module, weights)
        return module

    def rebind(self, module: nn.Module, weights: Tensor) -> None:
        """Make the parameters of a module that came from `bind` views of other weights [d]."""
        for block, parameter in zip(self.layout, module.parameters(), strict=True):
            parameter.data = weights[block.start : block.stop].view(block.shape)


def _layout(module: nn.Module) -> tuple[Block, ...]:
    blocks: list[Block] = []
    start = 0
    for name, parameter in module.named_parameters():
        stop = start + parameter.numel()
        blocks.append(Block(name=name, shape=tuple(parameter.shape), start=start, stop=stop))
        start = stop
    if not blocks:
        raise ConfigError("model: has no parameters; there is nothing to train. Give it a layer with weights.")
    return tuple(blocks)


def _refuse_hidden_state(module: nn.Module) -> None:
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise ConfigError(
            f"model: has buffers {buffers}; only parameters are trained, noised and sent. "
            "Replace BatchNorm by GroupNorm or LayerNorm."
        )
    if any("Dropout" in type(part).__name__ for part in module.modules()):
        raise ConfigError("model: has dropout, whose coins no seed here controls. Remove the dropout layers.")
