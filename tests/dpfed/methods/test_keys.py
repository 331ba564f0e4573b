"""Keys that only some methods have, and keys that a run would not look at."""

import pytest

from dpfed.config.tables import Config, override, parse
from dpfed.errors import ConfigError
from dpfed.methods import catalogue
from dpfed.methods.catalogue import METHODS
from dpfed.methods.keys import differs_from_default, methods_by_key
from dpfed.runs.experiment import check_configuration

from ...rounds import DIGITS, configured, preset

AWAY = {
    "method.keep": "0.5",
    "method.k": "7",
    "method.options": "{ levels = 4 }",
    "method.error_feedback": "true",
    "method.shared": "true",
    "method.stays": "true",
    "method.public_epochs": "3",
    "method.noiseless": "true",
    "method.progressive": "false",
    "method.stochastic": "false",
    "method.train_masked": "false",
    "method.purge": "clients",
    "mask": "{ edge = 0.3 }",
}
"""A value away from the default for every key that only some methods take."""


def refused(method: str, key: str) -> bool:
    """Whether the digits preset with this key is refused because the method does not take it."""
    tables = catalogue.preset_tables(f"{method}-digits")
    given = override({}, [f"at.it={AWAY[key]}"])["at"]["it"]
    tables = override(tables, [f"{key}={AWAY[key]}"]) if "." in key else tables | {key: given}
    try:
        check_configuration(parse(tables, source="test"))
    except ConfigError as error:
        return "does not take it" in str(error)
    return False


def test_every_such_key_is_in_the_configuration_and_tried_here():
    assert set(methods_by_key(METHODS)) == set(AWAY)
    for key in AWAY:
        *path, name = key.split(".")
        table = Config.model_fields[path[0]].annotation if path else Config
        assert name in table.model_fields


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("key", AWAY)
def test_a_key_is_refused_by_exactly_those_that_do_not_take_it(key):
    assert [name for name in METHODS if not refused(name, key)] == methods_by_key(METHODS)[key]


def test_presets_set_no_key_that_their_method_does_not_take():
    for name in catalogue.preset_names():
        config = parse(catalogue.preset_tables(name), source=name)
        others = set(methods_by_key(METHODS)) - set(METHODS[config.method.name].takes)
        assert not [key for key in others if differs_from_default(config, key)], name


def test_the_message_names_the_key_its_value_and_who_takes_it():
    config = preset("dp-fedavg-digits", "method.keep=0.5")
    with pytest.raises(
        ConfigError, match=r"method.keep=0.5 .*'dp-fedavg'.* it is for .*fed-smp-randk.* Remove the key"
    ):
        check_configuration(config)


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
