"""Partitions by label: every sample at most once, the labels and sizes the papers ask for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from dpfed.data import Partition, dirichlet, natural, some_labels, unbalanced
from dpfed.errors import ConfigError
from tests.label_counts import label_counts


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(samples: int, classes: int, seed: int) -> np.ndarray:
    """Some labels may be rare or missing."""
    weights = generator(seed).dirichlet(np.ones(classes))
    return generator(seed + 1).choice(classes, samples, p=weights)


def check_once(partition: Partition, clients: int, samples: int) -> None:
    assert partition.clients == clients
    assert len(np.unique(partition.indices)) == len(partition.indices)
    assert set(partition.indices.tolist()) <= set(range(samples))


SMALL = given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32))


@SMALL
@settings(max_examples=40, deadline=None)
def test_dirichlet_gives_every_sample_away_once(samples: int, clients: int, classes: int, seed: int) -> None:
    partition = dirichlet(labels_of(samples, classes, seed), clients, 0.3, generator(seed))
    check_once(partition, clients, samples)
    assert len(partition.indices) == samples


@SMALL
@settings(max_examples=40, deadline=None)
def test_some_labels_gives_so_many_labels_each(samples: int, clients: int, classes: int, seed: int) -> None:
    labels = labels_of(samples, classes, seed)
    present = len(np.unique(labels))
    each = 1 + seed % present
    partition = some_labels(labels, clients, each, generator(seed))
    check_once(partition, clients, samples)
    counts = label_counts(partition, labels, classes)
    assert (counts > 0).sum(axis=1).max() <= each
    if clients * each >= present and clients >= present:
        assert len(partition.indices) == samples


@SMALL
@settings(max_examples=40, deadline=None)
def test_unbalanced_keeps_to_its_shares_and_labels(samples: int, clients: int, classes: int, seed: int) -> None:
    labels = labels_of(samples, classes, seed)
    most = 1 + seed % len(np.unique(labels))
    partition = unbalanced(labels, clients, most, generator(seed))
    check_once(partition, clients, samples)
    assert (label_counts(partition, labels, classes) > 0).sum(axis=1).max() <= most
    assert partition.sizes.max() <= 100 * samples / min(100 + 10 * (clients - 1), 100 * clients)


def test_dirichlet_shares_have_the_laws_mean_and_variance() -> None:
    """A client's share of a label is Beta(a, (n - 1) a); five standard errors of 1,000 shares, false alarm 1e-5."""
    alpha, clients = 0.3, 20
    labels = np.repeat(np.arange(40), 500)
    shares = np.concatenate(
        [label_counts(dirichlet(labels, clients, alpha, generator(seed)), labels, 40).T / 500 for seed in range(25)]
    )
    assert shares.sum(axis=1) == pytest.approx(1)
    mean, variance = 1 / clients, (clients - 1) / clients**2 / (clients * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(mean, abs=5 * np.sqrt(variance / 1000))
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_dirichlet_becomes_even_or_single_at_its_ends() -> None:
    labels = np.repeat(np.arange(10), 600)
    even = label_counts(dirichlet(labels, 6, 1e6, generator()), labels, 10)
    assert abs(even - 100).max() <= 2
    single = label_counts(dirichlet(labels, 6, 1e-6, generator()), labels, 10)
    assert (single > 0).sum(axis=0).tolist() == [1] * 10


def test_some_labels_of_a_balanced_set() -> None:
    """FedMRN's Non-IID-2: 100 clients with exactly 3 of 10 labels each, and no sample left over."""
    labels = np.repeat(np.arange(10), 5000)
    partition = some_labels(labels, 100, 3, generator(3))
    counts = label_counts(partition, labels, 10)
    assert (counts > 0).sum(axis=1).tolist() == [3] * 100
    assert (counts > 0).sum(axis=0).min() >= 10  # in turn
    assert len(partition.indices) == 50_000
    for label in range(10):
        assert np.ptp(counts[counts[:, label] > 0, label]) <= 1


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("clients", "most", "mean"), [(10, 2, 0.06), (10, 4, 0.01), (50, 2, 0.01), (50, 4, 0.01)])
def test_unbalanced_leaves_little_unused(clients: int, most: int, mean: float) -> None:
    """FedPM's four settings on a set like CIFAR-10; the bounds are those that the docstring states."""
    labels = np.repeat(np.arange(10), 5000)
    used = [len(unbalanced(labels, clients, most, generator(seed)).indices) for seed in range(20)]
    assert 1 - np.mean(used) / 50_000 < mean
    sizes = unbalanced(labels, clients, 10, generator()).sizes  # nothing forbids any label: shares are exact
    drawn = np.sort(sizes) / sizes.sum()
    assert drawn[-1] <= 10.1 * drawn[0]
    assert abs(sizes.sum() - 50_000) <= clients


def test_natural_keeps_everybodys_samples_together() -> None:
    owners = np.array([2, 0, 2, 4, 0, 2])
    partition = natural(owners, 5, generator(), available=5)
    assert [partition.of(i).tolist() for i in range(5)] == [[1, 4], [], [0, 2, 5], [], [3]]
    drawn = [natural(owners, 2, generator(seed), available=5) for seed in range(200)]
    for partition in drawn:
        assert partition.clients == 2
        for client in range(2):
            rows = partition.of(client)
            assert len(set(owners[rows])) <= 1
            assert len(rows) in (0, 1, 2, 3)
    assert len({tuple(p.sizes.tolist()) for p in drawn}) == 8  # pairs of 2, 0, 3, 0, 1 in their order


@pytest.mark.parametrize("clients", [0, 6])
def test_natural_raises_on_more_clients_than_there_are(clients: int) -> None:
    with pytest.raises(ConfigError, match=f"clients={clients}.*5 natural clients.*from 1 to 5"):
        natural(np.array([0, 1]), clients, generator(), available=5)


@pytest.mark.parametrize("make", [some_labels, unbalanced])
def test_label_partitions_raise_on_numbers_that_cannot_be(make) -> None:
    labels = np.array([0, 1, 2, 5])
    for clients, each in ((0, 1), (2, 0), (2, 5)):
        refused(ConfigError, f"labels={each}.*from 1 to 4", make, labels, clients, each, generator())
    for clients, alpha in ((0, 1.0), (2, 0.0), (2, float("nan"))):
        refused(ConfigError, "alpha=", dirichlet, labels, clients, alpha, generator())


def test_partitions_are_the_generators_choice() -> None:
    labels = labels_of(500, 6, 1)
    for make in (lambda g: dirichlet(labels, 9, 0.5, g), lambda g: some_labels(labels, 9, 2, g)):
        first, again, other = (make(generator(seed)).indices for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert first.tolist() != other.tolist()
