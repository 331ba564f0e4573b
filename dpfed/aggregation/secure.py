"""Sums under masks: a round's uploads as integers modulo 2^b, of which only the total is visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.agreement import FEWEST, Agreement, agree_on_terms
from dpfed.aggregation.messages import sent_beside_row
from dpfed.aggregation.protocol import MaskedSum, ProtocolSum
from dpfed.aggregation.ranks import Ranks, Task
from dpfed.aggregation.sums import SumResult, arrivals, require_enough_uploads, senders
from dpfed.compress.ring import to_ring
from dpfed.seeds import Seeds


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
