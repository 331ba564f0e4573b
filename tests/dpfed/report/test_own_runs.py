"""`dpfed report` of run folders names them and says in what they differ."""

import json

import pytest
from run_folders import PRIVATE, run_folder, summary

import dpfed
from dpfed.cli import status
from dpfed.report.run import run_texts

from ...rounds import DIGITS, tables

TABLES = tables(DIGITS, federation={"rounds": 1}, privacy={"accountant": "rdp"})
CHANGES = {
    "a": {},
    "b": {"run.seed": 1},
    "c": {"local.learning_rate": 0.1, "federation.cohort": 10, "privacy.delta": 1e-3, "data.alpha": None,
          "privacy.clip_norm": 2.0},
}  # fmt: skip


@pytest.mark.slow
def test_folders_are_named_and_differences_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
    for name, change in CHANGES.items():
        dpfed.run(TABLES, change, out=name)
    assert status(["report", *CHANGES, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = [
        "federation.cohort: 12 in a, b; 10 in c",
        "local.learning_rate: 0.3 in a, b; 0.1 in c",
        "privacy.clip_norm: 1.0 in a, b; 2.0 in c",
        "privacy.delta: 0.0001 in a, b; 0.001 in c",
        "run.seed: 0 in a, c; 1 in b",
    ]
    assert told["differences"] == expected
    assert {tuple(row["folders"]) for row in told["table"]} <= {("a", "b"), ("a",), ("b",), ("c",)}
    page = (tmp_path / "a" / "report" / "report.html").read_text()
    assert "<td><code>privacy.clip_norm</code><td>1.0<td>1.0<td>2.0" in page
    assert status(["report", *CHANGES]) == 0
    shown = capsys.readouterr().out
    assert "differences between the runs:" in shown
    assert "privacy.clip_norm: 1.0 in a, b; 2.0 in c" in shown


def test_the_same_run_twice_is_no_second_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_folder(tmp_path / name, seed=seed)
    assert status(["report", "a", "c", "b"]) == 1
    assert "b: has the configuration and the seed of a" in capsys.readouterr().err
    assert status(["report", "a", "c"]) == 0
    for name, head in (("d", "00"), ("e", "ff")):  # secret noise: equal settings, and two runs
        run_folder(tmp_path / name, randomness="secure", ledger_head=head)
    assert status(["report", "d", "e"]) == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "180"),
        ({"stopped_by": "budget"}, "180, ended by the privacy budget"),
        ({"aborted_rounds": 2}, "180, 2 of them without a result (too many clients dropped out)"),
        (
            {"aborted_rounds": 1, "sampling": "cyclic"},
            "180, 1 of them without a result (interrupted after their charge)",
        ),
    ],
)
def test_the_text_on_rounds_names_what_ended_them(changes, text):
    assert [one.text for one in run_texts(summary(**changes)) if one.name == "Rounds"] == [text]


@pytest.mark.parametrize("factors", [["2", 1.0], [], 3.0, [float("inf")], [-1.0], [[1.0]]])
def test_a_noise_schedule_in_a_summary_is_checked(tmp_path, monkeypatch, capsys, factors):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "a", **PRIVATE, noise_schedule=factors, noise_schedule_rounds=180)
    assert status(["report", "a"]) == 1
    said = capsys.readouterr().err.replace("\n", " ")
    assert "is no folder of a finished run (summary.json" in said
    assert "noise_schedule" in said or factors == [float("inf")]  # which is no JSON
