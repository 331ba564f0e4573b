"""A partition holds every sample once, as evenly as can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dpfed.data import Partition, iid
from dpfed.errors import ConfigError, DataError


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**32))
def test_iid_deals_every_sample_once_and_evenly(a: int, b: int, seed: int) -> None:
    samples, clients = max(a, b), min(a, b)
    partition = iid(samples, clients, np.random.default_rng(seed))
    assert partition.clients == clients
    assert np.ptp(partition.sizes) <= 1
    held = np.concatenate([partition.of(client) for client in range(clients)])
    np.testing.assert_array_equal(np.sort(held), np.arange(samples))


def test_iid_is_the_generators_choice() -> None:
    first, again, other = (iid(100, 7, np.random.default_rng(seed)).indices for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("clients", [0, -1, 11])
def test_iid_raises_on_an_impossible_number_of_clients(clients: int) -> None:
    refused(ConfigError, f"clients={clients}.*from 1 to 10", iid, 10, clients, np.random.default_rng(0))


def test_a_client_may_hold_nothing() -> None:
    partition = Partition(indices=np.arange(3), offsets=np.array([0, 2, 2, 3]))
    assert partition.sizes.tolist() == [2, 0, 1]
    assert partition.of(1).tolist() == []
    refused(ConfigError, r"client=3.*0\.\.2", partition.of, 3)


@pytest.mark.parametrize("offsets", [[0], [1, 3], [0, 2], [0, 4], [0, 2, 1, 3]])
def test_partition_raises_on_offsets_that_do_not_fit(offsets: list[int]) -> None:
    refused(DataError, "offsets", Partition, indices=np.arange(3), offsets=np.array(offsets))


def test_partition_raises_on_wrong_types_and_negative_rows() -> None:
    with pytest.raises(DataError, match="int64"):
        Partition(indices=np.arange(3.0), offsets=np.array([0, 3]))  # type: ignore[arg-type]
    refused(DataError, "rows count from 0", Partition, indices=np.array([0, -1]), offsets=np.array([0, 2]))
