"""State that each client begins with: what training changes in a network and a loss is put back before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dpfed.clients.losses import Loss
from dpfed.clients.state import Moved, State
from dpfed.models.flat import FlatModel


class Start:
    """State of a model and a loss before any client, shared by all copies of the model.

    moved: where differences are noted, during a trial
    alone: True if clients are trained one at a time, as what training changes is shared by several threads
    """

    def __init__(self, model: FlatModel, loss: Loss, device: torch.device) -> None:
        self._state = State(*(("model", one) for one in model.shared(device)), ("local.loss", loss.each))
        self.moved: Moved | None = None
        self.alone: bool = True

    def restore(self) -> None:
        self._state.restore(self.moved)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The state as it was, at the beginning and at the end."""
        self.restore()
        try:
            yield
        finally:
            self.restore()

    def shares(self, moved: Moved) -> bool:
        """True if an object that moved is not a single module's own."""
        return self._state.holds(moved.objects)


class Held:
    """State of one module from `FlatModel.bind` and of the loss, to be put back before each client; nothing is where
    `start` is None."""

    def __init__(self, start: Start | None, model: FlatModel, module: nn.Module, loss: Loss) -> None:
        self._start = start
        roots = ("model", module), ("local.loss", loss.each)
        self._state = None if start is None else State(*roots, trained=model.trained(module))

    def restore(self) -> None:
        if self._state is not None and self._start is not None:
            self._state.restore(self._start.moved)
