"""Keys that a run would not look at are refused; beside the choice that gives them a meaning they are not."""

import pytest

from dpfed.errors import ConfigError
from dpfed.runs.experiment import check_configuration

from ...rounds import DIGITS, configured

INTEGERS = {"clip_norm": 0.5, "noise_multiplier": 2.0, "noise": "skellam"}


def checked(method, *settings, privacy=None):
    start = DIGITS | {"privacy": {}}
    check_configuration(configured(*settings, start=start, method={"name": method}, privacy=privacy))


MASKED, POSTERIOR, ADAM = "aggregation.kind=masked", "server.rule=posterior", "local.optimizer=adam"
IDLE = [
    ("fedavg", "server.prior=3.0", [], None),
    ("fedpm", "server.reset_every=4", [], None),
    ("fedpm", "server.momentum=0.5", [POSTERIOR], None),
    ("fedpm", "server.learning_rate=0.5", [POSTERIOR], None),
    ("fedavg", "aggregation.neighbours=20", [], None),
    ("dp-fedavg", "aggregation.threshold=0.9", [], INTEGERS),
    ("fedavg", "aggregation.steps=50", [], None),
    ("fedpm", "aggregation.rotation=false", [MASKED], None),
    ("stochastic-sign", "aggregation.wrap_probability=1e-3", [MASKED, "method.options.bound=0.1"], None),
    ("fedavg", "aggregation.clip_norm=1.0", [], None),
    ("dp-fedavg", "aggregation.clip_norm=1.0", [MASKED], INTEGERS),
    ("fedpm", "privacy.missing_shares=charged", [], {"clip_norm": 0.5}),
    ("qsgd", "privacy.missing_shares=charged", [], {"clip_norm": 0.5, "noise_multiplier": 2.0, "release": "uploads"}),
    ("fedavg", "aggregation.dropout_at=late", [], None),
    ("fedpm", "local.momentum=0.5", [ADAM], None),
    ("fedmask", "mask.forward=mean", [], None),
    ("dp-fedavg", "aggregation.weights=uniform", [], {"clip_norm": 0.5, "noise_multiplier": 2.0}),
    ("fedpm", "aggregation.weights=uniform", [], None),
    ("qsgd", "aggregation.weights=uniform", [MASKED], None),
    ("fed-smp-randk", "aggregation.weights=uniform", ["method.keep=0.5", "method.noiseless=true"], None),
    ("fedavg", "data.public_from=mnist", [], None),
    ("fedpm", "method.public_epochs=2", ["data.public=10"], None),
    ("fedpm", "method.public_epochs=2", ["method.keep=0.5"], None),
    ("fedpm", "privacy.correction=none", [], {"clip_norm": 0.5}),
]


@pytest.mark.parametrize(("method", "setting", "others", "privacy"), IDLE)
def test_a_key_without_effect_is_refused_by_its_name(method, setting, others, privacy):
    checked(method, *others, privacy=privacy)
    refused = rf"{setting.split('=')[0]}(=.* has no effect here: it is for | with .*: is for )"
    with pytest.raises(ConfigError, match=refused):
        checked(method, *others, setting, privacy=privacy)


@pytest.mark.parametrize(
    ("method", "settings", "privacy"),
    [
        ("fedpm", ["server.prior=3.0", "server.reset_every=4", POSTERIOR], None),
        ("fedpm", ["server.momentum=0.5", "local.momentum=0.5", "mask.forward=mean"], None),
        ("dp-fedavg", ["aggregation.steps=50", "aggregation.rotation=false"], INTEGERS),
        (
            "fedavg",
            [MASKED, "aggregation.neighbours=20", "aggregation.threshold=0.9", "aggregation.clip_norm=1.0"],
            None,
        ),
        ("fedavg", ["aggregation.dropout_at=late", "aggregation.dropout=0.1"], None),
        ("fedavg", ["server.prior=1.0", "aggregation.neighbours=0", "aggregation.rotation=true"], None),
    ],
)
def test_beside_what_it_is_for_or_at_its_default_it_is_not(method, settings, privacy):
    checked(method, *settings, privacy=privacy)
