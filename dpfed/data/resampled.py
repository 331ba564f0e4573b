"""Population of any number of clients on one pool of samples, drawn for a client when they are needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import ConfigError
from dpfed.seeds import Seeds

_PURPOSE = "partition.resampled"


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampled:
    """Population in which every client has `samples_per_client` of `samples` rows, drawn uniformly with replacement.

    Claim: a client's rows are a function of (seeds, its id) alone, and none is stored. Memory does not grow with
    `clients`, so that a population of 10^6 can be simulated on 60,000 samples. Several clients may have one row, and a
    client may have a row twice: a guarantee is for a client, not for a sample of the pool. Raises ConfigError.
    """

    samples: int
    clients: int
    samples_per_client: int
    seeds: Seeds

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples of each client, int64 [clients]; one number in memory, read-only."""
        return np.broadcast_to(np.int64(self.samples_per_client), self.clients)

    @property
    def total(self) -> int:
        """Number of samples of all clients together."""
        return self.clients * self.samples_per_client

    @property
    def largest_row(self) -> int:
        """Largest row that a client may hold."""
        return self.samples - 1

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the rows that `client` (0 .. clients-1) holds."""
        if not 0 <= client < self.clients:
            raise ConfigError(f"client={client}: this partition has clients 0..{self.clients - 1}. Choose one of them.")
        rows: NDArray[np.int64] = self._rows(np.array([client], dtype=np.int64))[0]
        return rows

    def rows_at(self, clients: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of clients [c] at positions [c, ...] among their samples."""
        rows = self._rows(clients)
        taken: NDArray[np.int64] = np.take_along_axis(rows, places.reshape(len(clients), -1), axis=1)
        return taken.reshape(places.shape)

    def _rows(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows [c, samples_per_client]; each has probability 1 / samples, up to a relative samples / 2^64."""
        keys = self.seeds.keys(_PURPOSE, 0, clients, (self.samples_per_client,))
        return (keys % np.uint64(self.samples)).astype(np.int64)
