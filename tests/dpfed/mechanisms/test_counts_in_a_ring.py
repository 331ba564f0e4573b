"""Sums of coins in a ring that does not hold every count: read as the count nearest to what is expected."""

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.numpy import load_file

from accounting import BernoulliAggregate
from accounting.mechanisms import FullParticipation
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.randomness import Simulated
from dpfed.runs.experiment import build
from dpfed.runs.loop import run
from dpfed.seeds import Seeds

from ...rounds import preset
from ..announced import a_round

COHORT = 100


def stage(bits, *, trials=1):
    coins = BernoulliAggregate(dimension=trials, floor=0.01, adjacency="zero-out", linf_clip=0.4, cohort=COHORT)
    draws = Simulated(seeds=Seeds(root=2))
    return PrivateCoins(coins=coins, sampling=FullParticipation(), randomness=draws, trials=trials, bits=bits)


@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("theta", [0.01, 0.2, 0.5, 0.83])
@pytest.mark.parametrize("bits", [4, 6, 7, 9])
def test_every_count_near_the_expected_one_is_read_right_and_no_other(theta, bits, trials):
    """All counts that there are, as residues: right within half a ring of the expected count, all where all fit."""
    counts = torch.arange(COHORT * trials + 1)
    now = a_round(torch.full((len(counts),), theta), uploads=COHORT)
    read = stage(bits, trials=trials).server((counts % (1 << bits)).float(), now)
    right = ((counts / trials - COHORT * theta) - read).abs() < 1e-3
    from_expected = counts - round(float(np.float32(theta)) * COHORT * trials)
    half = 1 << (bits - 1)
    fits = COHORT * trials < 1 << bits
    assert torch.equal(right, torch.ones_like(right) if fits else (from_expected >= -half) & (from_expected < half))


def chosen(*settings):
    return preset(
        "stochastic-sign-digits", "federation.rounds=2", "federation.clients=200", "federation.cohort=60",
        "local.epochs=1", "method.options.bound=0.2", "privacy.noise=coins", "privacy.epsilon=3",
        "run.evaluate_every=2", *settings,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", pytest.param("masked", marks=pytest.mark.slow)])
def test_a_small_ring_changes_the_bytes_and_nothing_else(kind, tmp_path):
    """Counts of about 90 coins near 1/2 modulo 64: 6.7 standard deviations on either side."""
    clip = ("privacy.epsilon=", "privacy.clip_norm=1")  # no clip is searched
    experiments = [build(chosen(f"aggregation.kind={kind}", *clip, *more)) for more in ((), ("privacy.count_bits=6",))]
    assert experiments[0].privacy_target.has_equal_rounds(experiments[1].privacy_target)
    size = experiments[0].model.size
    whole, small = (experiment.method.stages.fixed_bits for experiment in experiments)
    assert small == 6 * size < whole
    for name, experiment in zip(("whole", "small"), experiments, strict=True):
        run(experiment, tmp_path / name)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "small"))
    assert all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("privacy.release=uploads", "privacy.adjacency=zero-out"), "is for sums of Bernoulli samples"),
        (("privacy.noise_std=0.1",), "count_bits or clip_metric='fisher': is not built"),
        (("privacy.trials=64",), "at least 7 bits"),
        (("privacy.noise=gaussian", "privacy.clip_norm=1"), "count_bits"),
    ],
)
def test_a_ring_of_nothing_that_is_counted_is_refused(settings, named):
    refused(ConfigError, named, lambda: build(chosen("privacy.count_bits=6", *settings)))
