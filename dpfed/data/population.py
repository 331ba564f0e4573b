"""Populations: clients drawn from a pool of samples, and the fingerprint of a run's clients under a secret key."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed.data.dataset import Dataset, Numbers, floats_hold
from dpfed.data.partition import Holdings, Partition
from dpfed.seeds import Seeds

_PURPOSE = "partition.resampled"


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampled:
    """Population in which every client has `samples_per_client` of `samples` rows, drawn uniformly with replacement.

    Claim: a client's rows are a function of (seeds, its id) alone, and none is stored. Memory does not grow with
    `clients`, so that a population of 10^6 can be simulated on 60,000 samples. Several clients may have one row, and a
    client may have a row twice: a guarantee is for a client, not for a sample of the pool.
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

    def of(self, client: int) -> NDArray[np.int64]:
        """Return the rows that `client` (0 .. clients-1) holds."""
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


def fingerprint(key: bytes, dataset: Dataset, holdings: Holdings, *, unit: str, on_nodes: bool) -> str:
    """Return 64 hexadecimal digits: HMAC-SHA-256 of the training samples, of their clients and of the unit, under a
    secret key.

    Claim: two populations that differ in a sample, a label, a sample's client, in their order or in the unit have
    different fingerprints (SHA-256 has no known collisions). Without the key a fingerprint does not reveal the data
    (HMAC-SHA-256 is a pseudo-random function). on_nodes: the samples are on the clients' machines only; clients are
    then identified by their numbers from 0.
    """
    found = hmac.new(key, _json_line("dpfed-population-1", unit), "sha256")
    for part in [_json_line("nodes", holdings.clients)] if on_nodes else _population_content(dataset, holdings):
        found.update(part)
    return found.hexdigest()


def _population_content(dataset: Dataset, holdings: Holdings) -> Iterator[bytes | memoryview]:
    inputs = dataset.identifying_inputs
    if dataset.has_integers and floats_hold(inputs):  # so that networks of integers and of floats have one population
        inputs = inputs.astype(np.float32)
    yield from _array_content("inputs", inputs)
    yield from _array_content("labels", dataset.train_labels)
    match holdings:
        case Partition():
            yield from _array_content("indices", holdings.indices)
            yield from _array_content("offsets", holdings.offsets)
        case Resampled():  # a rule instead of lists, for millions of clients
            yield _json_line(
                "resampled", holdings.samples, holdings.clients, holdings.samples_per_client, holdings.seeds.root
            )
        case _:
            for client in range(holdings.clients):
                yield from _array_content(f"client {client}", holdings.of(client))


def _array_content(name: str, values: Numbers) -> Iterator[bytes | memoryview]:
    """Yield an array's name, type and shape, which determine the number of bytes that follow, and its bytes."""
    yield _json_line(name, values.dtype.str, list(values.shape))
    yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _json_line(*values: object) -> bytes:
    return json.dumps(values).encode() + b"\n"
