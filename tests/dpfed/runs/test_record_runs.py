"""Runs whose records are private: what is charged, stated, stopped, resumed and refused."""

import json
import warnings

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from accounting import Composed, Ledger, Plan, budget
from accounting.compose.histories import worst_composition
from accounting.mechanisms import unsampled
from dpfed.clients.records import RecordGradients, WholeGradients
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError, RunError
from dpfed.report.privacy_text import privacy_statement
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import killed_before_checkpoint

EXACT = ("run.randomness=secure", "local.record.noise=discrete-gaussian")
RECORD = ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0", "local.batch_size=16")


@pytest.fixture
def config(tiny_config):
    """1,438 records over 60 clients: 23 or 24 each, so that batches of 16 take 2 steps an epoch."""

    def with_records(*settings, without=("privacy",)):
        return tiny_config("method.name=fedavg", *RECORD, *settings, without=list(without))

    return with_records


def without_noise_multiplier(config):
    tables = config.to_dict()
    del tables["local"]["record"]["noise_multiplier"]
    return parse(tables, source="test")


def weights_of(folder):
    tensors = load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(
    "settings",
    [
        ("method.name=fedavg",),
        ("method.name=fedpm", "local.learning_rate=0.1", "local.optimizer=adam"),
        ("method.name=fedmask", "local.learning_rate=10.0", "local.momentum=0.5"),
        ("method.name=fedavg-topk", "method.keep=0.1", "method.error_feedback=true"),
        ("method.name=qsgd",),
        ("method.name=fedmrn",),
        ("method.name=fedsparsify",),
    ],
    ids=lambda settings: settings[0].partition("=")[2],
)
def test_every_way_of_training_runs_and_the_summary_states_the_record(config, tmp_path, settings):
    outcome = federation.run(build(config(*settings)), tmp_path / "run")
    summary, book = outcome.summary, Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert book.header.unit == summary["unit"] == "record"
    assert summary["epsilon"] == book.guarantee(1e-5).epsilon == outcome.metrics[-1]["epsilon"] > 0
    assert summary["lower_bound"] == pytest.approx(summary["epsilon"], rel=1e-3)
    assert (summary["adjacency"], summary["delta"]) == ("add-remove", 1e-5)
    assert (summary["noise_multiplier"], summary["clip_norm"]) == (1.0, 1.0)
    assert any("the unit is a record" in note for note in summary["not_protected"])
    assert privacy_statement(outcome.record).startswith("Record-level differential privacy: epsilon at most")


def test_each_client_is_charged_for_its_own_rounds(config, tmp_path):
    """Epsilon from the cohorts that the seed draws, counted by hand."""
    experiment = build(config("federation.rounds=6"))
    sizes = experiment.method.clients.partition.sizes
    taken = np.zeros(60, dtype=int)
    for round in range(6):
        taken[experiment.method.sampler.sample(experiment.method.randomness, round)] += 1
    outcome = federation.run(experiment, tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    steps = {}
    for release in book.releases:
        for part in release.steps:
            for client in part.clients:
                steps[client] = steps.get(client, 0) + part.count
                assert part.mechanism.sampling.probability == 16 / sizes[client]
    assert steps == {client: 2 * taken[client] for client in range(60) if taken[client]}
    assert taken.max() < 6
    assert outcome.summary["epsilon"] < book.guarantee(1e-9).epsilon


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_summary_agrees_with_the_accountants_of_opacus(config, tmp_path, accountant):
    accountants = pytest.importorskip("opacus.accountants")
    summary = federation.run(build(config(f"local.record.accountant={accountant}")), tmp_path / "run").summary
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    one = worst_composition(book.histories().distinct(), delta=summary["delta"])
    assert isinstance(one, Composed)
    peer = accountants.RDPAccountant() if accountant == "rdp" else accountants.PRVAccountant()
    peer.history = [(1.0, part.sampling.probability, count) for part, count in one.parts]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = peer.get_epsilon(summary["delta"])
    assert summary["accountant"] == accountant
    assert summary["epsilon"] == pytest.approx(theirs, rel=0.01)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("sampling", ["all", "poisson", "fixed"])
def test_noise_is_calibrated_to_the_budget(config, tmp_path, sampling):
    cohort = 60 if sampling == "all" else 12
    settings = (f"federation.sampling={sampling}", f"federation.cohort={cohort}", "local.record.epsilon=4.0")
    summary = federation.run(build(without_noise_multiplier(config(*settings))), tmp_path / "run").summary
    assert (summary["rounds"], summary["stopped_by"]) == (3, "rounds")
    assert summary["epsilon"] <= 4.0
    if sampling == "all":
        assert summary["epsilon"] >= 4.0 * (1 - 1e-3)


@pytest.mark.slow
def test_the_run_stops_before_the_round_in_which_a_client_would_exceed_the_budget(config, tmp_path):
    free = federation.run(build(config("federation.rounds=12")), tmp_path / "free")
    epsilons = [record["epsilon"] for record in free.metrics]
    stop = next(i for i in range(4, 12) if epsilons[i] > epsilons[i - 1])
    budget = epsilons[stop - 1] * 1.0001
    settings = ("federation.rounds=12", f"local.record.epsilon={budget}")
    summary = federation.run(build(config(*settings)), tmp_path / "run").summary
    assert (summary["stopped_by"], summary["rounds"]) == ("budget", stop)
    assert summary["epsilon"] <= budget
    with pytest.raises(
        RunError, match=r"^local\.record\.epsilon: not even one round fits.*allowed is 0\.01\. Raise local"
    ):
        federation.run(build(config("local.record.epsilon=0.01")), tmp_path / "none")


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("settings", [(), ("method.name=fedpm",), ("server.momentum=0.9",)])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(config, tmp_path, monkeypatch, settings):
    chosen = config("federation.rounds=4", *settings)
    whole = federation.run(build(chosen), tmp_path / "whole")
    killed_before_checkpoint(build(chosen), tmp_path / "run", 3)
    resumed = federation.run(build(chosen), tmp_path / "run", resume=True)
    for name in ("model.safetensors", "ledger.jsonl", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert resumed.summary["epsilon"] == whole.summary["epsilon"]


@pytest.mark.slow
def test_secure_noise_and_batches_are_new_in_every_run_and_a_repeated_round_is_charged_again(
    config, tmp_path, monkeypatch
):
    full = config("federation.sampling=all", *EXACT)
    whole = federation.run(build(full), tmp_path / "whole")
    killed_before_checkpoint(build(full), tmp_path / "run", 2)
    resumed = federation.run(build(full), tmp_path / "run", resume=True)
    assert not weights_of(tmp_path / "whole").equal(weights_of(tmp_path / "run"))
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").releases) == 4
    assert resumed.summary["epsilon"] > whole.summary["epsilon"]
    assert resumed.metrics[-1]["epsilon"] == resumed.summary["epsilon"]
    assert resumed.summary["interrupted_charges"] == 1


def test_floating_point_noise_of_local_steps_is_not_called_fit_for_release(config):
    with pytest.raises(ConfigError, match=r"run\.randomness='secure' with local\.record\.noise='gaussian'"):
        build(config("run.randomness=secure"))
    assert any("come from the seed" in note for note in build(config()).not_protected)
    assert any("come from the seed" in note for note in build(config(EXACT[1])).not_protected)


def test_a_run_of_records_for_release(config, tmp_path):
    """run.release sets randomness and noise; the ledger, the summary and the page say what was added."""
    small = ("federation.rounds=2", "federation.sampling=all", "model.hidden=[2]", "data.train_samples=240")
    experiment = build(config("run.release=true", *small))
    record = experiment.method.clients.record
    assert experiment.config.run.randomness == "secure"
    assert experiment.config.local.record.noise == "discrete-gaussian"
    done = federation.run(experiment, tmp_path / "run")
    assert done.summary["noise"] == "discrete-gaussian"
    assert done.summary["for_release"] is True
    assert not any("come from the seed" in note for note in done.summary["not_protected"])
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.header.randomness == "secure"
    assert {unsampled(part.mechanism) for line in ledger.releases for part in line.steps} == {record.noise}
    assert done.summary["epsilon"] == ledger.guarantee(experiment.privacy_target.delta).epsilon
    gaussian = build(config(*small))
    beside = federation.run(gaussian, tmp_path / "gaussian").summary["epsilon"]
    assert beside < done.summary["epsilon"] < 1.03 * beside  # rounding lengthens a gradient's bound by 1%


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("run.release=true", "local.record.noise=gaussian"), r"noise='gaussian': the last bits of floating-point"),
        (("run.release=true", "run.on_error=raise"), r"run\.on_error='raise'"),
        ((*EXACT, "run.on_error=raise"), r"run\.on_error='raise' with run\.randomness='secure'"),
        (("run.release=true", "run.randomness=simulated"), r"run\.randomness='simulated'"),
        (("local.record.steps=100.0",), r"requires local\.record\.noise='discrete-gaussian'"),
    ],
)
def test_what_no_run_of_records_for_release_may_have(config, settings, words):
    refused(ConfigError, words, lambda: build(config(*settings)))


def test_an_exception_on_a_clients_record_shows_in_no_released_file(config, tmp_path, monkeypatch):
    def failing(real):
        def fails(self, inputs, labels, within=None):
            if (labels == 3).any():
                raise RuntimeError("a three")
            return real(self, inputs, labels, within)

        return fails

    small = ("federation.rounds=1", "federation.sampling=all", "model.hidden=[2]", "data.train_samples=240")
    experiment = build(config("run.release=true", *small))
    for gradients in (RecordGradients, WholeGradients):
        monkeypatch.setattr(gradients, "__call__", failing(gradients.__call__))
    done = federation.run(experiment, tmp_path / "run")
    assert done.summary["rounds"] == 1
    for name in ("metrics.jsonl", "summary.json", "ledger.jsonl"):
        assert "three" not in (tmp_path / "run" / name).read_text()
    assert json.loads((tmp_path / "run" / "diagnostics.jsonl").read_text())["failed"] > 0


def test_what_cannot_be_stated_or_run_is_refused(config, tiny_config):
    both = parse(override(tiny_config().to_dict(), RECORD), source="test")
    refused(ConfigError, "one unit of privacy", build, both)
    refused(ConfigError, "vmap", lambda: build(config("local.strategy=vmap")))
    refused(ConfigError, "give noise_multiplier, or epsilon", lambda: build(without_noise_multiplier(config())))
    refused(ConfigError, "clip_norms: unknown key", config, "local.record.clip_norms=1.0")


def test_a_delta_above_one_over_the_records_is_noted(config, tmp_path):
    summary = federation.run(build(config("local.record.delta=0.1", "federation.rounds=1")), tmp_path / "run").summary
    assert any("it allows releasing one record's data outright" in note for note in summary["notes"])


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("settings", [(), EXACT], ids=["gaussian", "integers"])
def test_a_budget_of_records_is_what_a_run_states(config, tmp_path, settings):
    done = federation.run(build(config("federation.sampling=all", "federation.rounds=2", *settings)), tmp_path / "run")
    size = done.summary["parameters"]
    kind = {"mechanism": "discrete-gaussian", "dimension": size} if settings else {}
    plan = Plan(clients=60, unit="record", records=23, batch_size=16, delta=done.summary["delta"], **kind)
    assert budget.epsilon(plan, noise_multiplier=1.0, rounds=2) == done.summary["epsilon"]
