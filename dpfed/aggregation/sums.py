"""Sums of uploads: plain, or modulo 2^b under masks.

Interface of sums of uploads, whose total is all that may be visible, and the plain sum by a trusted aggregator,
which receives every row and returns only their total.

Sums under masks: a round's uploads as integers modulo 2^b, of which only the total is visible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.messages import FEWEST, Agreement, ProtocolStep, agree_on_terms, sent_beside_row
from dpfed.aggregation.protocol import MaskedSum, ProtocolSum
from dpfed.aggregation.ranks import Ranks, Task
from dpfed.compress.fixed_point import to_ring
from dpfed.errors import SecureSumAborted
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class SumResult:
    """The total [size], and the clients whose rows are in it, sorted."""

    total: Tensor
    included_clients: NDArray[np.int64]


class Turnout(Protocol):
    """Clients that send rows in a round. `senders`: the participants that train and send, in time or late; `arriving`:
    the participants whose rows arrive in time, which the simulation draws beforehand."""

    senders: NDArray[np.int64]
    arriving: NDArray[np.int64]


class OpenSum(Turnout, Protocol):
    """The sum of one round in this process, from its first row to its total."""

    def add(self, clients: NDArray[np.int64], rows: Tensor) -> None:
        """Add rows of clients, in the form in which they are sent."""

    def gather(self, ranks: Ranks) -> None:
        """Add up the rows that the processes of a run have added."""

    def close(self) -> SumResult:
        """Return the total. Raise SecureSumAborted if there is none: then nothing may be released."""


Opened = TypeVar("Opened", bound=Turnout, covariant=True)


class Sums(Protocol[Opened]):
    """Sums of the uploads, one opened for each round."""

    def open(self, task: Task, *, size: int, dtype: torch.dtype) -> Opened:
        """Return an empty sum of rows [size] of the participants of a round, without those that drop out."""

    def overhead_bits(self, participants: int) -> int:
        """Return the bits that a client sends beside its row."""


def senders(task: Task) -> NDArray[np.int64]:
    """Return the participants that still train and send."""
    lost = task.dropouts
    return np.array([i for i in task.participants if i not in lost or lost[int(i)].sends_row], dtype=np.int64)


def arrivals(task: Task) -> NDArray[np.int64]:
    """Return the participants whose input arrives in time."""
    lost = task.dropouts
    return np.array([i for i in task.participants if lost.get(int(i)) in (None, ProtocolStep.UNMASK)], dtype=np.int64)


def least_uploads(participants: int, tolerance: float) -> int:
    """Return the least number of n uploads that must arrive if the fraction `tolerance` may be missing."""
    return participants - math.floor(tolerance * participants)  # as `accounting.budget.integers` counts noise shares


def require_enough_uploads(arrived: int, participants: int, tolerance: float | None) -> None:
    """Raise SecureSumAborted if more uploads are missing than is tolerated."""
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
    """Sums without cryptography, float32 or integers; rows are added as they arrive, and dropouts are simulated, too.

    tolerance: fraction of uploads that may be missing; None: any fraction
    """

    tolerance: float | None = None

    def open(self, task: Task, *, size: int, dtype: torch.dtype) -> PlainSum:
        total = torch.zeros(size, dtype=dtype, device=task.state.broadcast.device)
        return PlainSum(task, total=total, tolerance=self.tolerance)

    def overhead_bits(self, participants: int) -> int:
        """Return the bits that a client sends beside its row: none."""
        return 0


class PlainSum:
    """Plain sum of one round, computed group by group."""

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
        if len(rows) == 1:  # several times as fast as rows.sum
            self._total.add_(rows[0])
        else:
            self._total += rows.sum(dim=0)

    def record_dropouts(self, clients: NDArray[np.int64]) -> None:
        """Record that these clients have dropped out."""
        self.arriving = np.setdiff1d(self.arriving, clients)

    def gather(self, ranks: Ranks) -> None:
        self._total = ranks.sum_over_ranks(self._total)

    def close(self) -> SumResult:
        """Return the total [size] of arrived rows. Raise SecureSumAborted if more are missing than is tolerated."""
        require_enough_uploads(len(self.arriving), len(self._participants), self._tolerance)
        return SumResult(total=self._total, included_clients=self.arriving)


@dataclass(frozen=True, kw_only=True)
class SecureSums:
    """Sums by `masked` or by the whole `protocol`, in one process: algebra, bytes and dropouts are tested, not secrecy.

    bits:       b; rows are integers, and sums are modulo 2^b
    neighbours: number of other clients with which a client shares masks and secrets; None: all
    threshold:  fraction of a client's neighbourhood that must answer for the client
    tolerance:  fraction of uploads that may be missing; None: any fraction that the protocol tolerates
    least_participants: number of clients that a sum must contain, whatever the other limits
    """

    kind: Literal["masked", "protocol"]
    bits: int
    neighbours: int | None
    threshold: float
    tolerance: float | None
    seeds: Seeds
    least_participants: int = FEWEST

    def open(self, task: Task, *, size: int, dtype: torch.dtype) -> SecureSum:
        make = MaskedSum if self.kind == "masked" else ProtocolSum
        agreement = self.agreed_terms(task.participants, size=size, number=task.state.round)
        return SecureSum(make(agreement, dropouts=task.dropouts), task, tolerance=self.tolerance, bits=self.bits)

    def agreed_terms(self, participants: NDArray[np.int64], *, size: int, number: int) -> Agreement:
        """Return the terms of a round, as server and clients compute them from the configuration. The session is not
        one of them: the server draws it."""
        return agree_on_terms(
            participants,
            size=size,
            bits=self.bits,
            threshold=self.threshold,
            neighbours=self.neighbours,
            graph_seed=self.seeds.integer("secagg.graph", number),
            least=self.least_participants,
        )

    def overhead_bits(self, participants: int) -> int:
        """Bits of the protocol's keys, shares and answers; `masked` counts them too, although it does not make them."""
        neighbours = participants - 1 if self.neighbours is None else min(self.neighbours, participants - 1)
        return 8 * sent_beside_row(max(neighbours, 0))


class SecureSum:
    """Secure sum of one round: rows are tensors, the total is a tensor of residues in [0, 2^b)."""

    def __init__(self, running: MaskedSum | ProtocolSum, task: Task, *, tolerance: float | None, bits: int) -> None:
        self.senders, self.arriving = senders(task), arrivals(task)
        self._running, self._task, self._tolerance, self._bits = running, task, tolerance, bits

    def add(self, clients: NDArray[np.int64], rows: Tensor) -> None:
        """Add rows [c, size] of integers."""
        self._running.add(clients, to_ring(rows, self._bits))

    def gather(self, ranks: Ranks) -> None:
        """Return at once: the protocol runs in one process; a run on several ranks is refused when it is built."""

    def close(self) -> SumResult:
        """Return the total. Raise SecureSumAborted if more uploads are missing than is tolerated, which is checked
        before anything is unmasked, or if fewer clients remain than the protocol's threshold.
        """
        require_enough_uploads(len(self.arriving), len(self._task.participants), self._tolerance)
        summed = self._running.close()
        total = torch.from_numpy(summed.total.astype(np.int64)).to(self._task.state.broadcast.device)
        return SumResult(total=total, included_clients=summed.included_clients)
