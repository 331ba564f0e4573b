"""Runs whose noise is taken back over rounds: drawn, charged, resumed, audited, refused."""

import math

import numpy as np
import pytest
import torch

from accounting import Ledger
from accounting.factorisation import square_root
from accounting.gaussian import smallest_epsilon
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError
from dpfed.run import loop as federation
from dpfed.run.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.correlated import Correlated

BANDS = (
    "federation.sampling=cyclic", "federation.cohort=20", "federation.rounds=5", "privacy.bands=3",
    "privacy.noise_multiplier=2.0", "method.name=dp-fedavg",
)  # fmt: skip


def test_fresh_noise_comes_out_of_the_correlated_one():
    """C w = z, for every round; and the sum over rounds has the variance of the factorisation."""
    stage, stream = Correlated(bands=3, rounds=8), Seeds(root=4)

    def drawn(number):
        return torch.from_numpy(stream.generator("fresh", number).standard_normal(2000).astype(np.float32))

    noises = [stage.noise(drawn(number), number, drawn).double() for number in range(8)]
    c = square_root(3)
    for number in range(8):
        again = sum(c[lag] * noises[number - lag] for lag in range(min(number + 1, 3)))
        assert torch.allclose(again, drawn(number).double(), atol=1e-5)
    expected = float(np.square(np.cumsum(stage.returned)).sum())
    variance = float(sum(noises).var())  # 2000 draws: 5 standard errors, a wrong alarm with probability 1e-6
    assert abs(variance / expected - 1) < 5 * math.sqrt(2 / 2000)
    assert variance < 0.8 * 8  # of independent noise


def test_a_run_is_charged_by_the_sensitivity_and_audited(tiny_config, tmp_path):
    outcome = federation.run(build(tiny_config(*BANDS)), tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    norm = float(np.linalg.norm(square_root(3)))
    ((part, count),) = book.mechanism().parts
    assert count == 5
    assert part.mechanism.noise_multiplier == pytest.approx(2.0 / norm)
    assert book.releases[0].detail["bands"] == 3
    assert book.releases[0].noise_std == pytest.approx(2.0 * book.releases[0].clip_norm)
    truth = smallest_epsilon(60**-1.1, mu=math.sqrt(2) * norm / 2.0)  # two participations
    assert outcome.summary["epsilon"] == pytest.approx(truth, rel=1e-3)
    assert outcome.summary["epsilon"] >= truth
    assert not [one for one in audit_run(tmp_path / "run").checks if one.passed is False]


@pytest.mark.parametrize("fault", ["nothing is taken back", "too much is taken back"])
def test_an_audit_finds_noise_that_does_not_cancel(tiny_config, tmp_path, monkeypatch, fault):
    honest = Correlated.noise
    broken = {
        "nothing is taken back": lambda self, fresh, number, drawn_in: fresh.clone(),
        "too much is taken back": lambda self, fresh, number, drawn_in: (
            fresh + 2 * (honest(self, fresh, number, drawn_in) - fresh)
        ),
    }
    monkeypatch.setattr(Correlated, "noise", broken[fault])
    federation.run(build(tiny_config(*BANDS, "federation.rounds=3")), tmp_path / "run")
    found = {one.name: one for one in audit_run(tmp_path / "run").checks}
    assert found["sums are of what went in"].passed is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("federation.sampling=poisson",), "privacy.bands=3"),
        (("federation.sampling=balls-and-bins",), "privacy.bands=3"),
        (("privacy.bands=4",), "at most 3 bands"),
        (("method.name=fed-smp-randk", "method.keep=0.3"), "same coordinates"),
        (("privacy.noise=discrete-gaussian",), "sums of floats"),
        (("privacy.adaptive.quantile=0.5",), "one clip norm"),
    ],
)
def test_what_would_not_cancel_is_refused(tiny_config, settings, words):
    with pytest.raises(ConfigError, match=words):
        build(tiny_config(*BANDS, *settings))
