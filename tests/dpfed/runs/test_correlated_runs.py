"""Runs whose noise is taken back over rounds: drawn, charged, resumed, audited, refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

from accounting import Ledger
from accounting.factorisation import column, inverse, sensitivity, square_root
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import CorrelatedRounds
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError
from dpfed.mechanisms.correlated import Correlated
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import killed_before_checkpoint

BANDS = (
    "federation.sampling=cyclic", "federation.cohort=20", "federation.rounds=5", "privacy.bands=3",
    "privacy.noise_multiplier=2.0", "method.name=dp-fedavg",
)  # fmt: skip


BUFFERS = (*BANDS[:3], "privacy.buffers=2", *BANDS[4:])
MATRICES = [
    CorrelatedRounds(separation=3, coefficients=tuple(square_root(3))),
    CorrelatedRounds(separation=3, coefficients=(1.0,)),
    CorrelatedRounds(separation=3, weights=(0.3, 0.4), decays=(0.9, 0.5)),
]


@pytest.mark.parametrize("law", MATRICES)
def test_fresh_noise_comes_out_of_the_correlated_one(law):
    """C w = z, for every round; and the sum over rounds has the variance of the factorisation."""
    stage, stream, c = Correlated(law=law), Seeds(root=4), np.zeros(8)
    c[: len(column(law, 8))] = column(law, 8)

    def drawn(number):
        return torch.from_numpy(stream.generator("fresh", number).standard_normal(2000).astype(np.float32))

    noises = [stage.noise(drawn(number), number, drawn).double() for number in range(8)]
    for number in range(8):
        again = sum(c[lag] * noises[number - lag] for lag in range(number + 1))
        assert torch.allclose(again, drawn(number).double(), atol=1e-5)
    expected = float(np.square(np.cumsum(inverse(c, rounds=8))).sum())
    variance = float(sum(noises).var())  # 2000 draws: 5 standard errors, a wrong alarm with probability 1e-6
    assert abs(variance / expected - 1) < 5 * math.sqrt(2 / 2000)
    assert variance < 0.8 * 8 or len(law.coefficients) == 1  # of independent noise
    again = Correlated(law=law)  # another process, that goes on at round 5; and one round once more
    assert torch.equal(again.noise(drawn(5), 5, drawn).double(), noises[5])
    assert torch.equal(stage.noise(drawn(5), 5, drawn).double(), noises[5])


@pytest.mark.parametrize("settings", [BANDS, BUFFERS])
def test_a_run_is_charged_by_the_sensitivity_and_audited(tiny_config, tmp_path, settings):
    outcome = federation.run(build(tiny_config(*settings)), tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    ((part, count),) = book.mechanism().parts
    assert count == 5
    assert part.mechanism.noise_multiplier == 2.0
    assert part.sampling.stream == "seed 0"
    assert book.releases[0].noise_std == pytest.approx(2.0 * book.releases[0].clip_norm)
    shown = sensitivity(column(part.sampling, 5), rounds=5, separation=3)  # two participations
    truth = smallest_epsilon(1e-4, mu=shown / 2.0)
    assert outcome.summary["epsilon"] == pytest.approx(truth, rel=1e-3)
    assert outcome.summary["epsilon"] >= truth
    assert not [one for one in audit_run(tmp_path / "run").checks if one.passed is False]


def test_an_audit_finds_noise_that_is_taken_back_too_much(tiny_config, tmp_path, monkeypatch):
    honest = Correlated.noise

    def broken(self, fresh, number, drawn_in):
        return fresh + 2 * (honest(self, fresh, number, drawn_in) - fresh)

    monkeypatch.setattr(Correlated, "noise", broken)
    federation.run(build(tiny_config(*BANDS, "federation.rounds=3")), tmp_path / "run")
    found = {one.name: one for one in audit_run(tmp_path / "run").checks}
    assert found["sums are of what went in"].passed is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("federation.sampling=poisson",), "privacy.bands=3"),
        (("privacy.buffers=2",), "Remove one of them"),
        (("method.name=fed-smp-randk", "method.keep=0.3"), "method.stays=true"),
        (("method.name=fedscalar", "method.shared=true"), "method.stays=true"),
        (("method.name=fedscalar", "method.stays=true"), "method.shared=true"),
        (("privacy.noise=discrete-gaussian",), "is for gaussian"),
        (("run.randomness=secure",), "run.randomness='secure'"),
        (("privacy.adaptive.quantile=0.5",), "fixed clip norm"),
    ],
)
def test_what_would_not_cancel_is_refused(tiny_config, settings, words):
    refused(ConfigError, words, lambda: build(tiny_config(*BANDS, *settings)))


@pytest.mark.parametrize(
    "settings",
    [
        ("method.name=fed-smp-randk", "method.keep=0.3", "method.stays=true"),
        ("method.name=fedscalar", "method.shared=true", "method.stays=true", "method.options.projections=4"),
    ],
)
def test_maps_that_stay_let_noise_cancel(tiny_config, tmp_path, settings):
    """The same coordinates or directions in all rounds, and the audit finds no fault."""
    experiment = build(tiny_config(*BANDS, *settings))
    choice, weights = experiment.method.stages.project.choice, experiment.start.broadcast
    one, two = (choice.for_round(weights, number, experiment.seeds) for number in (0, 3))
    total = torch.arange(1.0, choice.sent + 1)
    assert torch.equal(one.adjoint(total), two.adjoint(total))
    federation.run(experiment, tmp_path / "run")
    assert not [one for one in audit_run(tmp_path / "run").checks if one.passed is False]


def test_clients_that_come_too_soon_are_refused(tiny_config):
    """A stage of one's own: what it is charged for must be what the sampler does."""
    noise = build(tiny_config(*BANDS)).method.stages.find(GaussianNoise)
    law = replace(noise.correlated, separation=4)
    refused(ConfigError, "4 rounds apart", replace, noise, correlated=law)
    refused(ConfigError, "at most 1 times", replace, noise, correlated=replace(law, separation=3, participations=1))


def test_a_run_killed_between_charge_and_checkpoint_makes_the_same_noise(tiny_config, tmp_path):
    """Resumed, the round is repeated with the same noise and charged once: every file is that of the whole run."""
    config, folder = tiny_config(*BUFFERS), tmp_path / "broken"
    whole = federation.run(build(config), tmp_path / "whole")
    killed_before_checkpoint(build(config), folder, 4)
    assert len(Ledger.read(folder / "ledger.jsonl").releases) == 4
    resumed = federation.run(build(config), folder, resume=True)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.summary["epsilon"] == whole.summary["epsilon"]
    assert (tmp_path / "whole" / "ledger.jsonl").read_bytes() == (folder / "ledger.jsonl").read_bytes()
