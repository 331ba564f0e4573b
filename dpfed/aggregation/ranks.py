"""Several processes on one round: each trains a part of the cohort, one of them leads.

Started by torchrun (`torchrun --nproc-per-node 2 -m dpfed run CONFIG`), on one machine or several. Rank 0 draws the
cohort and the dropouts, sums, adds noise, writes the ledger and steps; the other ranks train the clients that rank 0
sends them. Cohorts, dropouts and noise are named by round and client, so they do not depend on the number of ranks;
only the order of a sum does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.steps import ProtocolStep
from dpfed.server.state import ServerState

_STEPS = list(ProtocolStep)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A round to do: what clients start from, who was drawn (canaries too), who takes part in the sum, and who of them
    drops out of it, before which step."""

    state: ServerState
    cohort: NDArray[np.int64]
    participants: NDArray[np.int64]
    dropouts: Mapping[int, ProtocolStep] = field(default_factory=dict)


class Ranks(Protocol):
    """Messages between the processes of a run; all within one round, in the same order everywhere."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def mine(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients that this rank trains; every client is one rank's."""

    def lead(self, task: Task) -> None:
        """Rank 0, at the start of a round: tell the others."""

    def follow(self, start: ServerState) -> Iterator[Task]:
        """Yield the tasks of every other rank until rank 0 stops; `start` gives shapes and types of a state."""

    def stop(self) -> None:
        """Rank 0, at the end: let the others go."""

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of every rank's tensor, on every rank."""

    def largest(self, value: float) -> float:
        """Return the largest of every rank's numbers."""


class Alone:
    """One process."""

    index, count = 0, 1

    def mine(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return clients

    def lead(self, task: Task) -> None:
        pass

    def follow(self, start: ServerState) -> Iterator[Task]:
        return iter(())

    def stop(self) -> None:
        pass

    def total(self, part: Tensor) -> Tensor:
        return part

    def largest(self, value: float) -> float:
        return value


@dataclass(frozen=True)
class Several:
    """The ranks of an initialised process group. Weights travel as tensors, nothing as pickle."""

    index: int
    count: int

    def mine(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return clients[self.index :: self.count]

    def lead(self, task: Task) -> None:
        state = task.state
        gone = [[client, _STEPS.index(step)] for client, step in task.dropouts.items()]
        counts = [state.round, len(task.cohort), len(task.participants), len(gone)]
        self._broadcast(torch.tensor(counts, dtype=torch.int64))
        self._broadcast(torch.tensor([state.clip_norm], dtype=torch.float64))
        self._broadcast(torch.from_numpy(task.cohort))
        self._broadcast(torch.from_numpy(task.participants))
        self._broadcast(torch.tensor(gone, dtype=torch.int64))
        self._broadcast(state.broadcast)

    def follow(self, start: ServerState) -> Iterator[Task]:
        while True:
            round, drawn, asked, gone = self._broadcast(torch.zeros(4, dtype=torch.int64)).tolist()
            if round < 0:
                return
            clip_norm = float(self._broadcast(torch.zeros(1, dtype=torch.float64)))
            cohort, participants = (self._broadcast(torch.zeros(n, dtype=torch.int64)).numpy() for n in (drawn, asked))
            pairs = self._broadcast(torch.zeros((gone, 2), dtype=torch.int64)).tolist()
            dropouts = {client: _STEPS[step] for client, step in pairs}
            weights = self._broadcast(torch.empty_like(start.broadcast))
            state = ServerState(round=round, broadcast=weights, clip_norm=clip_norm)
            yield Task(state=state, cohort=cohort, participants=participants, dropouts=dropouts)

    def stop(self) -> None:
        self._broadcast(torch.tensor([-1, 0, 0, 0], dtype=torch.int64))

    def total(self, part: Tensor) -> Tensor:
        distributed.all_reduce(part)
        return part

    def largest(self, value: float) -> float:
        held = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(held, op=distributed.ReduceOp.MAX)
        return float(held)

    @staticmethod
    def _broadcast(tensor: Tensor) -> Tensor:
        if tensor.numel():
            distributed.broadcast(tensor, src=0)
        return tensor


@contextmanager
def from_environment() -> Iterator[Ranks]:
    """Return the ranks that torchrun has started, or this process alone. The group is left in order at the end: a
    process that exits with gloo's threads still running is aborted now and then, after all its work is done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Alone()
        return
    _take_own_gpu()
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Several(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def _take_own_gpu() -> None:
    """Make the GPU of this rank the current one, where a machine has one for each: what names no GPU is put there."""
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if place < torch.cuda.device_count():
        torch.cuda.set_device(place)


def local_device() -> str:
    """Return the GPU of this rank on its machine."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
