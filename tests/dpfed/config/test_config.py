"""Configurations: unknown and impossible values are one clear error each."""

import copy
import tomllib

import pytest
import tomli_w
from refusals import refused

from dpfed.config.tables import override, parse, parse_written_config, read_toml
from dpfed.errors import ConfigError, DataError
from dpfed.methods import catalogue
from dpfed.methods.catalogue import METHODS
from dpfed.runs.experiment import build

from ...rounds import DIGITS as TABLES


def tables_with(**changes):
    tables = copy.deepcopy(TABLES)
    for path, value in changes.items():
        table, _, key = path.partition("__")
        if key:
            tables.setdefault(table, {})[key] = value
        else:
            tables[table] = value
    return tables


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"federation__cohrt": 3}, r"federation\.cohrt: unknown key.*'cohort'"),
        ({"federaton": {}}, r"federaton: unknown key.*'federation'"),
        ({"privacy__adaptive": {"quantil": 0.5}}, r"privacy\.adaptive\.quantil.*'quantile'"),
        ({"privacy__noise_multiplier": -1.0}, r"privacy\.noise_multiplier=-1\.0"),
        ({"privacy__noise_multiplier": float("nan")}, r"privacy\.noise_multiplier=nan"),
        ({"privacy__noise_multiplier": 0.0}, r"greater than 0"),
        ({"privacy__delta": 1.0}, r"privacy\.delta=1\.0.*less than 1"),
        ({"privacy__delta": 0.0}, r"privacy\.delta=0\.0"),
        ({"privacy__clip_norm": float("inf")}, r"privacy\.clip_norm=inf"),
        ({"federation__clients": 0}, r"federation\.clients=0"),
        ({"federation__rounds": 2.5}, r"federation\.rounds=2\.5"),
        ({"federation__rounds": "3"}, r"federation\.rounds='3'"),
        ({"local__momentum": 1.0}, r"local\.momentum=1\.0"),
        ({"federation__sampling": "binomial"}, r"federation\.sampling='binomial'.*'poisson'"),
        ({"aggregation__kind": "secret"}, r"aggregation\.kind='secret'"),
        ({"method": {}}, r"method\.name: is missing"),
    ],
)
def test_a_wrong_value_names_its_key_and_what_is_allowed(changes, message):
    refused(ConfigError, f"(?s){message}", lambda: parse(tables_with(**changes), source="run.toml"))


def test_all_problems_come_at_once_and_name_the_file():
    with pytest.raises(ConfigError) as caught:
        parse(tables_with(federation__cohrt=1, privacy__delta=2.0), source="my.toml")
    assert str(caught.value).startswith("my.toml:")
    assert "cohrt" in str(caught.value)
    assert "delta" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"federation__cohort": 61}, "federation.cohort=61|cohort=61"),
        ({"federation__clients": 2000}, "clients=2000"),
        ({"method": {"name": "fed-smp-randk", "k": 0}}, r"method\.k=0"),
        ({"method": {"name": "fed-smp-randk", "k": 10**6}}, r"method\.k=1000000"),
        ({"method": {"name": "fed-smp-randk"}}, "exactly one"),
        ({"method": {"name": "dp-fedavg", "k": 3}}, "Remove the key"),
        ({"method": {"name": "fed-smp-tpk", "k": 3}}, "fed-smp-topk"),
        ({"method": {"name": "fed-smp-topk", "k": 3}}, r"data\.public=0"),
        ({"method": {"name": "fedavg"}}, "dp-fedavg"),
        ({"method": {"name": "fedavg-randk", "k": 3}}, "fedavg-randk is never private"),
        ({"federation__sampling": "fixed", "privacy__adjacency": "add-remove"}, "replace-one"),
        ({"privacy__placement": "clients"}, "secret cohort size"),
        ({"privacy": {"clip_norm": 1.0}}, "noise_multiplier, or epsilon"),
        ({"data__name": "digit"}, "digits"),
        ({"data__public": 1438}, "count=1438"),
        ({"model__name": "cnn"}, "known models"),
        ({"model": {"name": "fed-smp-cnn", "hidden": [3]}}, "hidden"),
        ({"local__steps": 3}, "exactly one"),
        ({"run__device": "tpu9"}, r"run\.device='tpu9'"),
        ({"run__spare_rounds": 10**16}, r"run\.spare_rounds=10000000000000000: "),
        ({"data__public": 10, "data__public_from": "digits", "method": {"name": "fed-smp-topk", "k": 3}}, "to clients"),
        ({"data__public": 10, "data__public_from": "nothing", "method": {"name": "fed-smp-topk", "k": 3}}, "nothing"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_when_it_is_built(changes, message):
    refused(ValueError, message, lambda: build(parse(tables_with(**changes), source="run.toml")))


def test_private_methods_need_privacy():
    tables = tables_with()
    del tables["privacy"]
    refused(ConfigError, "without \\[privacy\\]", lambda: build(parse(tables, source="run.toml")))


def test_a_missing_data_folder_says_what_is_expected(monkeypatch, tmp_path):
    monkeypatch.delenv("DPFED_DATA_DIR", raising=False)
    with pytest.raises((ConfigError, DataError), match="DPFED_DATA_DIR"):
        build(parse(tables_with(data__name="fashion-mnist"), source="run.toml"))
    with pytest.raises(DataError, match="FashionMNIST"):
        build(parse(tables_with(data__name="fashion-mnist", data__root=str(tmp_path)), source="run.toml"))


def test_settings_are_toml_values_or_bare_words():
    tables = override(TABLES, ["federation.rounds=7", "run.device=cpu", "privacy.adaptive.rate=0.5", "method.k=3"])
    assert tables["federation"]["rounds"] == 7
    assert tables["run"]["device"] == "cpu"
    assert tables["privacy"]["adaptive"] == {"rate": 0.5}
    assert TABLES["federation"]["rounds"] == 3


@pytest.mark.parametrize("setting", ["rounds=3", "federation.rounds", "federation.rounds.deep=3", "=3"])
def test_a_setting_that_names_nothing_is_refused(setting):
    refused(ConfigError, "--set", override, TABLES, [setting])


def test_an_unreadable_file_is_one_error(tmp_path):
    refused(ConfigError, "cannot be read", read_toml, tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    refused(ConfigError, "not TOML", read_toml, tmp_path / "bad.toml")


def test_the_resolved_configuration_reads_back_as_itself(tiny_config):
    config = tiny_config("privacy.adaptive.quantile=0.4")
    assert parse(tomllib.loads(tomli_w.dumps(config.to_dict())), source="again") == config


def test_cuda_graphs_of_earlier_versions_are_read_as_vmap(tiny_config):
    """A run folder of theirs, whose config.toml says "graphs", opens."""
    assert tiny_config("local.strategy=graphs").local.strategy == "vmap"


def test_every_preset_is_a_valid_configuration():
    names = catalogue.preset_names()
    assert {f"{method}-digits" for method in METHODS} <= set(names)
    for name in names:
        config = parse(catalogue.preset_tables(name), source=name)
        variant = "-private" if METHODS[config.method.name].sends_masks and config.privacy is not None else ""
        variant = "-noiseless" if config.method.noiseless else variant
        features = "" if config.data.features is None else "-features"
        assert name == f"{config.method.name}{variant}-{config.data.name}{features}"
        private = config.privacy is not None or config.method.noiseless
        assert METHODS[config.method.name].privacy in ("optional", "required" if private else "never")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_digits_preset_can_be_built(method):
    name = f"{method}-digits"
    build(parse(override(catalogue.preset_tables(name), []), source=name))


def test_an_unknown_preset_names_the_nearest():
    for given, meant in (("fed-smp-topk-digit", "fed-smp-topk-digits"), ("eden-fashion", "eden-fashion-mnist")):
        refused(ConfigError, meant, catalogue.preset_tables, given)


@pytest.mark.parametrize(
    ("text", "value"), [(".2", 0.2), ("-.5", -0.5), ("./data", "./data"), ("a.b", "a.b"), ("1", 1)]
)
def test_settings_may_be_written_without_a_leading_zero(text, value):
    assert override({}, [f"table.key={text}"]) == {"table": {"key": value}}


OF_0_2 = """
[data]
name = "digits"
orientations = 8
public = 0
partition = "iid"
partition_seed = 0

[model]
name = "mlp"
hidden = [8]

[federation]
clients = 60
cohort = 12
rounds = 3
sampling = "poisson"

[local]
learning_rate = 0.1
learning_rate_decay = 1.0
momentum = 0.0
schedule = "cosine"
optimizer = "sgd"
weight_decay = 0.0
epochs = 1
batch_size = 10

[method]
name = "dp-fedavg"

[privacy]
clip_norm = 1.0
clip_metric = "euclidean"
trials = 1
noise_multiplier = 1.0
factorisation = "optimised"
accountant = "best"
placement = "server"
missing_shares = "sized"

[aggregation]
kind = "plain"
dropout = 0.0
dropout_at = "any"
lost = {}
neighbours = 0
threshold = 0.6
rotation = true
wrap_probability = 1e-6

[server]
rule = "adagrad"
learning_rate = 0.01
momentum = 0.0
beta2 = 0.99
tau = 0.001
prior = 1.0
reset_every = 1
"""
"""config.toml of a run of 0.2: every key of a table was written, also those of other choices."""


def test_a_configuration_of_0_2_is_read_without_the_defaults_of_other_choices():
    config = parse_written_config(tomllib.loads(OF_0_2), source="config.toml")
    assert config.privacy.delta == 60**-1.1
    assert set(config.to_dict()["server"]) == {"rule", "learning_rate", "beta1", "tau", "start", "start_epochs"}
    assert "learning_rate_decay" not in config.to_dict()["local"]
    assert {"trials", "clip_metric"}.isdisjoint(config.to_dict()["privacy"])
    assert parse(config.to_dict(), source="again") == config
    build(config)


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        (["method.name=fed-smp-topk", "method.keep=0.1", "data.public=30"], "client-steps"),
        (["method.name=fed-smp-topk", "method.keep=0.1", "data.public=30", "method.public_epochs=1"], 1),
        (["method.name=dp-fedavg", "data.public=30"], 1),
    ],
)
def test_a_run_without_public_epochs_took_one_clients_number_of_steps(settings, read):
    config = parse_written_config(override(tomllib.loads(OF_0_2), settings), source="config.toml")
    assert config.method.public_epochs == read
    build(config)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("server.beta2", "0.5", r"server\.beta2 with server\.rule='adagrad': is for adam, yogi\. Remove it"),
        ("privacy.trials", "4", r"privacy\.trials with privacy\.noise='gaussian': is for coins"),
        ("aggregation.threshold", "0.9", r"with aggregation\.kind='plain': is for masked, protocol"),
        ("local.learning_rate_decay", "0.9", r"with local\.schedule='cosine': is for constant, step"),
        ("federation.separation", "3", r"with federation\.sampling='poisson': is for min-separation"),
        ("data.samples", "3", r"with data\.partition='iid': is for resampled"),
        ("local.schedule", "step", r"local\.schedule_rounds: is missing; local\.schedule='step' needs it"),
        ("local.schedule", "steps", r"local\.schedule='steps': must be one of 'constant', .*\[\.\.\.\]"),
    ],
)
def test_a_key_of_another_choice_is_refused_by_the_table(key, value, words):
    with pytest.raises(ConfigError, match=words):
        parse_written_config(override(tomllib.loads(OF_0_2), [f"{key}={value}"]), source="config.toml")
