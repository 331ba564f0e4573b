"""Data sets are consistent, and public data really leaves the private half."""

from dataclasses import replace

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


def test_dataset_raises_on_inputs_of_another_type() -> None:
    """Halves and labels that do not fit: test_own_data.py."""
    refused(DataError, "float64", lambda: replace(small(), train_inputs=np.zeros((20, 1))))


def test_load_raises_on_an_unknown_name_with_the_nearest() -> None:
    refused(ConfigError, r"dataset='fashion_mnist'.*digits, emnist-balanced.*'fashion-mnist'", load, "fashion_mnist")
