"""Error feedback in private runs: where its account holds, audited; refused elsewhere."""

import pytest
from refusals import refused

from accounting import Plan, budget
from accounting.errors import AccountingError
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError
from dpfed.mechanisms.soundness import require_forgetful
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.stages.chain import NoMemory, Stages
from dpfed.stages.encode import Encode

from ...rounds import DIGITS, configured

PRIVATE = ("privacy.clip_norm=0.5", "privacy.noise_multiplier=2.0", "method.error_feedback=true")


def config(method, *settings):
    more = ("federation.rounds=4", "local.steps=1", *PRIVATE)
    return configured(*more, *settings, start=DIGITS | {"privacy": {}}, method={"name": method}, local={"epochs": None})


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("signsgd", ()),
        ("fedavg-topk", ("method.keep=0.1", "federation.sampling=balls-and-bins", "privacy.adjacency=zero-out")),
        ("eden", ("method.options.bits=1", "federation.sampling=all", "privacy.adjacency=zero-out")),
        ("qsgd", ("federation.sampling=min-separation", "federation.separation=2")),
    ],
)
def test_a_private_run_remembers_errors_is_charged_alike_and_audited(tmp_path, method, settings):
    experiment = build(config(method, *settings))
    forgetful = build(config(method, *settings, "method.error_feedback=false"))
    assert experiment.privacy_target.mechanism == forgetful.privacy_target.mechanism
    outcome = federation.run(experiment, tmp_path / "run")
    plan = Plan(clients=60, cohort=12, delta=60**-1.1 if 60**-1.1 < 1e-4 else 1e-4)
    if method == "signsgd":
        stated = budget.epsilon(plan, noise_multiplier=2.0, rounds=4)
        assert outcome.summary["epsilon"] == pytest.approx(stated, rel=1e-3)
    assert not [one for one in audit_run(tmp_path / "run").checks if one.passed is False]


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        # The hypothesis of the adaptive account (docs/theory.md, Theorem 7).
        ("signsgd", ("federation.sampling=fixed",), "may replace another"),
        ("signsgd", ("federation.sampling=fixed", "privacy.adjacency=zero-out"), "may replace another"),
        ("signsgd", ("privacy.adjacency=replace-one",), "may replace another"),
        ("signsgd", ("federation.sampling=all", "privacy.adjacency=replace-one"), "may replace another"),
        ("signsgd", ("aggregation.lost.upload=1",), "aggregation.lost"),
        ("signsgd", ("privacy.release=uploads", "privacy.adjacency=zero-out"), "on a sum only"),
        ("signsgd", ("aggregation.kind=masked",), "is not built"),
        ("signsgd", ("audit.canaries=4",), "canaries"),
        ("stochastic-sign", ("privacy.noise=coins", "privacy.noise_multiplier="), "on a sum only"),
        ("dp-fedavg", ("privacy.noise=discrete-gaussian",), "on a sum only"),
        ("dp-fedavg", (), "changes rows"),
    ],
)
def test_elsewhere_it_is_refused(method, settings, words):
    refused((ConfigError, AccountingError), words, lambda: build(config(method, *settings)))


class Peeks(Encode):
    """A custom encoder that might remember rows of all clients."""


def test_a_custom_stage_in_the_chain_closes_the_memory():
    experiment = build(config("signsgd"))
    stages = experiment.method.stages
    wire = stages.wire
    fields = {name: getattr(wire, name) for name in ("scheme", "seeds", "sizes_secret", "feedback")}
    custom = stages.replace_stage(Encode, lambda stage: Peeks(**fields))
    assert stages.has_error_feedback
    assert not isinstance(stages.memory({}), NoMemory)
    assert not custom.has_error_feedback
    assert isinstance(custom.memory({}), NoMemory)
    refused(ConfigError, "remembers", require_forgetful, custom, experiment.method.clients)


def test_noise_that_others_make_closes_the_memory():
    experiment = build(config("signsgd"))
    private = experiment.method.stages.private
    assert private.covers_feedback
    fixed = build(config("signsgd", "method.error_feedback=false", "federation.sampling=fixed")).method
    assert not fixed.stages.private.covers_feedback
    swapped = Stages(*(fixed.stages.private if one is private else one for one in experiment.method.stages))
    assert not swapped.has_error_feedback
