"""Explanation of a failed pair of a replay audit: the network module in which a client's training first differs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C import _functorch as functorch

from dpfed.clients.losses import Loss
from dpfed.clients.task import LocalTask
from dpfed.replayed import current_replay

if TYPE_CHECKING:
    from dpfed.audit.replays.rounds import ReplayRunOfRounds

_STEP = ", step "


class ModuleValues:
    """Comparison of each module's state, input and output, and of the loss, for each client of local training.

    It sets forward hooks of all modules, and may therefore be used only in the process of a run of the audit.
    """

    def __init__(self, world: ReplayRunOfRounds) -> None:
        self._world, self._now = world, threading.local()

    def set_hooks(self) -> None:
        """Set the forward hooks, and a hook on the randomness of local training."""
        modules = torch.nn.modules.module
        modules.register_module_forward_pre_hook(self._before_module)
        modules.register_module_forward_hook(self._after_module)
        drawn = LocalTask.own_randomness

        @wraps(drawn)
        def own_randomness(task: LocalTask, places: Any, step: int, *, records: Any = None) -> Any:
            if current_replay() is None:
                return drawn(task, places, step, records=records)
            self._now.at = task.clients[places].tolist(), step, records
            self._now.names, self._now.last = {}, "the batch"
            if not isinstance(task.loss, _WatchedLoss):
                each = {one.name: getattr(task.loss, one.name) for one in fields(Loss)}
                object.__setattr__(task, "loss", _WatchedLoss(**each, values=self))
            return drawn(task, places, step, records=records)

        LocalTask.own_randomness = own_randomness  # type: ignore[assignment, method-assign]

    def compare_loss(self, found: Tensor) -> Tensor:
        """Compare the losses of a batch; modules called later do not belong to the batch."""
        if (at := getattr(self._now, "at", None)) is not None:
            self._compare("in the loss", found.detach().reshape(len(at[0]), -1))
            self._now.at = None
        return found

    def _before_module(self, module: nn.Module, given: tuple[object, ...]) -> None:
        if getattr(self._now, "at", None) is None:
            return
        if id(module) not in self._now.names:
            self._now.names |= {id(one): name for name, one in module.named_modules() if name}
        label = self._module_label(module)
        for name, state in [*module._parameters.items(), *module._buffers.items()]:
            if state is not None:
                self._compare(f"in {name} of {label}", state)
        for tensor in _tensors_in(given):
            self._compare(f"between {self._now.last} and the input of {label}", tensor)

    def _after_module(self, module: nn.Module, given: tuple[object, ...], output: object) -> None:
        if getattr(self._now, "at", None) is None:
            return
        label = self._module_label(module)
        for tensor in _tensors_in(output):
            self._compare(f"in the forward pass of {label}", tensor)
        self._now.last = label

    def _module_label(self, module: nn.Module) -> str:
        name = self._now.names.get(id(module))
        return f"{name} ({type(module).__name__})" if name else f"the network ({type(module).__name__})"

    def _compare(self, name: str, value: Tensor) -> None:
        clients, step, records = self._now.at
        name = f"{name}{_STEP}{step + 1}"
        if functorch.is_batchedtensor(value):
            value = functorch.get_unwrapped(value).movedim(functorch.maybe_get_bdim(value), 0)
        rows = value.detach()
        if records is not None:
            self._compare_records(name, rows, clients[0], records)
        elif len(clients) == 1 and len(rows.reshape(-1)):
            self._world.outside(name, rows, clients[0])
        elif rows.ndim and len(rows) == len(clients):
            for row, client in zip(rows, clients, strict=True):
                self._world.outside(name, row, client)
        else:
            self._world.outside(name, rows)

    def _compare_records(self, name: str, rows: Tensor, client: int, records: NDArray[np.int64]) -> None:
        if not rows.ndim or len(rows) != len(records):
            self._world.outside(name, rows, client)
            return
        for row, record in zip(rows, records.tolist(), strict=True):
            self._world.outside(name, row, (client, self._world.place_of(client, record)))


@dataclass(frozen=True, kw_only=True)
class _WatchedLoss(Loss):
    """Loss of local training whose values a replay audit compares."""

    values: ModuleValues

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name != "mean":
            return found
        compare_loss = super().__getattribute__("values").compare_loss
        return lambda outputs, targets: compare_loss(found(outputs, targets))

    def client_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.values.compare_loss(super().client_losses(outputs, targets))


def place_in_network(value: str) -> str:
    """Return the place in the network ("in ...", "between ...") from the name of a value; "" for other values."""
    return value.partition(_STEP)[0] if _STEP in value else ""


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _tensors_in(one)
