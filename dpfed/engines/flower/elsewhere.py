"""A sum that somebody else keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.ranks import Ranks
from dpfed.secagg.summed import Summed


class Elsewhere:
    """What a client knows of the sum that its upload goes into: itself."""

    def __init__(self, client: int) -> None:
        self.senders: NDArray[np.int64] = np.array([client], dtype=np.int64)
        self.arriving = self.senders

    def add(self, clients: NDArray[np.int64], rows: Tensor, weights: Tensor | None = None) -> None:
        raise NotImplementedError("the server adds up")

    def gather(self, ranks: Ranks) -> None:
        raise NotImplementedError("the server adds up")

    def close(self) -> Summed:
        raise NotImplementedError("the server adds up")
