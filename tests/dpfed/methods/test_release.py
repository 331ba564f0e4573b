"""Runs for release: every method either runs with all that a release needs, or is refused with all reasons at once."""

import json
import tomllib

import pytest

from accounting.mechanisms import unsampled
from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import IntegerRecords
from dpfed.methods import catalogue
from dpfed.methods.catalogue import all_methods
from dpfed.runs import loop
from dpfed.runs.experiment import build

COINS = ("privacy.noise=coins", "privacy.noise_multiplier=")
RELEASED = {
    "dp-fedavg": (),
    "fed-smp-randk": ("method.keep=0.2",),
    "fed-smp-topk": ("method.keep=0.2", "data.public=137"),
    "fedscalar": ("method.shared=true",),
    "fedpm": ("privacy.noise_multiplier=", "privacy.clip_norm=0.8", "mask.edge=0.2", "mask.spread=0.0"),
    "stochastic-sign": (*COINS, "method.options.bound=0.01"),
    "fedmrns": (*COINS, "method.options.alpha=0.01", "method.options.noise=bernoulli", "method.shared=true"),
}
"""Settings with which a method can be released; each other method has none."""


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", RELEASED)
def test_a_method_that_can_be_released_runs(tiny_config, tmp_path, name):
    config = tiny_config(f"method.name={name}", *RELEASED[name], "run.release=true", "federation.rounds=1")
    summary = loop.run(build(config), tmp_path / "run").summary
    assert (summary["randomness"], summary["for_release"]) == ("secure", True)
    assert summary["noise"] in ("discrete-gaussian", "coins")
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["run"]["randomness"] == "secure"
    coins = ("fedpm", "stochastic-sign", "fedmrns")
    assert written["privacy"]["noise"] == ("coins" if name in coins else "discrete-gaussian")


@pytest.mark.parametrize("name", sorted(all_methods().keys() - RELEASED.keys()))
@pytest.mark.parametrize("without", [["privacy"], []], ids=["public", "private"])
def test_a_method_that_cannot_be_released_is_refused_once(tiny_config, name, without):
    masks = ["privacy.noise_multiplier="] if all_methods()[name].sends_masks and not without else []
    config = tiny_config(f"method.name={name}", "run.release=true", *masks, without=without)
    with pytest.raises(ConfigError, match=r"run\.release=true \(--release\) with method\.name=.*: is refused") as said:
        build(config)
    assert "method.name: " in str(said.value)
    assert "Use dp-fedavg" in str(said.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(catalogue.tables_of_methods()))
def test_presets(tmp_path, name):
    tables = override(catalogue.preset_tables(f"{name}-digits"), ["run.release=true", "federation.rounds=1"])
    try:
        made = build(parse(tables, source=name))
    except ConfigError as error:
        assert "run.release=true (--release)" in str(error)
    else:
        assert loop.run(made, tmp_path / "run").summary["for_release"] is True


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("kind", ["plain", "masked", "protocol"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_every_sum_has_exact_noise(tiny_config, kind, sampling):
    config = tiny_config("run.release=true", f"aggregation.kind={kind}", f"federation.sampling={sampling}")
    made = build(config)
    assert unsampled(made.privacy_target.mechanism).kind == "discrete-gaussian"
    assert made.method.randomness.name == "secure"


def test_all_reasons_and_both_keys_are_named_at_once(tiny_config):
    """Keys that are given and contradict the release are named with it, and none of them is changed silently."""
    with pytest.raises(ConfigError) as said:
        build(
            tiny_config(
                "run.release=true",
                "run.randomness=simulated",
                "privacy.noise=gaussian",
                "privacy.adaptive.quantile=0.5",
                "privacy.release=uploads",
                "method.error_feedback=true",
            )
        )
    for key in ("run.release=true", "run.randomness='simulated'", "privacy.noise='gaussian'", "[privacy.adaptive]",
                "privacy.release='uploads'", "method.error_feedback"):  # fmt: skip
        assert key in str(said.value)


def test_other_exact_noise_is_left_as_it_is(tiny_config):
    assert build(tiny_config("run.release=true", "privacy.noise=skellam")).config.privacy.noise == "skellam"


def test_private_records_have_exact_noise(tiny_config):
    record = ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0", "local.batch_size=16")
    config = tiny_config("method.name=fedavg", *record, "run.release=true", without=["privacy"])
    assert config.local.record.noise == "discrete-gaussian"
    assert isinstance(build(config).method.clients.record, IntegerRecords)


def test_the_switch(tmp_path, capsys):
    """`dpfed run --release` and --resume, from a folder and from the preset; the audit passes."""
    out = str(tmp_path / "run")
    settings = ("model.hidden=[8]", "federation.rounds=2", "local.epochs=1", "privacy.epsilon=")
    small = [word for one in (*settings, "privacy.noise_multiplier=1") for word in ("--set", one)]
    assert status(["run", "dp-fedavg-digits", "--release", *small, "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["for_release"] is True
    # The noise comes from the operating system: a correct run fails with probability 1e-6 at most.
    assert audit_run(tmp_path / "run", confidence=1 - 1e-6).verdict == "pass"
    (tmp_path / "run" / "summary.json").unlink()
    assert status(["run", "dp-fedavg-digits", "--release", *small, "--out", out, "--resume"]) == 0
    assert status(["run", "--out", out, "--resume"]) == 0
    assert status(["run", "dp-fedavg-digits", "--release", "--set", "run.release=false", "--out", out]) == 2
    assert "contradict" in capsys.readouterr().err


def test_clients_of_a_release_train_one_by_one(tiny_config):
    """Side by side a client's update depends on the other clients' numbers of samples, at a kink of the network in
    all: one client moved a clipped sum by 10.6 C."""
    made = build(tiny_config("run.release=true"))
    assert made.method.clients.plan.strategy == "loop"
    assert build(tiny_config()).method.clients.plan.strategy == "vmap"
    with pytest.raises(ConfigError, match=r"local\.strategy='vmap'.*Use 'auto' or 'loop'"):
        build(tiny_config("run.release=true", "local.strategy=vmap"))
