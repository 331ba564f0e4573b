"""Masks on the wire: zeros and ones in bytes, range-coded with the public probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.mask_bytes import MaskCoder
from dpfed.stages.stage import Round


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskWire:
    """Rows of zeros and ones travel in about their entropy under the round's reference. Lossless: in one process they
    are coded for their length only."""

    _coders: list[MaskCoder] = field(default_factory=list, repr=False)

    def fixed_bits(self, size: int) -> None:
        return None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        now.tally.uplink_bytes = (now.tally.uplink_bytes or 0) + sum(map(len, self.messages(rows, ids, now)))
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        return total

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        coder = self._coder(now.reference)
        return [coder.encode(mask.cpu().numpy() != 0) for mask in rows]

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        coder = self._coder(now.reference)
        masks = torch.empty(len(messages), len(now.reference), dtype=now.reference.dtype)
        for mask, message in zip(masks, messages, strict=True):
            mask.copy_(torch.from_numpy(coder.decode(message)))
        now.tally.uplink_bytes = (now.tally.uplink_bytes or 0) + sum(map(len, messages))
        return masks.to(now.reference.device)

    def _coder(self, reference: Tensor) -> MaskCoder:
        """The coder of a public reference, remembered for the clients of a round."""
        probabilities = reference.cpu().numpy()
        if not self._coders or not np.array_equal(self._coders[0].probabilities, probabilities):
            self._coders[:] = [MaskCoder(probabilities=probabilities.copy())]
        return self._coders[0]
