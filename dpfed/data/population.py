"""Fingerprint of a run's clients under a secret key: equal for equal populations, different for different ones."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator

import numpy as np

from dpfed.data.dataset import Dataset, Numbers, floats_hold
from dpfed.data.partition import Holdings, Partition
from dpfed.data.resampled import Resampled


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
    inputs = dataset.train_inputs if dataset.raw_inputs is None else dataset.raw_inputs
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
