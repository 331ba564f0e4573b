"""The nodes that are clients: fixed at the first round, for all rounds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.serverapp import Grid

from dpfed.errors import RunError


class Population:
    """To the wrapped strategy, which only asks a grid who is there, a grid of just these nodes."""

    def __init__(self, *, count: int, named: list[int] | None) -> None:
        self.count, self.ids = count, named or []
        self._met = False

    def meet(self, grid: Grid, patience: float) -> None:
        """Wait for the nodes, once. RunError for too few after `patience` seconds, or for more than are planned."""
        end = time.monotonic() + patience
        while not self._met:
            there = sorted(grid.get_node_ids())
            if self.ids:
                self._met = set(self.ids) <= set(there)
            elif len(there) > self.count:
                raise RunError(
                    f"{len(there)} nodes for clients={self.count}: which of them are clients must not depend on who is "
                    "first. Give clients as the list of their node ids, or all of them."
                )
            elif len(there) == self.count:
                self.ids, self._met = there, True
            if not self._met and time.monotonic() > end:
                raise RunError(
                    f"{len(there)} nodes after {patience:g} s, and not all of the {self.count} that are clients. Start "
                    "them, or plan for fewer; nothing was released."
                )
            if not self._met:
                time.sleep(min(1.0, patience / 10))

    def get_node_ids(self) -> Iterable[int]:
        return list(self.ids)
