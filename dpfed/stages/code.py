"""How rows travel: bytes that a client sends, and what the sum of what arrived says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrived:
    """Rows [c, k] as they are summed, the bytes that carried them (None: fixed beforehand, `Code.fixed_bits`), and how
    many rows could not be sent (not finite) and count as zero."""

    rows: Tensor
    uplink_bytes: int | None
    not_finite: int = 0


OnIntegers = Callable[[Tensor], Tensor]
"""Adds a client's own noise to the whole numbers [c, width] that its rows have become."""


class Code(Protocol):
    """`send` turns clients' rows into what arrives at the sum, `decode` the sum into the sum of rows.

    `send` is both ends of the wire in one process. Apart they are `messages`, what each client sends, and `arrived`,
    which reads messages of strangers: WireError for any that no client of this round could have sent.

    `origin` [k] is the broadcast vector under the round's map: what a row is a move from. `slots` is how many uploads
    the sum always holds, None where it holds as many as clients take part.
    """

    @property
    def summed_as(self) -> torch.dtype:
        """What rows are made of when they are summed."""

    def width(self, size: int) -> int:
        """How many numbers the upload of `size` values has."""

    @property
    def slots(self) -> int | None: ...

    def fixed_bits(self, size: int) -> int | None:
        """Bits that one upload of `size` values is counted with, None where the content decides."""

    def send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived: ...

    def messages(
        self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int, noise: OnIntegers | None = None
    ) -> list[bytes]: ...

    def arrived(self, messages: Sequence[bytes], origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived: ...

    def decode(self, total: Tensor, origin: Tensor, uploads: int, round: int) -> Tensor:
        """From the sum [k] of `uploads` arrived rows to an estimate of the sum of rows that were sent."""

    def near_the_ends(self, total: Tensor) -> int | None:
        """How many entries of a sum in a ring have probably wrapped around; None where sums do not wrap."""

    def keep(self) -> Mapping[str, Tensor]:
        """What clients remember between rounds, for the checkpoint."""

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """Take back what `keep` gave."""
