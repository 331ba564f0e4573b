"""A trusted sum: the aggregator sees every row and returns only their total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.ranks import Ranks
from dpfed.aggregation.steps import ProtocolStep
from dpfed.aggregation.sums import Summed, arrivals, require_enough, senders


@dataclass(frozen=True, kw_only=True)
class PlainSums:
    """No cryptography: rows are added up as they come, float32 or integers; dropouts are simulated all the same.

    tolerance: the fraction of uploads that may be missing; None: any
    """

    tolerance: float | None = None

    def open(
        self,
        participants: NDArray[np.int64],
        *,
        dropouts: Mapping[int, ProtocolStep],
        size: int,
        dtype: torch.dtype,
        device: torch.device,
        number: int,
    ) -> PlainSum:
        total = torch.zeros(size, dtype=dtype, device=device)
        return PlainSum(participants, dropouts, total=total, tolerance=self.tolerance)

    def overhead_bits(self, participants: int) -> int:
        """Bits that a client sends beside its row."""
        return 0


class PlainSum:
    """The sum of one round, group by group."""

    def __init__(
        self,
        participants: NDArray[np.int64],
        lost: Mapping[int, ProtocolStep],
        *,
        total: Tensor,
        tolerance: float | None,
    ) -> None:
        self.senders = senders(participants, lost) if lost else participants
        self.arriving = arrivals(participants, lost) if lost else participants
        self._participants = participants
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
        """These will not come after all."""
        self.arriving = np.setdiff1d(self.arriving, clients)

    def gather(self, ranks: Ranks) -> None:
        self._total = ranks.total(self._total)

    def close(self) -> Summed:
        """The total [size] of those that arrived. SecureSumAborted if more are missing than is tolerated."""
        if self._tolerance is not None:
            require_enough(len(self.arriving), len(self._participants), self._tolerance)
        return Summed(total=self._total, included=self.arriving)
