"""Data sets are consistent, and public data really leaves the private half."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from dpfed.data import Dataset, load
from dpfed.errors import ConfigError, DataError


def small(samples: int = 20) -> Dataset:
    inputs = np.arange(samples, dtype=np.float32)[:, None]
    labels = np.arange(samples) % 4
    return Dataset(
        name="small", train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels, classes=4
    )


@pytest.mark.parametrize("count", [0, 1, 19])
def test_carve_public_splits_the_training_half(count: int) -> None:
    data = small()
    rest, inputs, labels = data.carve_public(count, np.random.default_rng(0))
    assert len(inputs) == len(labels) == count
    np.testing.assert_array_equal(np.sort(np.concatenate([rest.train_inputs, inputs]), axis=0), data.train_inputs)
    np.testing.assert_array_equal(rest.train_inputs[:, 0] % 4, rest.train_labels)
    np.testing.assert_array_equal(inputs[:, 0] % 4, labels)
    np.testing.assert_array_equal(rest.test_inputs, data.test_inputs)


@pytest.mark.parametrize("count", [-1, 20])
def test_carve_public_raises_unless_something_stays_private(count: int) -> None:
    refused(ConfigError, f"count={count}.*from 0 to 19", lambda: small().carve_public(count, np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"train_labels": np.arange(19)}, "20 samples with labels"),
        ({"test_labels": np.full(20, 4)}, "a label of .*is not among the 4 declared classes"),
        ({"test_labels": np.full(20, -1)}, "is not among the 4 declared"),
        ({"train_inputs": np.zeros((20, 1))}, "float64"),
        ({"test_inputs": np.zeros((20, 2), dtype=np.float32)}, "both must be equal"),
    ],
)
def test_dataset_raises_on_halves_that_do_not_fit(change: dict[str, Any], complaint: str) -> None:
    refused(DataError, complaint, lambda: replace(small(), **change))


def test_load_raises_on_an_unknown_name_with_the_nearest() -> None:
    refused(ConfigError, r"dataset='fashion_mnist'.*digits, emnist-balanced.*'fashion-mnist'", load, "fashion_mnist")
