"""Sums of uploads: what a sum returns and needs, nothing else of it may be seen; and the plain one, in which a trusted
aggregator sees every row and returns only their total."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.ranks import Ranks, Task
from dpfed.aggregation.steps import ProtocolStep
from dpfed.errors import SecureSumAborted


@dataclass(frozen=True, kw_only=True, eq=False)
class Summed:
    """The total [size] and whose rows are in it, sorted."""

    total: Tensor
    included: NDArray[np.int64]


class Turnout(Protocol):
    """Clients that send in a round, all that a client needs to know of a sum. `senders`: the participants that train
    and send, in time or late; `arriving`: those in time, as the simulation knows beforehand."""

    senders: NDArray[np.int64]
    arriving: NDArray[np.int64]


class Collecting(Turnout, Protocol):
    """Takes rows as they are."""

    def add(self, clients: NDArray[np.int64], rows: Tensor) -> None: ...


class Closing(Turnout, Protocol):
    """Sum over the clients' rows that were added."""

    def close(self) -> Summed:
        """SecureSumAborted where there is no sum: then nothing may be released."""


class OpenSum(Collecting, Closing, Protocol):
    """The sum of one round in this process, from its first row to its total."""

    def gather(self, ranks: Ranks) -> None:
        """Add up what the processes of a run have added each."""


Opened = TypeVar("Opened", bound=Turnout, covariant=True)


class Sums(Protocol[Opened]):
    """Sums of the uploads, one opened for each round."""

    def open(self, task: Task, *, size: int, dtype: torch.dtype) -> Opened:
        """Return an empty sum of rows [size] of the participants of a round, without those that drop out."""

    def overhead_bits(self, participants: int) -> int:
        """Bits that a client sends beside its row."""


def senders(task: Task) -> NDArray[np.int64]:
    """Return the participants that still train and send."""
    lost = task.dropouts
    return np.array([i for i in task.participants if i not in lost or lost[int(i)].sends], dtype=np.int64)


def arrivals(task: Task) -> NDArray[np.int64]:
    """Return the participants whose input arrives in time."""
    lost = task.dropouts
    return np.array([i for i in task.participants if lost.get(int(i)) in (None, ProtocolStep.UNMASK)], dtype=np.int64)


def least_uploads(participants: int, tolerance: float) -> int:
    """Return how many of n uploads must arrive if the fraction `tolerance` may be missing."""
    return participants - math.floor(tolerance * participants)  # as `accounting.budget.integers` counts shares


def require_enough(arrived: int, participants: int, tolerance: float | None) -> None:
    """SecureSumAborted if more uploads are missing than is tolerated."""
    if tolerance is None:
        return
    least = least_uploads(participants, tolerance)
    if arrived < least:
        raise SecureSumAborted(
            f"{arrived} of {participants} uploads arrived, at least {least} are needed "
            f"(aggregation.tolerance={tolerance:g}). The round is not released."
        )


@dataclass(frozen=True, kw_only=True)
class PlainSums:
    """No cryptography: rows are added up as they come, float32 or integers; dropouts are simulated all the same.

    tolerance: the fraction of uploads that may be missing; None: any
    """

    tolerance: float | None = None

    def open(self, task: Task, *, size: int, dtype: torch.dtype) -> PlainSum:
        total = torch.zeros(size, dtype=dtype, device=task.state.broadcast.device)
        return PlainSum(task, total=total, tolerance=self.tolerance)

    def overhead_bits(self, participants: int) -> int:
        """Bits that a client sends beside its row."""
        return 0


class PlainSum:
    """The sum of one round, group by group."""

    def __init__(self, task: Task, *, total: Tensor, tolerance: float | None) -> None:
        self.senders = senders(task) if task.dropouts else task.participants
        self.arriving = arrivals(task) if task.dropouts else task.participants
        self._participants = task.participants
        self._tolerance, self._total = tolerance, total

    def add(self, clients: NDArray[np.int64], rows: Tensor) -> None:
        """Add rows [c, size] of the clients."""
        came = np.isin(clients, self.arriving)
        if not came.all():
            rows = rows[torch.from_numpy(came).to(rows.device)]
        if len(rows) == 1:  # several times as fast as a sum of one
            self._total.add_(rows[0])
        else:
            self._total += rows.sum(dim=0)

    def lose(self, clients: NDArray[np.int64]) -> None:
        """Record that these clients have dropped out."""
        self.arriving = np.setdiff1d(self.arriving, clients)

    def gather(self, ranks: Ranks) -> None:
        self._total = ranks.total(self._total)

    def close(self) -> Summed:
        """Return the total [size] of arrived rows. Raise SecureSumAborted if more are missing than is tolerated."""
        if self._tolerance is not None:
            require_enough(len(self.arriving), len(self._participants), self._tolerance)
        return Summed(total=self._total, included=self.arriving)
