"""A run whose guarantee says next to nothing says so: summary, table, pages, audit."""

import pytest

from dpfed.audit.run import audit_run
from dpfed.cli.run_on_terminal import show_outcome
from dpfed.config.tables import parse
from dpfed.report.collection import collect_runs
from dpfed.report.experiment import write_experiment_report
from dpfed.report.run import write_report
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

DELTA_NOTE = "delta 0.1 is above 1/clients = 1/60"
EPSILON_NOTE = "is above 20: it allows likelihood ratios of e^"


@pytest.fixture
def weak(tiny_config, tmp_path):
    settings = ("privacy.delta=0.1", "privacy.noise_multiplier=0.1", "federation.rounds=1")
    return federation.run(build(tiny_config(*settings)), tmp_path / "run")


def test_a_run_whose_guarantee_says_nothing_says_so_everywhere(weak, tmp_path, capsys):
    notes = weak.summary["notes"]
    assert [any(words in note for note in notes) for words in (DELTA_NOTE, EPSILON_NOTE)] == [True, True]
    show_outcome(weak, verbose=True)
    shown = " ".join(capsys.readouterr().out.split())
    write_report(weak)
    page = (weak.folder / "report.html").read_text()
    table = write_experiment_report(collect_runs([weak.folder]), tmp_path / "page").read_text()
    audited = " ".join(audit_run(weak.folder).notes)
    for text in (shown, page, table, audited):
        assert DELTA_NOTE.casefold() in text.casefold()
        assert EPSILON_NOTE.casefold() in text.casefold()


def test_a_run_whose_guarantee_says_something_has_no_such_note(tiny_config, tmp_path):
    notes = federation.run(build(tiny_config("federation.rounds=1")), tmp_path / "run").summary["notes"]
    assert not any("is above" in note or "epsilon is 0" in note for note in notes)


def test_a_run_that_is_not_private_has_none(tiny_config, tmp_path):
    tables = tiny_config("federation.rounds=1", "method.name=fedavg").to_dict()
    del tables["privacy"]
    assert federation.run(build(parse(tables, source="here")), tmp_path / "run").summary["notes"] == []
