"""`dpfed config`: what it says of a key is what configurations accept."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
from refusals import refused

from dpfed.cli import status
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError, nearest_name
from dpfed.methods import catalogue
from dpfed.methods.keys import EXCLUDES, keys_of_table, schema_of, table_descriptions
from dpfed.runs.experiment import build

DOCS = Path(__file__).parents[3] / "docs"


def output(capsys, *arguments):
    assert status(["config", *arguments]) == 0
    return capsys.readouterr().out


def every_key():
    return [one for table in table_descriptions() for one in keys_of_table(table)]


def test_the_page_is_the_generated_one(capsys):
    assert (DOCS / "configuration.md").read_text() == output(capsys, "--markdown")


def test_every_key_has_a_type_a_default_and_a_meaning(capsys):
    listed = json.loads(output(capsys, "--json"))
    assert len(listed) > 85
    for one in listed:
        assert all((one["type"], one["default"], one["meaning"].endswith("."))), one
        stated = "default: " in one["meaning"].lower() or "not given" in one["meaning"]
        assert (one["default"] == "see meaning") == stated, f"{one['name']} states its default twice, or not at all"


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", ["fed-smp-randk-digits", "fedpm-private-digits", "eden-cifar-10", "qsgd-shakespeare"])
def test_a_file_to_begin_with_is_the_preset(capsys, name):
    written = output(capsys, "--new", name)
    assert written.startswith("#:schema ./dpfed.schema.json\n")
    assert tomllib.loads(written) == catalogue.preset_tables(name)


def test_the_schema_accepts_presets_and_refuses_what_the_tables_refuse():
    schema = schema_of()
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.check_schema(schema)
    for name in catalogue.preset_names():
        validator.validate(catalogue.preset_tables(name))
    for setting in (
        "federation.rounds=0",
        "federation.round=3",
        "privacy.noise=laplace",
        "mask.edge=0.5",
        "run.seed=-1",
    ):
        tables = override(catalogue.preset_tables("fedpm-private-digits"), [setting])
        refused(jsonschema.ValidationError, "", validator.validate, tables)
        refused(ConfigError, "", parse, tables, source="test")


ACCEPTED = {
    "local.epochs": ("fedavg-digits", "local.epochs=2"),
    "local.record": ("fedavg-digits", "local.record={ clip_norm = 1.0, noise_multiplier = 1.0 }"),
    "method.keep": ("fedavg-topk-digits", "method.keep=0.5"),
    "aggregation.lost": ("fedavg-digits", "aggregation.lost={ upload = 1 }"),
    "method.error_feedback": ("qsgd-digits", "method.error_feedback=true"),
}
OTHERS = {
    "local.steps": "local.steps=3",
    "privacy": "privacy={ clip_norm = 1.0, noise_multiplier = 1.0 }",
    "method.k": "method.k=9",
    "aggregation.dropout": "aggregation.dropout=0.1",
}


@pytest.mark.parametrize(("one", "other"), [(one, other) for one, others in EXCLUDES.items() for other in others])
def test_what_excludes_each_other_is_refused_together_and_accepted_alone(one, other):
    preset, setting = ACCEPTED[one]
    alone = override(catalogue.preset_tables(preset), [setting])
    build(parse(alone, source="alone"))
    name, _, value = OTHERS[other].partition("=")
    beside = override(alone, [f"{name}={value}"]) if "." in name else alone | override({}, [f"x.{name}={value}"])["x"]
    refused((ConfigError, ValueError), "", lambda: build(parse(beside, source="both")))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("clip", "clip_norm"),
        ("ClipNorm", "clip_norm"),
        ("lcip_norm", "clip_norm"),
        ("multiplier", "noise_multiplier"),
        ("banana", None),
        ("", None),
    ],
)
def test_a_hint_is_what_was_meant_or_none(given, meant):
    assert nearest_name(given, ["linf_clip", "clip_norm", "noise_multiplier", "epsilon"]) == meant


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "dp-fedavg-digits", "--set", "privacy.clip=3"], "Did you mean 'clip_norm'?"),
        (["run", "dp-fedavg-digits", "--set", "federation.rounds=0"], "`dpfed config federation.rounds`"),
        (["run", "fedsmp"], "Did you mean 'fed-smp-"),
        (["run", "dp-fedavg-digits", "--rounds", "3"], "--set federation.rounds=VALUE"),
        (["sweep", "x.toml", "--learning-rate", "3"], "--set local.learning_rate=VALUE or --set server.learning_rate"),
        (["config", "privacy.clip"], "Did you mean 'privacy.clip_norm'?"),
        (["config", "privacy", "--schema"], "give one of"),
    ],
)
def test_a_wrong_word_gets_one_message_with_the_right_one(capsys, arguments, words):
    assert status(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_setting_without_a_value_removes_the_key():
    tables = override({"privacy": {"epsilon": 3.0, "clip_norm": 1.0}}, ["privacy.epsilon=", "run.seed="])
    assert tables == {"privacy": {"clip_norm": 1.0}, "run": {}}


def test_one_key_is_told_with_its_methods_and_what_it_needs(capsys):
    words = output(capsys, "method.purge")
    assert re.search(r"methods +fedsparsify", words)
    assert "only with server.rule='posterior'" in output(capsys, "server.prior")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fedsmp-digits", "fed-smp-topk-digits"),
        ("fed-smp-mnist", "fed-smp-topk-mnist"),
        ("fedmp-digits", "fedpm-digits"),
        ("DPFedAvg_digits", "dp-fedavg-digits"),
    ],
)
def test_a_hint_for_a_preset_keeps_method_and_data_set(given, meant):
    assert nearest_name(given, catalogue.preset_names()) == meant
