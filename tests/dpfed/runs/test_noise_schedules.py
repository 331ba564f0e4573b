"""Runs whose noise changes over the rounds by a plan: drawn, charged, resumed, audited, refused."""

import numpy as np
import pytest
from refusals import refused

from accounting import Ledger
from accounting.ledger import Release
from accounting.mechanisms import gaussian_of
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError, RunError
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.report.privacy_text import factors_text, privacy_statement
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.spending import VaryingRounds

from ...rounds import killed_run

FALLING = ("federation.rounds=6", "privacy.noise_schedule=[1.5, 1.0, 0.5]", "privacy.noise_multiplier=2.0")
NOISES = [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_every_round_is_charged_as_it_is(tiny_config, tmp_path, sampling):
    outcome = federation.run(build(tiny_config(*FALLING, f"federation.sampling={sampling}")), tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [gaussian_of(one.mechanism).noise_multiplier for one in book.releases] == NOISES
    assert [one.noise_std / one.clip_norm for one in book.releases] == NOISES
    assert outcome.summary["noise_schedule"] == [1.5, 1.0, 0.5]
    spent = [one["epsilon"] for one in outcome.metrics]
    assert spent[-1] == pytest.approx(outcome.summary["epsilon"], rel=1e-3)
    assert spent[5] - spent[4] > spent[3] - spent[2] > spent[1] - spent[0]
    assert not [one for one in audit_run(tmp_path / "run").checks if one.passed is False]


def test_an_epsilon_is_kept_to(tiny_config, tmp_path):
    config = tiny_config(*FALLING[:2], "privacy.epsilon=1.5", "privacy.clip_norm=1.0", without=["privacy"])
    outcome = federation.run(build(config), tmp_path / "run")
    assert (outcome.summary["stopped_by"], outcome.summary["rounds"]) == ("rounds", 6)
    assert 1.49 < outcome.summary["epsilon"] <= 1.5


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("factors", ["[1.0, 0.5]", "[1.5, 1.0, 0.5]", "[0.6, 1.2]"])
def test_noise_that_was_calibrated_pays_for_the_last_round(tiny_config, factors):
    """The running account is a bit above that of the whole run, by which the noise was found."""
    plan = ("federation.clients=600", "federation.cohort=10", "federation.rounds=60", "privacy.epsilon=1.01")
    settings = (*plan, "privacy.clip_norm=1.0", f"privacy.noise_schedule={factors}")
    experiment = build(tiny_config(*settings, without=["privacy"]))
    privacy_target, no_cohort = experiment.privacy_target, np.zeros(0, dtype=np.int64)
    spent = VaryingRounds(privacy_target, 60, [])
    for number in range(60):
        assert spent.with_round(no_cohort, number) <= 1.01
        of = {"clip_norm": 1.0, "noise_std": 1.0, "noise_placement": "server"}
        assert spent.charge(Release(round=number, mechanism=privacy_target.mechanism_of_round(number), **of)) <= 1.01
    assert spent.with_round(no_cohort, 60) > 1.01


def test_a_budget_ends_the_run_before_the_round_that_it_does_not_pay_for(tiny_config, tmp_path):
    """Early rounds are cheap: the quiet last ones are what does not fit, and the audit agrees that they do not."""
    whole = federation.run(build(tiny_config(*FALLING)), tmp_path / "whole")
    after_five = whole.metrics[4]["epsilon"]
    outcome = federation.run(build(tiny_config(*FALLING, f"privacy.epsilon={after_five}")), tmp_path / "run")
    assert (outcome.summary["stopped_by"], outcome.summary["rounds"]) == ("budget", 5)
    assert "times 1.5, 1, 0.5 in equal parts of 6 planned rounds" in privacy_statement(outcome.record)
    assert "in equal parts of the rounds" in privacy_statement(whole.record)
    assert not [one for one in audit_run(tmp_path / "run").checks if one.passed is False]


def test_many_factors_are_told_by_their_ends():
    assert factors_text([2.0, 1.0, 0.25]) == "2, 1, 0.25"
    assert factors_text([2.0] * 20 + [0.25] * 19 + [0.5]) == "2 to 0.5 (40 factors, the least 0.25)"


def test_a_run_goes_on_with_the_noise_of_its_round(tiny_config, tmp_path):
    config = tiny_config(*FALLING)
    whole = federation.run(build(config), tmp_path / "whole")

    killed_run(config, tmp_path / "run", after=3)
    again = federation.run(build(config), tmp_path / "run", resume=True)
    charged = [
        gaussian_of(one.mechanism).noise_multiplier for one in Ledger.read(tmp_path / "run/ledger.jsonl").releases
    ]
    assert charged == NOISES
    assert again.summary["epsilon"] == pytest.approx(whole.summary["epsilon"], rel=1e-6)
    assert again.metrics[-1]["test_accuracy"] == whole.metrics[-1]["test_accuracy"]


def test_a_longer_run_would_be_another_plan(tiny_config, tmp_path):
    settings = (*FALLING, "privacy.epsilon=9.0")
    federation.run(build(tiny_config(*settings)), tmp_path / "run")
    with pytest.raises(RunError, match=r"the parts of privacy\.noise_schedule follow from it\. Start a new run"):
        federation.run(build(tiny_config(*settings, "federation.rounds=8")), tmp_path / "run", resume=True)


@pytest.mark.parametrize("drawn", [1.0, 0.5])
def test_an_audit_finds_noise_of_another_plan(tiny_config, tmp_path, monkeypatch, drawn):
    """Every round is charged by the plan, and drawn with equal noise; 0.5: as loud as the loudest round's half."""
    honest = GaussianNoise._fresh_noise

    def broken(self, like, number, now):
        return honest(self, like, 0, now).mul_(drawn * (1 + 0.01 * number))

    monkeypatch.setattr(GaussianNoise, "_fresh_noise", broken)
    federation.run(build(tiny_config(*FALLING)), tmp_path / "run")
    found = {one.name: one.passed for one in audit_run(tmp_path / "run").checks}
    assert found["noise is as large as charged"] is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("federation.sampling=balls-and-bins",), "equal noise"),
        (("privacy.adaptive.quantile=0.5",), "fixed clip norm"),
        (("privacy.release=uploads",), "on a sum"),
        (("privacy.placement=clients", "federation.sampling=fixed"), "only noise of the server"),
        (("privacy.noise=discrete-gaussian",), "is for gaussian"),
        (("aggregation.kind=masked",), "is for gaussian"),
        (("method.name=dp-dithered",), "is for gaussian"),
        (("federation.sampling=cyclic", "privacy.bands=2"), "equal noise in all rounds"),
        (("audit.canaries=3",), "audit.canaries"),
        (("federation.rounds=2",), "each part needs at least one round"),
    ],
)
def test_what_has_no_account_is_refused(tiny_config, settings, words):
    refused(ConfigError, words, lambda: build(tiny_config(*FALLING, *settings)))


def test_coins_have_no_schedule(tiny_config):
    settings = (*FALLING[:2], "method.name=fedpm", "privacy.clip_norm=1.0")
    refused(ConfigError, "is for gaussian", lambda: build(tiny_config(*settings, without=["privacy"])))
