"""A method of a user's that trains masks, as FedPM does, with a server prior and local training that are its own."""

import pytest

from dpfed import methods
from dpfed.audit.round.method_setting import audit_upload
from dpfed.clients.masks import MaskTraining
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.methods import catalogue
from dpfed.methods.catalogue import method_specification
from dpfed.runs import loop
from dpfed.runs.experiment import build
from dpfed.server.rules import BetaPosterior

SMALL = ("model.hidden=[8]", "federation.clients=12", "federation.cohort=6", "federation.rounds=2", "local.epochs=1")

PRESET = {"mask": {"edge": 0.2, "spread": 0.0, "readout": "mean"}}


def sampled_masks(s):
    """Bernoulli samples of trained probabilities."""
    return s.coins(s.coordinates_of_signs())


def under_the_mean(parts):
    """Train under the mean of all masks."""
    return parts.masks(forward="mean")


def with_a_strong_prior(parts):
    """Return the posterior of a Beta(3, 3) prior that is never reset."""
    return BetaPosterior(prior=3.0, reset_every=0, edge=parts.config.mask.edge)


@pytest.fixture
def registered():
    register = methods.register(
        "my-masks", masks=True, preset=PRESET, course=under_the_mean, server=with_a_strong_prior
    )
    return register(sampled_masks)


def configured(*settings, privacy=None):
    tables = override(catalogue.preset_tables("my-masks-digits"), [*SMALL, *settings])
    return parse(tables if privacy is None else {**tables, "privacy": privacy}, source="test")


def test_its_specification_is_that_of_masks(registered):
    specification = method_specification("my-masks")
    assert specification.sends_masks
    assert specification.what == "Bernoulli samples of trained probabilities"
    assert method_specification("fedpm").private_with == specification.private_with


def test_two_private_rounds_are_trained_noised_and_charged(registered, tmp_path):
    experiment = build(configured(privacy={"clip_norm": 0.5, "accountant": "rdp"}))
    assert repr(experiment.method.stages).startswith("Project > ClipMoves > PrivateCoins > ")
    assert isinstance(experiment.method.clients.course, MaskTraining)
    assert experiment.method.clients.course.forward == "mean"
    assert experiment.method.server == BetaPosterior(prior=3.0, reset_every=0, edge=0.2)
    assert isinstance(experiment.privacy_target.private, PrivateCoins)
    outcome = loop.run(experiment, tmp_path / "run")
    assert outcome.summary["rounds"] == 2
    assert 0 < outcome.summary["epsilon"] <= 20
    assert outcome.summary["method"] == "my-masks"


def test_without_privacy_masks_are_drawn_without_a_bound(registered, tmp_path):
    experiment = build(configured())
    assert experiment.privacy_target is None
    assert repr(experiment.method.stages) == "Project > DropNotFinite > Coins > MaskWire"
    outcome = loop.run(experiment, tmp_path / "run")
    assert outcome.summary["epsilon"] is None


def test_its_upload_is_audited(registered):
    small = ("model.hidden=[2]", "privacy.epsilon=100", "privacy.clip_norm=0.6")  # no clip is searched
    done = audit_upload("my-masks", settings=small)
    assert done.verdict != "fail"
    assert all(check.passed for check in done.checks)


@pytest.mark.parametrize(
    ("settings", "privacy", "words"),
    [
        (("server.rule=adam",), None, "would leave the range of probabilities"),
        (("local.weight_decay=0.1",), None, "would pull masks' scores to 0"),
        (("method.shared=true",), None, "does not take it"),
        ((), {"epsilon": 3.0, "trials": 4}, "for fedpm with mask.bound"),
        ((), {"clip_norm": 1.0, "noise": "gaussian"}, "noise_multiplier, or epsilon"),
        ((), {"clip_norm": 1.0, "noise": "gaussian", "noise_multiplier": 1.0}, "their noise is Bernoulli samples"),
    ],
)
def test_what_masks_refuse_is_refused(registered, settings, privacy, words):
    with pytest.raises(ConfigError, match=words):
        build(configured(*settings, privacy=privacy))
