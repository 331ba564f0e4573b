"""Runs whose clients take part by a schedule: what is charged, resumed, audited, refused."""

import json

import pytest
import torch
from private_loops import level
from refusals import refused

from accounting import Composed, Ledger, guarantee
from accounting.errors import AccountingError
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import schedule_of, unsampled
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError, RunError
from dpfed.methods.privacy_target import privacy_target_of
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import killed_before_checkpoint, killed_run

BINS = ("federation.sampling=balls-and-bins", "federation.cohort=20", "federation.rounds=5")
RESTS = ("federation.sampling=min-separation", "federation.separation=2", "federation.cohort=20", "federation.rounds=5")


@pytest.mark.parametrize(
    "settings", [BINS, pytest.param(RESTS, marks=pytest.mark.slow)], ids=["balls-and-bins", "min-separation"]
)
def test_a_scheduled_run_is_charged_resumed_and_audited(tiny_config, tmp_path, settings):
    config = tiny_config(*settings)
    experiment = build(config)
    sent = experiment.method.stages.project.choice.sent
    assert (
        experiment.privacy_target.mechanism == privacy_target_of(config, experiment.specification, sent).mechanism
    )  # so that it can be prolonged
    whole = federation.run(build(config), tmp_path / "whole")
    book = Ledger.read(tmp_path / "whole" / "ledger.jsonl")
    (part, count), *others = book.mechanism().parts
    assert (count, others) == (5, [])
    assert schedule_of(part) is not None
    assert schedule_of(part).stream == f"seed {config.run.seed}"
    stated = guarantee(Composed(parts=((part, 5),)), delta=1e-4)
    assert whole.summary["epsilon"] == stated.epsilon
    assert whole.metrics[-1]["epsilon"] == pytest.approx(stated.epsilon, rel=1e-3)
    killed_run(config, tmp_path / "broken", after=4)
    federation.run(build(config), tmp_path / "broken", resume=True)
    assert (tmp_path / "whole" / "ledger.jsonl").read_bytes() == (tmp_path / "broken" / "ledger.jsonl").read_bytes()
    assert (tmp_path / "whole" / "diagnostics.jsonl").read_text().count('"members"') == 5
    found = {check.name: check for check in audit_run(tmp_path / "broken").checks}
    assert found["members follow the sampler"].passed is True
    assert found["cohort sizes follow the sampler"].passed is True
    assert not [check for check in found.values() if check.passed is False]


def test_a_budget_ends_a_run_within_an_epoch(tiny_config, tmp_path):
    """The first rounds of an epoch are charged as what they are."""
    experiment = build(
        tiny_config(*BINS, "privacy.noise_multiplier=1.5", "privacy.epsilon=0.95", "privacy.delta=0.011")
    )
    outcome = federation.run(experiment, tmp_path / "run")
    assert outcome.summary["stopped_by"] == "budget"
    assert 0 < outcome.summary["epsilon"] <= 0.95
    assert outcome.summary["rounds"] == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((*BINS, "privacy.adjacency=replace-one"), "replace-one"),
        ((*BINS, "run.randomness=secure"), "floating-point"),
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
    refused((ConfigError, AccountingError), words, lambda: build(tiny_config(*settings)))


LOOP = {"cohort": 20, "rounds": 4, "dimension": 3}


def test_a_loop_of_ones_own_keeps_no_key_of_a_schedule():
    refused(ConfigError, "does not store the key", level, **LOOP, sampling="balls-and-bins", randomness="secure")


def test_a_loop_of_ones_own_releases_every_round():
    private, seen = level(**LOOP, sampling="balls-and-bins"), []
    for step in private.rounds():
        step.release(torch.zeros(len(step.cohort), 3))
        seen.append(step.cohort)
    assert sorted(client for cohort in seen[:3] for client in cohort.tolist()) == list(range(60))
    assert private.guarantee().sampling == "balls-and-bins"
    skipping = level(**LOOP, sampling="min-separation", separation=2)
    refused(RunError, "none may be skipped", list, skipping.rounds())


SECURE = ("run.randomness=secure", "privacy.noise=discrete-gaussian", "privacy.placement=server")


def test_a_secure_schedule_goes_on_and_leaves_out_what_was_interrupted(tiny_config, tmp_path):
    """Killed between the charge of round 4 and its checkpoint: the round is charged once and not repeated."""
    config, folder = tiny_config(*BINS, *SECURE), tmp_path / "run"
    killed_before_checkpoint(build(config), folder, 4)
    assert len(Ledger.read(folder / "ledger.jsonl").releases) == 4
    outcome = federation.run(build(config), folder, resume=True)
    book = Ledger.read(folder / "ledger.jsonl")
    assert [one.round for one in book.releases] == [0, 1, 2, 3, 4]
    ((part, count),) = book.mechanism().parts
    assert count == 5
    assert outcome.summary["epsilon"] == guarantee(Composed(parts=((part, 5),)), delta=1e-4).epsilon
    assert outcome.summary["aborted_rounds"] == 1
    found = {check.name: check for check in audit_run(folder, confidence=1 - 1e-6).checks}
    assert found["members follow the sampler"].passed is True  # the same bins before and after
    assert not [check for check in found.values() if check.passed is False]
    key = folder / "schedule.key"
    assert key.stat().st_mode & 0o077 == 0
    drawn = [json.loads(line)["members"] for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    again = federation.run(build(config), tmp_path / "other")
    other = [json.loads(line)["members"] for line in (again.folder / "diagnostics.jsonl").read_text().splitlines()]
    assert drawn != other


def test_coins_that_were_seen_are_not_drawn_again_after_a_kill(tiny_config, tmp_path):
    """Uploads of round 1 may have been seen before the kill: other coins of the same clients would be a second upload,
    and four rounds of a period of three are accounted as two of the first cohort alone."""
    settings = (
        "method.name=stochastic-sign", "method.options.bound=0.5", "privacy.noise=coins", "privacy.clip_norm=0.2",
        "privacy.edge=0.3", "privacy.adjacency=zero-out", "privacy.release=uploads", "federation.sampling=cyclic",
        "federation.cohort=20", "federation.rounds=4", "run.randomness=secure",
    )  # fmt: skip
    config, folder = tiny_config(*settings, without=["privacy"]), tmp_path / "run"
    killed_before_checkpoint(build(config), folder, 2)
    outcome = federation.run(build(config), folder, resume=True)
    book = Ledger.read(folder / "ledger.jsonl")
    assert [one.round for one in book.releases] == [0, 1, 2, 3]
    assert outcome.summary["aborted_rounds"] == 1
    ((part, _),) = book.mechanism().parts
    assert outcome.summary["epsilon"] == guarantee(Composed(parts=((unsampled(part), 2),)), delta=1e-4).epsilon


def test_a_schedule_whose_key_is_lost_does_not_go_on(tiny_config, tmp_path):
    config, folder = tiny_config(*BINS, *SECURE), tmp_path / "run"
    killed_run(config, folder, after=2)
    (folder / "schedule.key").unlink()
    refused(RunError, r"schedule\.key", lambda: federation.run(build(config), folder, resume=True))


def test_two_runs_of_a_project_do_not_share_a_stream(tiny_config, tmp_path):
    """Or the second's rounds would be accounted as the first's next epochs."""
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=50.0, delta=1e-4)
    federation.run(build(tiny_config(*BINS)), tmp_path / "one", project=project)
    with pytest.raises(RunError, match=r"different run\.seed"):
        federation.run(build(tiny_config(*BINS)), tmp_path / "two", project=project)
    federation.run(build(tiny_config(*BINS, "run.seed=1")), tmp_path / "three", project=project)
