"""A run that goes on for more rounds is the run that had them from the start; and is refused where it would not be."""

import tomllib

import pytest
from safetensors.numpy import load_file

from accounting.errors import LedgerError
from accounting.ledger import Ledger
from dpfed.audit.run import audit_run
from dpfed.config.tables import override, parse
from dpfed.errors import RunError, RunInterrupted
from dpfed.methods import catalogue
from dpfed.records.summary import read_finished
from dpfed.report.run import live_page
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

SMALL = ("federation.clients=60", "federation.cohort=12", "local.epochs=1", "model.hidden=[8]", "run.evaluate_every=1")
BUDGET = ("privacy.noise_multiplier=2.0", "privacy.epsilon=8.0")


def experiment(preset, rounds, *settings):
    tables = override(catalogue.preset_tables(preset), [*SMALL, f"federation.rounds={rounds}", *settings])
    return build(parse(tables, source="test"))


def prolonged(folder, preset, first, then, *settings):
    federation.run(experiment(preset, first, *settings), folder)
    return federation.run(experiment(preset, then, *settings), folder, resume=True)


@pytest.mark.parametrize(("preset", "settings"), [("dp-fedavg-digits", BUDGET), ("fedavg-digits", ())])
def test_a_prolonged_run_is_the_longer_run(tmp_path, preset, settings):
    whole = federation.run(experiment(preset, 5, *settings), tmp_path / "whole").summary
    later = prolonged(tmp_path / "later", preset, 2, 5, *settings).summary
    for key in ("rounds", "test_accuracy", "noise_multiplier", "stopped_by", "uplink_megabytes_total"):
        assert later[key] == whole[key], key
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "later"))
    assert all((one[key] == other[key]).all() for key in one)
    assert tomllib.loads((tmp_path / "later" / "config.toml").read_text())["federation"]["rounds"] == 5
    if settings:  # who prolongs a run has seen its results: the budget covers that, the epsilon of five rounds does not
        assert later["epsilon"] == 8.0 > whole["epsilon"]
        fixed = Ledger.read(tmp_path / "later" / "ledger.jsonl").if_fixed_in_advance(later["delta"])
        assert fixed.epsilon == whole["epsilon"]
        assert audit_run(tmp_path / "later").verdict == "pass"


def test_a_run_that_is_being_prolonged_has_no_statement(tmp_path):
    """The summary of the shorter run stood beside further metrics: 1.3040, where the budget of 20 holds."""
    longer = experiment("dp-fedavg-digits", 5, *BUDGET)
    federation.run(experiment("dp-fedavg-digits", 2, *BUDGET), tmp_path / "run")
    stops = iter([False, True])
    with pytest.raises(RunInterrupted, match="after round 3 of 5"):
        federation.run(longer, tmp_path / "run", resume=True, stop=lambda: next(stops))
    with pytest.raises(RunError, match="no folder of a finished run"):
        read_finished(tmp_path / "run")
    assert "in progress" in live_page(tmp_path / "run")
    assert federation.run(longer, tmp_path / "run", resume=True).summary["epsilon"] == 8.0
    federation.run(longer, tmp_path / "run", resume=True, stop=lambda: True)  # a finished run keeps its own


def test_the_score_of_the_last_round_stays_written(tmp_path):
    """It became null in metrics.jsonl, since round 3 is no longer the last one."""
    lines = prolonged(tmp_path / "run", "fedavg-digits", 3, 5, "run.evaluate_every=10").metrics
    assert [line["round"] for line in lines if line["test_accuracy"] is not None] == [3, 5]
    assert len((tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()) == 5


@pytest.mark.slow
def test_the_budget_ends_a_prolonged_run(tmp_path):
    settings = ("privacy.noise_multiplier=2.0", "privacy.epsilon=2.0")
    summary = prolonged(tmp_path / "run", "dp-fedavg-digits", 2, 400, *settings).summary
    assert summary["stopped_by"] == "budget"
    assert summary["epsilon"] <= 2.0
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").entries) == summary["rounds"] < 400


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("preset", "settings", "reason"),
    [
        ("dp-fedavg-digits", ("privacy.epsilon=8.0",), "noise follows from the number of rounds"),
        ("dp-fedavg-digits", ("privacy.noise_multiplier=2.0", "privacy.epsilon="), "has no budget"),
        (
            "fedavg-digits",
            ("local.record.clip_norm=1", "local.record.epsilon=90", "local.record.noise_multiplier=1"),
            r"not built for \[local.record\]",
        ),
        ("fedsparsify-digits", (), "sparsity of fedsparsify follows from it"),
        ("dp-fedavg-digits", (*BUDGET, "audit.canaries=6"), "round of each canary follows from it"),
    ],
)
def test_what_would_be_another_run_is_refused_and_stays_as_it_was(tmp_path, preset, settings, reason):
    folder = tmp_path / "run"
    federation.run(experiment(preset, 2, *settings), folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "lock"}
    with pytest.raises(RunError, match=reason):
        federation.run(experiment(preset, 4, *settings), folder, resume=True)
    assert before == {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "lock"}


def test_a_run_that_cannot_be_opened_with_more_rounds_keeps_its_own(tmp_path, monkeypatch):
    """config.toml had the new rounds by then, and the run could be resumed with neither number."""
    folder = tmp_path / "run"
    federation.run(experiment("dp-fedavg-digits", 2, *BUDGET), folder)
    before = (folder / "config.toml").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(federation, "_open_book", lambda *_: (_ for _ in ()).throw(LedgerError("locked")))
        with pytest.raises(LedgerError, match="locked"):
            federation.run(experiment("dp-fedavg-digits", 4, *BUDGET), folder, resume=True)
    assert (folder / "config.toml").read_bytes() == before


@pytest.mark.parametrize("changed", ["federation.rounds=1", "local.learning_rate=0.1"])
def test_fewer_rounds_or_another_setting_are_another_configuration(tmp_path, changed):
    federation.run(experiment("fedavg-digits", 2), tmp_path / "run")
    with pytest.raises(RunError, match="another configuration"):
        federation.run(experiment("fedavg-digits", 3, changed), tmp_path / "run", resume=True)
