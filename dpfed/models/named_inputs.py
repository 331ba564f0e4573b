"""Networks with named inputs, such as those of transformers: hooks that convert rows of numbers to their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfed.data.dataset import Part


@dataclass(frozen=True)
class NamedInputs:
    """Forward pre-hook: a batch [b, numbers of a sample] becomes the keyword arguments of the module."""

    parts: tuple[Part, ...]

    def __call__(self, module: nn.Module, args: tuple[Tensor], kwargs: object) -> tuple[tuple[()], dict[str, Tensor]]:
        (rows,) = args
        sides = torch.split(rows, [math.prod(part.shape) for part in self.parts], dim=-1)
        named = {
            part.name: side.reshape(*rows.shape[:-1], *part.shape) for part, side in zip(self.parts, sides, strict=True)
        }
        return (), {part.name: named[part.name].long() if part.integers else named[part.name] for part in self.parts}


def logits_of(module: nn.Module, args: object, outputs: object) -> object:
    """Forward hook that returns the logits of a network's outputs, [b, classes, ...]; transformers has classes last."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        return outputs
    return logits.movedim(-1, 1) if logits.dim() > 2 else logits


def with_named_inputs(module: nn.Module, parts: Sequence[Part]) -> nn.Module:
    """Return the module itself with these hooks, added once; its parameters keep their names."""
    hooks = module._forward_pre_hooks.values()
    if parts and not any(isinstance(hook, NamedInputs) for hook in hooks):
        module.register_forward_pre_hook(NamedInputs(tuple(parts)), with_kwargs=True)
        module.register_forward_hook(logits_of)
    return module
