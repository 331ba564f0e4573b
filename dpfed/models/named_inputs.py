"""Networks with named inputs and outputs, such as those of transformers: hooks that convert rows of numbers to their
inputs, and return the logits of their outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True)
class Logits:
    """Forward hook that returns the logits among a network's outputs, with classes as dimension 1.

    Outputs may be a tensor, a dictionary with the key "logits" or "out", or an object with the attribute `logits`.
    Logits [b, ..., classes] are turned to [b, classes, ...] if only that form fits the labels, or if both fit and the
    outputs are such an object, since transformers have classes last.

    form: (classes, *shape of a sample's labels); None if targets are numbers
    """

    form: tuple[int, ...] | None

    def __call__(self, module: nn.Module, args: object, outputs: object) -> object:
        found = outputs
        if isinstance(outputs, Mapping):
            found = outputs.get("logits", outputs.get("out"))
        elif not isinstance(outputs, Tensor):
            found = getattr(outputs, "logits", None)
        if not isinstance(found, Tensor):
            return outputs
        if self.form is None or found.dim() != len(self.form) + 1 or found.dim() < 3:
            return found
        shape, last = tuple(found.shape[1:]), (*self.form[1:], self.form[0])
        turned = shape == last and (shape != self.form or found is not outputs)
        return found.movedim(-1, 1) if turned else found


def with_logits(module: nn.Module, form: tuple[int, ...] | None) -> nn.Module:
    """Return the module itself with the hook `Logits`, added once."""
    if not any(isinstance(hook, Logits) for hook in module._forward_hooks.values()):
        module.register_forward_hook(Logits(form))
    return module


def with_named_inputs(made: Callable[[], nn.Module], parts: Sequence[Part]) -> nn.Module:
    """Return the module of `made` with a hook that gives it its inputs by name, added once."""
    module = made()
    hooks = module._forward_pre_hooks.values()
    if parts and not any(isinstance(hook, NamedInputs) for hook in hooks):
        module.register_forward_pre_hook(NamedInputs(tuple(parts)), with_kwargs=True)
    return module
