"""Keys that only some methods have: what specification say is what runs accept."""

import pytest

from dpfed.config.tables import Config, override, parse
from dpfed.errors import ConfigError
from dpfed.methods import catalogue
from dpfed.methods.catalogue import METHODS
from dpfed.methods.keys import differs_from_default, methods_by_key
from dpfed.runs.experiment import check_configuration

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
    config = parse(override(catalogue.preset_tables("dp-fedavg-digits"), ["method.keep=0.5"]), source="test")
    with pytest.raises(
        ConfigError, match=r"method.keep=0.5 .*'dp-fedavg'.* it is for .*fed-smp-randk.* Remove the key"
    ):
        check_configuration(config)
