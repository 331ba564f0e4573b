"""Runs whose clients take part by a schedule: what is charged, resumed, audited, refused."""

import pytest
import torch

import dpfed
from accounting import Composed, Ledger, guarantee
from accounting.errors import AccountingError
from accounting.mechanisms import schedule_of
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError, RunError
from dpfed.methods.goals import goal_of
from dpfed.participation.schedules import BallsAndBinsCohorts
from dpfed.run import loop as federation
from dpfed.run.experiment import build

BINS = ("federation.sampling=balls-and-bins", "federation.cohort=20", "federation.rounds=5")
RESTS = ("federation.sampling=min-separation", "federation.separation=2", "federation.cohort=20", "federation.rounds=5")


class Killed(Exception):
    """Stands for kill -9."""


def killed_after(number):
    def on_round(record):
        if record["round"] == number:
            raise Killed

    return on_round


@pytest.mark.parametrize(
    "settings", [BINS, pytest.param(RESTS, marks=pytest.mark.slow)], ids=["balls-and-bins", "min-separation"]
)
def test_a_scheduled_run_is_charged_resumed_and_audited(tiny_config, tmp_path, settings):
    config = tiny_config(*settings)
    experiment = build(config)
    sent = experiment.method.stages.project.choice.sent
    assert experiment.goal.mechanism == goal_of(config, experiment.facts, sent).mechanism  # so that it can be prolonged
    whole = federation.run(build(config), tmp_path / "whole")
    book = Ledger.read(tmp_path / "whole" / "ledger.jsonl")
    (part, count), *others = book.mechanism().parts
    assert (count, others) == (5, [])
    assert schedule_of(part) is not None
    assert schedule_of(part).stream == f"seed {config.run.seed}"
    stated = guarantee(Composed(parts=((part, 5),)), delta=60**-1.1)
    assert whole.summary["epsilon"] == stated.epsilon
    assert whole.metrics[-1]["epsilon"] == pytest.approx(stated.epsilon, rel=1e-3)
    with pytest.raises(Killed):
        federation.run(build(config), tmp_path / "broken", on_round=killed_after(4))
    federation.run(build(config), tmp_path / "broken", resume=True)
    assert (tmp_path / "whole" / "ledger.jsonl").read_bytes() == (tmp_path / "broken" / "ledger.jsonl").read_bytes()
    assert (tmp_path / "whole" / "diagnostics.jsonl").read_text().count('"members"') == 5
    found = {check.name: check for check in audit_run(tmp_path / "broken").checks}
    assert found["members follow the sampler"].passed is True
    assert found["cohort sizes follow the sampler"].passed is True
    assert not [check for check in found.values() if check.passed is False]


def test_an_audit_finds_bins_that_are_reused(tiny_config, tmp_path, monkeypatch):
    """The planted fault: every epoch has the bins of the first."""
    honest = BallsAndBinsCohorts.sample
    monkeypatch.setattr(BallsAndBinsCohorts, "sample", lambda self, r, number: honest(self, r, number % self.bins))
    federation.run(build(tiny_config(*BINS, "federation.rounds=6")), tmp_path / "run")
    found = {check.name: check for check in audit_run(tmp_path / "run").checks}
    assert found["members follow the sampler"].passed is False
    assert "not drawn anew" in found["members follow the sampler"].detail


def test_a_budget_ends_a_run_within_an_epoch(tiny_config, tmp_path):
    """The first rounds of an epoch are charged as what they are."""
    experiment = build(tiny_config(*BINS, "privacy.noise_multiplier=1.5", "privacy.epsilon=0.95"))
    outcome = federation.run(experiment, tmp_path / "run")
    assert outcome.summary["stopped_by"] == "budget"
    assert 0 < outcome.summary["epsilon"] <= 0.95
    assert outcome.summary["rounds"] == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((*BINS, "privacy.adjacency=replace-one"), "replace-one"),
        ((*BINS, "run.randomness=secure", "privacy.noise=discrete-gaussian"), "who is still to take part"),
        ((*BINS, "aggregation.kind=masked"), "secure sum"),
        ((*BINS, "privacy.placement=clients"), "cohort size"),
        ((*BINS, "audit.canaries=4"), "canaries"),
        ((*BINS, "federation.separation=2"), "federation.separation"),
        (("federation.sampling=min-separation", "federation.cohort=20"), "separation"),
        ((*RESTS, "federation.separation=4"), "separation"),
        (("federation.sampling=allocation", "federation.cohort=20", "federation.rounds=5"), "6 rounds"),
    ],
)
def test_what_cannot_be_is_refused(tiny_config, settings, words):
    with pytest.raises((ConfigError, AccountingError), match=words):
        build(tiny_config(*settings))


def test_a_loop_of_ones_own_releases_every_round():
    private = dpfed.ClientLevel(
        clients=60, cohort=20, clip_norm=1.0, rounds=4, noise_multiplier=2.0, sampling="balls-and-bins",
        randomness="simulated", dimension=3,
    )  # fmt: skip
    seen = []
    for step in private.rounds():
        step.release(torch.zeros(len(step.cohort), 3))
        seen.append(step.cohort)
    assert sorted(client for cohort in seen[:3] for client in cohort.tolist()) == list(range(60))
    assert private.guarantee().sampling == "balls-and-bins"
    skipping = dpfed.ClientLevel(
        clients=60, cohort=20, clip_norm=1.0, rounds=4, noise_multiplier=2.0, sampling="min-separation", separation=2,
        randomness="simulated", dimension=3,
    )  # fmt: skip
    with pytest.raises(RunError, match="none may be left out"):
        for _ in skipping.rounds():
            pass
