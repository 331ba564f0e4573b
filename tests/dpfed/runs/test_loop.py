"""The loop: its folder, its budget, and what an interruption leaves."""

import json

import pytest
from refusals import refused

from accounting import Ledger, guarantee
from accounting.compose import lower_bound
from accounting.errors import ContradictoryBounds
from dpfed.cli import status
from dpfed.errors import RunError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import killed_before_checkpoint

SUMMARY_KEYS = {
    "method", "dataset", "model", "parameters", "clients", "cohort", "sampling", "rounds", "test_accuracy",
    "best_test_accuracy", "epsilon", "delta", "unit", "adjacency", "accountant", "noise_multiplier", "clip_norm",
    "uplink_bits_per_parameter", "uplink_bytes_per_client_round", "uplink_megabytes_total",
    "downlink_bytes_per_client_round", "seconds", "device", "seed", "stopped_by",
}  # fmt: skip


def test_a_run_leaves_its_whole_folder(tiny_config, tmp_path):
    outcome = federation.run(build(tiny_config()), tmp_path / "run")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "ledger.jsonl", "metrics.jsonl", "diagnostics.jsonl", "summary.json"} <= files
    assert "model.safetensors" in files
    assert set(outcome.summary) >= SUMMARY_KEYS
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == outcome.summary
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in metrics] == [1, 2, 3]
    assert metrics == outcome.metrics


def test_epsilon_comes_from_the_ledger_and_equals_the_mechanism_that_ran(tiny_config, tmp_path):
    experiment = build(tiny_config("federation.sampling=fixed"))
    outcome = federation.run(experiment, tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert len(book.releases) == 3
    assert outcome.summary["epsilon"] == book.guarantee(1e-4).epsilon
    assert outcome.summary["epsilon"] == guarantee(book.mechanism(), delta=1e-4).epsilon
    assert (outcome.summary["sampling"], outcome.summary["adjacency"]) == ("fixed", "replace-one")
    assert outcome.metrics[-1]["epsilon"] == pytest.approx(outcome.summary["epsilon"], rel=1e-6)


def test_published_files_do_not_hold_the_secret_cohort_size(tiny_config, tmp_path):
    federation.run(build(tiny_config()), tmp_path / "run")
    for name in ("metrics.jsonl", "summary.json", "ledger.jsonl"):
        text = (tmp_path / "run" / name).read_text()
        assert '"clipped"' not in text
        assert '"cohort": ' not in text or name == "summary.json"
        assert '"seconds"' not in text or name == "summary.json"
    sizes = [json.loads(line)["cohort"] for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert len(set(sizes)) > 1


def test_the_run_stops_before_the_round_that_would_exceed_the_budget(tiny_config, tmp_path):
    two_rounds = federation.run(build(tiny_config("federation.rounds=2")), tmp_path / "two").summary["epsilon"]
    budget = two_rounds * 1.001
    config = tiny_config("federation.rounds=50", f"privacy.epsilon={budget}")
    summary = federation.run(build(config), tmp_path / "many").summary
    assert (summary["stopped_by"], summary["rounds"]) == ("budget", 2)
    assert summary["epsilon"] <= budget


def test_a_budget_that_no_round_fits_is_one_error(tiny_config, tmp_path):
    words = (
        r"^privacy\.epsilon: not even one round fits\. It would bring epsilon to \d+\.\d+ at delta 0?\.?\S+; "
        r"allowed is 0\.001\. Raise privacy\.noise_multiplier or privacy\.epsilon\.$"
    )
    refused(RunError, words, lambda: federation.run(build(tiny_config("privacy.epsilon=1e-3")), tmp_path / "run"))


def test_a_secure_round_killed_after_its_charge_is_charged_again(tiny_config, tmp_path):
    config = tiny_config("run.randomness=secure", "privacy.noise=discrete-gaussian", "privacy.accountant=rdp")
    whole = federation.run(build(config), tmp_path / "whole")
    killed_before_checkpoint(build(config), tmp_path / "run", 2)
    resumed = federation.run(build(config), tmp_path / "run", resume=True)
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").releases) == 4
    assert resumed.summary["epsilon"] > whole.summary["epsilon"]
    assert resumed.metrics[-1]["epsilon"] == pytest.approx(resumed.summary["epsilon"], rel=1e-6)
    assert (whole.summary["interrupted_charges"], resumed.summary["interrupted_charges"]) == (0, 1)
    assert resumed.summary["for_release"]


def test_clients_without_samples_run(tiny_config, tmp_path):
    """1,437 samples over 60 clients leave nobody empty; an empty one is made by hand."""
    from dataclasses import replace

    import numpy as np

    experiment = build(tiny_config())
    partition = experiment.method.clients.partition
    sizes = partition.sizes.copy()
    sizes[1] += sizes[0]
    sizes[0] = 0
    emptied = replace(partition, offsets=np.concatenate([[0], np.cumsum(sizes)]))
    method = replace(experiment.method, clients=replace(experiment.method.clients, partition=emptied))
    assert federation.run(replace(experiment, method=method), tmp_path / "run").summary["rounds"] == 3


def contradict(monkeypatch):
    """A planted error of the account: a lower bound above any epsilon."""
    monkeypatch.setattr(lower_bound, "epsilon", lambda *_, **__: 1e6)


def test_no_round_is_run_where_the_bounds_of_the_plan_contradict(tiny_config, tmp_path, monkeypatch):
    experiment = build(tiny_config())
    contradict(monkeypatch)
    refused(ContradictoryBounds, "no epsilon is stated", federation.run, experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_bounds_contradict_at_its_end_is_saved_and_states_nothing(tmp_path, monkeypatch, capsys):
    real = federation.Run.run_one_round

    def contradicted(self, *arguments):
        contradict(monkeypatch)
        return real(self, *arguments)

    monkeypatch.setattr(federation.Run, "run_one_round", contradicted)
    out, changes = tmp_path / "run", ("federation.clients=60", "federation.cohort=12", "federation.rounds=3")
    settings = [word for change in changes for word in ("--set", change)]
    assert status(["run", "dp-fedavg-digits", *settings, "--out", str(out)]) == 1
    assert "No statement: nothing is claimed" in " ".join(capsys.readouterr().out.split())
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["epsilon"], summary["lower_bound"], summary["rounds"]) == (None, None, 3)
    assert "one of the two is wrong" in summary["no_statement"]
    assert (out / "model.safetensors").exists()
    assert "No statement: nothing is claimed" in (out / "report.html").read_text()
