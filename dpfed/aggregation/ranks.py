"""Ranks: processes that share one round. Each trains a part of the cohort, and rank 0 leads.

Started by torchrun (`torchrun --nproc-per-node 2 -m dpfed run CONFIG`), on one machine or several. Rank 0 draws the
cohort and the dropouts, sums, adds noise, writes the ledger and steps the server. The other ranks train clients of the
cohort that rank 0 sends. Cohorts, dropouts and noise are named by round and client, so the number of ranks does not
change them; it only changes the order of summation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.messages import ProtocolStep
from dpfed.server.rules import ServerState

_STEPS = list(ProtocolStep)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Task of a round: the state from which clients start, the drawn clients (canaries too), the participants of the
    sum, and the participants that drop out, each with the step before which it does."""

    state: ServerState
    cohort: NDArray[np.int64]
    participants: NDArray[np.int64]
    dropouts: Mapping[int, ProtocolStep] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranks:
    """Ranks of an initialised process group, of which this process is number `index`; alone, if `count` is 1.

    Every rank makes the same calls in the same order. Weights are sent as tensors; nothing is pickled.
    """

    index: int = 0
    count: int = 1

    def clients_of_rank(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients that this rank trains; every client belongs to exactly one rank."""
        return clients[self.index :: self.count]

    def send_task(self, task: Task) -> None:
        """On rank 0, at the start of a round: send the task to the other ranks, if there are any."""
        if self.count == 1:
            return
        state = task.state
        gone = [[client, _STEPS.index(step)] for client, step in task.dropouts.items()]
        counts = [state.round, len(task.cohort), len(task.participants), len(gone)]
        self._broadcast(torch.tensor(counts, dtype=torch.int64))
        self._broadcast(torch.tensor([state.clip_norm], dtype=torch.float64))
        self._broadcast(torch.from_numpy(task.cohort))
        self._broadcast(torch.from_numpy(task.participants))
        self._broadcast(torch.tensor(gone, dtype=torch.int64))
        self._broadcast(state.broadcast)

    def received_tasks(self, start: ServerState) -> Iterator[Task]:
        """On the other ranks: yield the tasks sent by rank 0 until it stops; `start` gives shapes and types of a
        state."""
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
        """On rank 0, at the end: end the loops of the other ranks."""
        if self.count > 1:
            self._broadcast(torch.tensor([-1, 0, 0, 0], dtype=torch.int64))

    def sum_over_ranks(self, part: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks, on every rank."""
        distributed.all_reduce(part)
        return part

    def largest_over_ranks(self, value: float) -> float:
        """Return the largest of the numbers of all ranks, on every rank."""
        held = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(held, op=distributed.ReduceOp.MAX)
        return float(held)

    @staticmethod
    def _broadcast(tensor: Tensor) -> Tensor:
        if tensor.numel():
            distributed.broadcast(tensor, src=0)
        return tensor


@contextmanager
def ranks_from_environment() -> Iterator[Ranks]:
    """Yield the ranks started by torchrun, or this process alone. The process group is destroyed at the end: otherwise
    gloo's threads sometimes abort a process at exit, after all its work is done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    _select_rank_gpu()
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def _select_rank_gpu() -> None:
    """Make this rank's GPU the current device if the machine has one per rank, so that default devices are this GPU."""
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if place < torch.cuda.device_count():
        torch.cuda.set_device(place)


def local_device() -> str:
    """Return the GPU of this rank on its machine."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
