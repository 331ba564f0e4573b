"""One round against plain arithmetic, and what it promises whatever the clients do."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from accounting.errors import LedgerError
from dpfed.data.partition import partition_of_lists
from dpfed.runs.experiment import build
from dpfed.stages.clip import Clip

from ..rounds import Book, only_state, random_updates, watched_round, with_updates


def sum_of(experiment, updates, state=None):
    """The released mean times the divisor."""
    state = state or experiment.start
    after, _ = watched_round(state, with_updates(experiment, updates), seeds=experiment.seeds, ledger=Book())
    return (after.broadcast - state.broadcast) * experiment.method.sampler.expected


QUIET = "privacy.noise_multiplier=1e-9"


def test_dp_fedavg_is_the_sum_of_clipped_updates_over_the_expected_cohort(tiny_config):
    experiment = build(tiny_config(QUIET))
    updates = random_updates(experiment)
    cohort = experiment.method.sampler.sample(experiment.method.randomness, 0)
    expected = torch.zeros(experiment.model.size, dtype=torch.float64)
    for client in cohort:
        row = updates[client].double()
        expected += row / max(1.0, float(row.norm()))
    torch.testing.assert_close(sum_of(experiment, updates).double(), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [1e-3, 0.9, 40.0])
def test_the_record_has_the_norms_before_and_after_the_clip(tiny_config, length):
    """The typical norm is that of rows before they are clipped, to 2^(1/4); the largest and longest are after it."""
    experiment = build(tiny_config(QUIET))
    updates = random_updates(experiment)
    updates *= length / updates.norm(dim=1, keepdim=True)
    _, record = watched_round(
        experiment.start, with_updates(experiment, updates), seeds=experiment.seeds, ledger=Book()
    )
    assert 2**-0.26 <= record.typical_norm / length <= 2**0.26
    assert record.largest_norm == pytest.approx(min(length, 1.0), rel=2e-6)
    assert record.longest_added == pytest.approx(min(length, 1.0), rel=2e-6)
    assert record.largest_norm <= 1


def test_fed_smp_randk_moves_only_masked_coordinates_by_the_clipped_scaled_values(tiny_config):
    experiment = build(tiny_config(QUIET, "method.name=fed-smp-randk", "method.keep=0.1"))
    updates = random_updates(experiment)
    chosen = experiment.method.stages.project.choice.for_round(experiment.start.broadcast, 0, experiment.seeds)
    kept = chosen.indices.numpy()
    size = experiment.model.size
    expected = np.zeros(size)
    for client in experiment.method.sampler.sample(experiment.method.randomness, 0):
        row = updates[client].double().numpy()[kept] * size / len(kept)
        expected[kept] += row / max(1.0, np.linalg.norm(row))
    moved = sum_of(experiment, updates).double().numpy()
    np.testing.assert_allclose(moved, expected, atol=2e-4)
    assert set(np.flatnonzero(moved)) <= set(kept)


METHODS = [("dp-fedavg",), ("fed-smp-randk", "method.keep=0.1"), ("fed-smp-topk", "method.keep=0.1", "data.public=100")]


@pytest.mark.parametrize("chosen", METHODS, ids=lambda m: m[0])
def test_a_nan_client_adds_zero_is_counted_and_never_stops_the_round(tiny_config, chosen):
    name, *settings = chosen
    experiment = build(tiny_config(QUIET, f"method.name={name}", *settings))
    updates = random_updates(experiment)
    client = int(experiment.method.sampler.sample(experiment.method.randomness, 0)[0])
    zeroed, broken = updates.clone(), updates.clone()
    zeroed[client], broken[client] = 0, float("nan")
    torch.testing.assert_close(sum_of(experiment, broken), sum_of(experiment, zeroed))
    _, observed = watched_round(
        experiment.start, with_updates(experiment, broken), seeds=experiment.seeds, ledger=Book()
    )
    assert observed.not_finite == 1


def test_the_divisor_is_public_whatever_the_realised_cohort(tiny_config):
    experiment = build(tiny_config(QUIET))
    updates = torch.zeros(60, experiment.model.size)
    updates[:, 0] = 1.0
    for round in range(5):
        state = replace(experiment.start, round=round)
        size = len(experiment.method.sampler.sample(experiment.method.randomness, round))
        assert float(sum_of(experiment, updates, state)[0]) == pytest.approx(size, rel=1e-4)


def test_an_empty_cohort_releases_only_noise_and_is_charged(tiny_config):
    experiment = build(tiny_config("federation.cohort=1", "federation.clients=60"))
    rounds = [t for t in range(40) if not len(experiment.method.sampler.sample(experiment.method.randomness, t))]
    book = Book()
    state = replace(experiment.start, round=rounds[0])
    after, observed = watched_round(state, experiment.method, seeds=experiment.seeds, ledger=book)
    assert observed.cohort == 0
    assert len(book.releases) == 1
    noise = (after.broadcast - state.broadcast).double()
    # 594 weights of standard deviation 2: seeded, six standard errors.
    assert float(noise.std()) == pytest.approx(2.0, abs=6 * 2 / (2 * noise.numel()) ** 0.5)


def test_a_round_that_cannot_be_charged_is_not_released(tiny_config):
    class Full:
        def record(self, release):
            raise LedgerError("disk full")

    experiment = build(tiny_config())
    with pytest.raises(LedgerError):
        watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=Full())


def test_the_release_states_what_was_drawn(tiny_config):
    experiment = build(tiny_config("method.name=fed-smp-randk", "method.k=50", "privacy.clip_norm=0.25"))
    book = Book()
    watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=book)
    (release,) = book.releases
    assert release.noise_std == pytest.approx(0.5)
    assert release.detail == {"dimension": 50, "divided_by": 12.0}
    assert release.mechanism == experiment.privacy_target.mechanism


def without_samples(experiment, client):
    """The experiment in which this client has no samples, and all others have their own."""
    partition = experiment.method.clients.partition
    rows = [partition.of(one) if one != client else partition.of(one)[:0] for one in range(partition.clients)]
    clients = replace(experiment.method.clients, partition=partition_of_lists(rows))
    return replace(experiment, method=replace(experiment.method, clients=clients))


def squared_shift(method, start, seeds, one, other):
    """Squared distance of a round's joint release, update sum and count, between two datasets; noise cancels.

    one, other: the method on each dataset, and its cohort. In units of the noise on each part.
    """
    states = [only_state(start, world, seeds=seeds, ledger=Book(), cohort=cohort) for world, cohort in (one, other)]
    noise, adaptive = method.stages.private, method.stages.find(Clip).adaptive
    total = (states[0].broadcast - states[1].broadcast).double().norm() * method.sampler.expected
    count = math.log(states[1].clip_norm / states[0].clip_norm) / adaptive.rate * adaptive.cohort
    update_std = noise.update_noise_multiplier * start.clip_norm
    return float(total / update_std) ** 2 + (count / adaptive.count_noise_std) ** 2


@pytest.mark.parametrize("other", ["no samples", "not there"])
@pytest.mark.parametrize("own", ["outside", "inside", "not finite"])
@pytest.mark.parametrize("method", ["dp-fedavg", "qsgd"])  # bounded before the wire, and after it
def test_a_client_moves_sum_and_count_of_an_adaptive_clip_by_what_is_charged(tiny_config, method, own, other):
    """Zero-out and add-remove, exactly, from the data on: a client without samples has a count of 0, not of 1/2."""
    settings = (
        f"method.name={method}",
        "federation.sampling=all",
        "federation.cohort=60",
        "privacy.adjacency=zero-out",
    )
    norm = 1e3 if own == "inside" else 1e-2
    adaptive = ("privacy.adaptive.quantile=0.5", "privacy.adaptive.count_noise_std=1.05", f"privacy.clip_norm={norm}")
    experiment = build(tiny_config(*settings, *adaptive))
    everyone = np.arange(60)
    client = 7
    with_client = experiment.method
    if own == "not finite":
        inputs = with_client.clients.inputs.clone()
        inputs[with_client.clients.partition.of(client)] = math.nan
        with_client = replace(with_client, clients=replace(with_client.clients, inputs=inputs))
    worlds = {
        "no samples": (without_samples(experiment, client).method, everyone),
        "not there": (experiment.method, everyone[everyone != client]),
    }
    moved = squared_shift(experiment.method, experiment.start, experiment.seeds, (with_client, everyone), worlds[other])
    assert moved <= (1 / 2.0**2) * (1 + 1e-3)  # the weights are float32
    if own == "outside":
        assert moved > 0.99 / 2.0**2  # all that is charged
