"""What the caller of a run gives as objects, where a configuration has names."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError

Maker = Callable[..., nn.Module]
Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [n, ...], targets [n, ...]) -> [n]: the loss of each sample."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """None: what the configuration names. `model` is called as `model(input_shape, classes)`."""

    data: Dataset | None = None
    model: Maker | None = None
    loss: Loss | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Which of them are given."""
        return tuple(name for name in ("data", "model", "loss") if getattr(self, name) is not None)


def maker_of(model: nn.Module | Callable[..., nn.Module]) -> Maker:
    """A module is copied and starts from its own weights; a function of nothing, or of (input_shape, classes), makes
    one with fresh weights, which come from run.seed."""
    if isinstance(model, nn.Module):
        return lambda input_shape, classes: copy.deepcopy(model)
    if not callable(model):
        raise ConfigError(f"model: {type(model).__name__}; must be a torch.nn.Module or a function that makes one.")
    if _takes_nothing(model):
        return lambda input_shape, classes: model()
    return model


def name_of(model: nn.Module | Callable[..., nn.Module]) -> str:
    """What reports call it."""
    return str(getattr(model, "__name__", type(model).__name__))


def _takes_nothing(maker: Callable[..., nn.Module]) -> bool:
    try:
        inspect.signature(maker).bind()
    except (TypeError, ValueError):
        return False
    return True
