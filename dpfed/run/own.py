"""What the caller of a run gives as objects, where a configuration has names."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from dpfed.clients.losses import OfSamples
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError
from dpfed.run.evaluate import Metric

Maker = Callable[..., nn.Module]


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """None: what the configuration names.

    model:   called as model(input_shape, classes)
    loss:    f(outputs [n, ...], targets [n, ...]) -> [n], in place of local.loss, whose value becomes "own"
    metrics: beside those of run.metrics, by name (`dpfed.run.evaluate.Metric`)
    """

    data: Dataset | None = None
    model: Maker | None = None
    loss: OfSamples | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Which of them are given."""
        given = tuple(name for name in ("data", "model", "loss") if getattr(self, name) is not None)
        return (*given, "metrics") if self.metrics else given


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
