"""Runs in public lanes with noise in bands: charged, resumed, searched, audited, refused."""

import json

import pytest
import torch
from private_loops import level
from refusals import refused

from accounting import Ledger, Plan, budget
from accounting.budget import certificates
from accounting.errors import AccountingError
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import schedule_of
from dpfed.audit.run import audit_run
from dpfed.config.tables import parse
from dpfed.errors import ConfigError, RunError
from dpfed.records.summary import Summary
from dpfed.report.privacy_text import privacy_statement
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build, with_derived_defaults

from ...rounds import killed_run

BINS = (
    "federation.sampling=balls-and-bins", "federation.cohort=10", "federation.rounds=12", "method.name=dp-fedavg",
    "privacy.noise_multiplier=2.0",
)  # fmt: skip
LANES = (*BINS, "federation.lanes=3")


SECRET = (*LANES, "federation.lane_secrecy=secret")


@pytest.mark.parametrize(
    ("settings", "adjacency", "lane"), [(LANES, "zero-out", "lane of 3"), (SECRET, "add-remove", "secret lane of 3")]
)
def test_a_run_in_lanes_is_charged_resumed_and_audited(tiny_config, tmp_path, settings, adjacency, lane):
    """Secret lanes have the epsilon of public ones under add-remove, since a lane depends on no other client."""
    config = tiny_config(*settings)
    whole = federation.run(build(config), tmp_path / "whole")
    ((part, count),) = Ledger.read(tmp_path / "whole" / "ledger.jsonl").mechanism().parts
    schedule = schedule_of(part)
    assert (count, schedule.bins, schedule.lanes, len(schedule.coefficients)) == (12, 6, 3, 3)
    assert bool(schedule.secret_lanes) is (settings is SECRET)
    delta = build(config).privacy_target.delta
    plan = Plan(clients=60, cohort=10, sampling="balls-and-bins", lanes=3, noise="banded", delta=delta)
    assert whole.summary["epsilon"] == pytest.approx(budget.epsilon(plan, noise_multiplier=2.0, rounds=12), rel=1e-6)
    assert whole.summary["adjacency"] == adjacency
    if settings is SECRET:
        assert whole.summary.get("lower_bound") is None
        assert not any("only on its id" in note for note in whole.summary["notes"])
    killed_run(config, tmp_path / "broken", after=7)
    federation.run(build(config), tmp_path / "broken", resume=True)
    assert (tmp_path / "whole" / "ledger.jsonl").read_bytes() == (tmp_path / "broken" / "ledger.jsonl").read_bytes()
    found = {check.name: check for check in audit_run(tmp_path / "broken").checks}
    assert f"in its {lane}" in found["members follow the sampler"].detail
    assert not [check for check in found.values() if check.passed is False]


RESTS = (
    "federation.sampling=min-separation", "federation.separation=12", "federation.cohort=4", "federation.rounds=30",
    "method.name=dp-fedavg", "privacy.noise_multiplier=1.2", "privacy.delta=1e-3", "privacy.certificate=sampled",
)  # fmt: skip
CERTIFIED = (*SECRET, "federation.rounds=18", "privacy.delta=1e-3", "privacy.certificate=sampled")


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("settings", [CERTIFIED, RESTS])
def test_a_run_has_a_certificate_beside_its_epsilon(tiny_config, tmp_path, monkeypatch, settings):
    """An audit samples again, also where nothing is in a cache, and finds one that was changed or made up."""
    monkeypatch.setenv("DPFED_CACHE_DIR", "")
    monkeypatch.setattr(certificates, "SAMPLES", 50_000)
    summary = federation.run(build(tiny_config(*settings)), tmp_path / "run").summary
    found = summary["certificate"]
    assert found["epsilon"] < found["deterministic"] == summary["epsilon"]
    assert "by 50,000 samples" in privacy_statement(Summary.of_folder(tmp_path / "run"))
    assert certificate_check(tmp_path / "run").passed
    for changed in (
        {"epsilon": found["epsilon"] / 2},
        {"delta": 0.5},
        {"samples": 10**15},
        {"seed": "0" * 64},
        {"tries": 0},
    ):
        path = tmp_path / "run" / "summary.json"
        path.write_text(json.dumps(summary | {"certificate": found | changed}))
        assert certificate_check(tmp_path / "run").passed is False
    path.write_text(json.dumps(summary | {"certificate": {"epsilon": "x"}}))
    assert certificate_check(tmp_path / "run").passed is False


def test_a_prolonged_run_has_no_certificate(tiny_config, tmp_path, monkeypatch):
    """The length of a prolonged run may be chosen by its results, and only the budget covers that."""
    monkeypatch.setenv("DPFED_CACHE_DIR", "")
    monkeypatch.setattr(certificates, "SAMPLES", 50_000)
    settings = (*RESTS, "privacy.epsilon=30.0")
    assert "certificate" in federation.run(build(tiny_config(*settings)), tmp_path / "run").summary
    longer = build(tiny_config(*settings, "federation.rounds=36"))
    summary = federation.run(longer, tmp_path / "run", resume=True).summary
    assert (summary["epsilon"], "certificate" in summary) == (30.0, False)
    assert certificate_check(tmp_path / "run").passed


def certificate_check(folder):
    return next(check for check in audit_run(folder).checks if check.name == "certificate is computed again")


def test_a_certificate_that_no_run_asked_for_is_found(tiny_config, tmp_path):
    summary = federation.run(build(tiny_config(*SECRET)), tmp_path / "run").summary
    assert "certificate" not in summary
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"certificate": {"epsilon": 0.1}}))
    assert certificate_check(tmp_path / "run").passed is False


def test_certificates_that_are_refused(tiny_config, tmp_path):
    for settings in (LANES, (*BINS, "federation.sampling=poisson")):
        with pytest.raises((ConfigError, AccountingError), match="certificate"):
            build(tiny_config(*settings, "privacy.certificate=sampled"))
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=20.0, delta=1e-4)
    with pytest.raises(RunError, match="certifies one run only"):
        federation.run(build(tiny_config(*CERTIFIED)), tmp_path / "one", project=project)


def test_a_project_charges_a_run_in_secret_lanes_as_a_whole(tiny_config, tmp_path):
    """Epochs of secret lanes share a lane, so that none of them is a unit; a second run draws its lanes anew."""
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=20.0, delta=1e-4)
    federation.run(build(tiny_config(*SECRET)), tmp_path / "one", project=project)
    ((_, count),) = project.filter.unit if hasattr(project, "filter") else project.terms.unit or ((None, 12),)
    assert count == 12
    with pytest.raises((RunError, AccountingError), match=r"run\.seed"):
        federation.run(build(tiny_config(*SECRET)), tmp_path / "two", project=project)


def test_lanes_follow_from_bands_and_bands_from_lanes(tiny_config):
    for settings, numbers in (
        (("privacy.bands=2",), (2, 2)),
        (("privacy.bands=4",), (6, 4)),
        (("federation.lanes=3",), (3, 3)),
        (("federation.lanes=6", "privacy.bands=4"), (6, 4)),
    ):
        config = with_derived_defaults(tiny_config(*BINS, *settings))
        assert (config.federation.lanes, config.privacy.bands) == numbers
        law = build(config).privacy_target.mechanism.sampling
        assert (law.lanes, len(law.coefficients)) == numbers
    alone = with_derived_defaults(tiny_config(*BINS))
    assert (alone.federation.lanes, alone.privacy.bands) == (None, None)


def test_one_lane_needs_no_bands_of_noise(tmp_path, tiny_config):
    """config.toml had one band, which is refused with this method: its audit failed, and it could not be resumed."""
    config = tiny_config(*BINS, "federation.lanes=1", "federation.rounds=2", "method.name=qsgd")
    federation.run(build(config), tmp_path / "run")
    assert audit_run(tmp_path / "run", confidence=1 - 1e-6).verdict == "pass"


def test_lanes_are_searched_for_an_epsilon(tiny_config):
    config = with_derived_defaults(
        tiny_config(*BINS[:-1], "privacy.noise_multiplier=", "privacy.epsilon=3.0", "federation.lanes=search")
    )
    plan = Plan(clients=60, cohort=10, sampling="balls-and-bins", noise="banded", delta=config.privacy.delta)
    found = budget.solve(plan, epsilon=3.0, rounds=12, with_lower_bound=False)
    assert config.federation.lanes == config.privacy.bands == found.plan.options["lanes"] > 1
    privacy_target = build(parse(config.to_dict(), source="again")).privacy_target
    assert privacy_target.noise_multiplier == pytest.approx(found.noise_multiplier, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("federation.lanes=4",), "Use one of 1, 2, 3, 6"),
        (("federation.lanes=3", "privacy.bands=4"), "Use at most 3 bands"),
        (("privacy.bands=7",), "Use at most 6 bands"),
        (("federation.lanes=3", "privacy.adjacency=add-remove"), "positions in a list"),
        (("federation.lanes=3", "privacy.buffers=2"), "privacy.buffers"),
        (("federation.lanes=3", "privacy.noise=discrete-gaussian"), "only Gaussian noise can be"),
        (("federation.lane_secrecy=secret",), "no lane to draw"),
        (("federation.lanes=1", "federation.lane_secrecy=secret"), "no lane to draw"),
        (("federation.lanes=3", "federation.lane_secrecy=secret", "privacy.adjacency=replace-one"), "replace-one"),
        (("federation.lanes=3", "privacy.factorisation=square-root", "privacy.factorisation_power=0.4"), "Remove one"),
        (("federation.lanes=search",), "Give epsilon without noise_multiplier"),
        (("federation.lanes=3", "privacy.release=uploads"), "on a sum"),
        (("federation.lanes=3", "privacy.adaptive.quantile=0.5"), "fixed clip norm"),
        (("federation.lanes=3", "method.name=fed-smp-randk", "method.keep=0.3"), "method.stays"),
        (("federation.sampling=poisson", "federation.lanes=3"), "is for balls-and-bins"),
        (("federation.lanes=3", "run.release=true"), "federation.lanes"),
    ],
)
def test_what_lanes_do_not_cover_is_refused(tiny_config, settings, words):
    refused((ConfigError, AccountingError), words, lambda: build(tiny_config(*BINS, *settings)))


def test_ids_that_do_not_depend_on_others_may_be_added_or_removed(tiny_config):
    config = tiny_config(*LANES, "data.partition=resampled", "data.samples=8", "privacy.adjacency=add-remove")
    assert str(build(config).privacy_target.mechanism.adjacency) == "add-remove"


@pytest.mark.parametrize("secret", [False, True])
def test_a_loop_of_ones_own_has_lanes(secret):
    more = {"lane_secrecy": "secret"} if secret else {}
    private = level(cohort=10, rounds=12, sampling="balls-and-bins", lanes=3, dimension=3, **more)
    lane: dict[int, int] = {}
    for step in private.rounds():
        for client in step.cohort.tolist():
            assert lane.setdefault(client, step.round % 3) == step.round % 3
        step.release(torch.zeros(len(step.cohort), 3))
    assert any(client % 3 != number for client, number in lane.items()) is secret
    plan = Plan(clients=60, cohort=10, sampling="balls-and-bins", lanes=3, noise="banded", delta=private.delta)
    stated = budget.epsilon(plan, noise_multiplier=2.0, rounds=12)
    assert private.guarantee().epsilon == pytest.approx(stated, rel=1e-6)
    assert private.guarantee().adjacency == ("add-remove" if secret else "zero-out")
