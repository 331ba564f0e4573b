"""A sum that somebody else keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Elsewhere:
    """What a client knows of the sum that its upload goes into: itself."""

    def __init__(self, client: int) -> None:
        self.senders: NDArray[np.int64] = np.array([client], dtype=np.int64)
        self.arriving = self.senders
