"""Baselines of the papers: Fed-SMP without noise, FedAvg with equal weights, FedSparsify at one sparsity."""

import numpy as np
import pytest
import torch

from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build, check_configuration
from dpfed.stages.project import random_indices

from ...rounds import preset, watched_round, with_updates


def experiment_of(name, *settings):
    return build(preset(name, "federation.rounds=2", *settings))


def updates_of(experiment, length):
    """Random updates [clients, d], each of this L2 norm."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(experiment.config.federation.clients, experiment.model.size, generator=generator)
    return length * rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_fed_smp_without_noise_is_the_mean_of_masked_updates(clip):
    """Beside the mean written out here: one mask for all clients, times d/k, clipped only if a bound is set."""
    settings = [] if clip is None else [f"aggregation.clip_norm={clip}"]
    experiment = experiment_of("fed-smp-randk-noiseless-digits", "federation.sampling=all", *settings)
    updates = updates_of(experiment, 3.0)
    state, record = watched_round(
        experiment.start, with_updates(experiment, updates), seeds=experiment.seeds, ledger=None
    )
    size = experiment.model.size
    kept = random_indices(size, round(0.4 * size), experiment.seeds, "mask.shared", 0)
    expected = torch.zeros_like(updates)
    expected[:, kept] = updates[:, kept] * (size / len(kept))
    if clip is not None:
        expected *= clip / torch.linalg.vector_norm(expected, dim=1, keepdim=True)
    moved = state.broadcast - experiment.start.broadcast
    torch.testing.assert_close(moved, expected.mean(dim=0), rtol=1e-4, atol=1e-6)
    assert record.noise is None
    assert record.clipped == (len(updates) if clip is not None else 0)


def test_all_clients_send_what_public_samples_rank_highest():
    experiment = experiment_of("fed-smp-topk-noiseless-digits", "federation.sampling=all")
    updates = updates_of(experiment, 1.0)
    state, record = watched_round(
        experiment.start, with_updates(experiment, updates), seeds=experiment.seeds, ledger=None
    )
    moved = state.broadcast - experiment.start.broadcast
    assert record.map.kept == int((moved != 0).sum()) == round(0.1 * experiment.model.size)


def test_a_run_without_noise_says_that_it_is_not_private(tmp_path, capsys):
    folder = tmp_path / "run"
    assert status(["run", "fed-smp-randk-noiseless-digits", "--set", "federation.rounds=2", "--out", str(folder)]) == 0
    assert "not private" in capsys.readouterr().out
    assert "This run is not private" in (folder / "report.html").read_text()
    assert not (folder / "ledger.jsonl").exists()
    assert status(["audit", "run", str(folder)]) != 0


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fed-smp-randk-digits", ["method.noiseless=true"], "a run without noise is not private"),
        ("fed-smp-randk-noiseless-digits", ["method.noiseless=false"], "method.noiseless=true"),
        ("dp-fedavg-digits", ["method.noiseless=true"], "does not take it"),
        ("fed-smp-randk-noiseless-digits", ["aggregation.weights=uniform"], "has no effect here"),
        (
            "fed-smp-randk-noiseless-digits",
            ["local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0"],
            r"with \[local.record\]: a run without noise is not private",
        ),
    ],
)
def test_a_run_without_noise_is_asked_for_by_name(name, settings, words):
    with pytest.raises(ConfigError, match=words):
        check_configuration(preset(name, *settings))


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_clients_count_by_samples_or_all_the_same(weights):
    settings = ("federation.sampling=all", "federation.clients=40", "federation.cohort=40", "data.partition=dirichlet")
    experiment = experiment_of("fedavg-digits", *settings, "data.alpha=0.5", f"aggregation.weights={weights}")
    updates = updates_of(experiment, 1.0)
    state, _ = watched_round(experiment.start, with_updates(experiment, updates), seeds=experiment.seeds, ledger=None)
    sizes = experiment.method.clients.partition.sizes.astype(float)
    factors = sizes if weights == "samples" else np.ones_like(sizes)
    expected = (torch.from_numpy(factors / factors.sum()).float()[:, None] * updates).sum(dim=0)
    torch.testing.assert_close(state.broadcast - experiment.start.broadcast, expected, rtol=1e-4, atol=1e-6)
    assert sizes.min() != sizes.max()


def test_fedsparsify_at_one_sparsity_sends_the_same_share_in_every_round(tmp_path):
    """97% of the weights are zero in every upload: .03 x 32 bits and a bitmap, where a schedule sends more at first."""
    sizes = {}
    for initial in (0.97, 0.0):
        options = ("method.options.sparsity=0.97", f"method.options.initial={initial}", "federation.rounds=3")
        outcome = federation.run(experiment_of("fedsparsify-digits", *options), tmp_path / str(initial))
        sizes[initial] = outcome.summary["uplink_bits_per_parameter"]
    assert sizes[0.97] < 2.5 < 10 < sizes[0.0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("method.options.initial=0.98", "never decreases"),
        ("method.options.initial=1.0", r"must be a number in \[0, 1\)"),
        ("method.options.initial=half", r"must be a number in \[0, 1\)"),
        ("method.options.sparsity=true", r"must be a number in \[0, 1\)"),
    ],
)
def test_a_sparsity_that_no_schedule_has_is_refused(setting, words):
    with pytest.raises(ConfigError, match=words):
        check_configuration(preset("fedsparsify-digits", setting))
