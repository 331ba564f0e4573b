"""Clients that draw their samples from a pool: by seed and id alone, uniformly, without memory for all of them."""

import tracemalloc

import numpy as np
import pytest
from refusals import refused
from scipy import stats

from dpfed.clients.schedule import draw_schedule
from dpfed.config.tables import parse
from dpfed.data.mnist import load_digits
from dpfed.data.partition import Partition
from dpfed.data.population import Resampled
from dpfed.data.samples import partition_of
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds

POOL = Resampled(samples=600, clients=1_000_000, samples_per_client=10, seeds=Seeds(root=4))


def test_a_clients_rows_depend_on_the_seed_and_its_id_only():
    few = Resampled(samples=600, clients=1000, samples_per_client=10, seeds=Seeds(root=4))
    assert np.array_equal(few.of(999), POOL.of(999))
    assert not np.array_equal(POOL.of(998), POOL.of(999))
    other = Resampled(samples=600, clients=1000, samples_per_client=10, seeds=Seeds(root=5))
    assert not np.array_equal(other.of(999), POOL.of(999))


def test_rows_are_uniform_and_clients_independent():
    """False alarms: 1e-6 each, and the seed is fixed."""
    ids = np.arange(6000)
    rows = POOL.rows_at(ids, np.broadcast_to(np.arange(10), (6000, 10)))
    assert stats.chisquare(np.bincount(rows.ravel(), minlength=600)).pvalue > 1e-6
    pairs = np.histogram2d(rows[:-1].ravel(), rows[1:].ravel(), bins=(10, 10))[0]
    assert stats.chi2_contingency(pairs).pvalue > 1e-6


def test_places_are_those_of_the_clients_own_rows():
    clients, places = np.array([7, 999_999]), np.array([[[3, 0], [9, 9]], [[1, 2], [0, 5]]])
    taken = POOL.rows_at(clients, places)
    for client, place, rows in zip(clients, places, taken, strict=True):
        assert np.array_equal(rows, POOL.of(client)[place])
    usual = Partition(indices=np.array([4, 2, 8, 6, 1]), offsets=np.array([0, 2, 2, 5]))
    assert usual.rows_at(np.array([2, 0]), np.array([[2, 0], [1, 1]])).tolist() == [[1, 8], [2, 2]]


def test_batches_are_made_of_the_clients_rows():
    options = {"batch_size": 4, "epochs": 1, "steps": None, "number": 2, "seeds": Seeds(root=1), "purpose": "x"}
    schedule = draw_schedule(POOL, np.array([3, 500_000]), **options)
    for client, samples, real in zip((3, 500_000), schedule.samples, schedule.real, strict=True):
        assert sorted(samples[real]) == sorted(POOL.of(client))


def test_a_population_of_a_million_takes_no_memory():
    tracemalloc.start()
    many = Resampled(samples=600, clients=1_000_000, samples_per_client=10, seeds=Seeds(root=4))
    assert (many.total, len(many.sizes)) == (10_000_000, 1_000_000)
    many.rows_at(np.arange(100), np.zeros((100, 5), dtype=np.int64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def tables(**changes):
    return {
        "data": {"name": "digits", "partition": "resampled", "samples": 8},
        "model": {"name": "mlp"},
        "federation": {"clients": 50_000, "cohort": 10, "rounds": 1},
        "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 8},
        "method": {"name": "fedavg"},
    } | changes


def test_the_configuration_says_how_many_samples_a_client_has():
    made = partition_of(parse(tables(), source="t"), load_digits(), Seeds(root=0))
    assert (made.clients, made.total) == (50_000, 400_000)
    refused(ConfigError, r"data\.samples", parse, tables(data={"name": "digits", "partition": "resampled"}), source="t")
    with pytest.raises(ConfigError, match=r"data\.samples with data\.partition='iid': is for resampled"):
        parse(tables(data={"name": "digits", "samples": 3}), source="t")


def test_private_records_need_a_partition():
    record = {"clip_norm": 1.0, "noise_multiplier": 1.0}
    local = {"learning_rate": 0.1, "epochs": 1, "batch_size": 8, "record": record}
    with pytest.raises(ConfigError, match=r"local\.record.*resampled"):
        partition_of(parse(tables(local=local), source="t"), load_digits(), Seeds(root=0))
