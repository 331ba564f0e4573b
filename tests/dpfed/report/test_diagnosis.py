"""Planted causes are told apart, each named first and with the key that was wrong; a sound run has none."""

import json
import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch

import dpfed
from dpfed.audit.replays.findings import OPERATORS
from dpfed.cli import status
from dpfed.cli.diagnose import _show_findings
from dpfed.config.tables import override, parse
from dpfed.diagnostics.watch import count_norms, median_norm, zero_norm_counts
from dpfed.participation.sampling import members_text
from dpfed.report.diagnosis import Cause, RunEvidence, evidence_of, is_learning, likely_causes
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import DIGITS, tables

TABLES = tables(
    DIGITS,
    model={"hidden": [16]},
    federation={"clients": 120, "cohort": 60, "rounds": 10},
    local={"epochs": 2, "batch_size": 5},
    privacy={"noise_multiplier": 0.6, "accountant": "rdp"},
    run={"evaluate_every": 1},
)
PLANTED = {
    None: (),
    "noise too large": ("privacy.noise_multiplier=40",),
    "clip norm too small": ("privacy.clip_norm=0.01",),
    "clip norm too large": ("privacy.clip_norm=100",),
    "learning rate too small": ("local.learning_rate=0.00005",),
    "learning rate too large": ("local.learning_rate=100",),
    "budget spent": ("privacy.epsilon=8", f"privacy.delta={60**-1.1}"),
}
KEYS = {
    "noise too large": "federation.cohort",
    "clip norm too small": "privacy.clip_norm",
    "clip norm too large": "privacy.clip_norm",
    "learning rate too small": "local.learning_rate",
    "learning rate too large": "local.learning_rate",
    "budget spent": "privacy.noise_multiplier",
}


def planted(cause, folder):
    federation.run(build(parse(override(TABLES, PLANTED[cause]), source="test")), folder)
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return planted(None, tmp_path_factory.mktemp("sound") / "run")


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("cause", list(PLANTED))
def test_planted_causes_are_told_apart(sound, tmp_path, capsys, cause):
    folder = planted(cause, tmp_path / "run") if cause else sound
    assert status(["diagnose", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] == cause
    assert found["learning"] is (cause in (None, "budget spent"))
    if cause is not None:
        assert found["findings"][0]["key"] == KEYS[cause]
    assert status(["diagnose", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "operator" in shown
    assert (f"1. {cause}" if cause else "No cause was found") in shown


def test_code_that_fails_is_not_blamed_on_the_learning_rate(sound, tmp_path):
    """Half of the clients raise an exception: the network refuses batches of one, and their updates are NaN."""
    folder = shutil.copytree(sound, tmp_path / "run")
    path = folder / "diagnostics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line |= {"failed": line["cohort"] // 2, "not_finite": line["cohort"] // 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    causes = likely_causes(evidence_of(folder))
    assert causes[0].key == "run.on_error"
    assert causes[0].operator_only
    assert "local.learning_rate" not in [one.key for one in causes]


class Refuses(torch.nn.Linear):
    """Raises an exception for samples of one client."""

    def forward(self, given):
        if self.training and bool((given == 7.0).any()):
            raise ValueError("sevens")
        return super().forward(given)


def test_clients_whose_training_fails_are_named_for_the_operator_only(tmp_path, capsys):
    names = ["anna-north", "bert-west", "carl-south"]
    held = {name: (torch.full((4, 2), 7.0 if "west" in name else 1.0), torch.tensor([0, 1, 0, 1])) for name in names}
    data = dpfed.data.from_clients(held, held[names[0]], classes=2)
    settings = {"federation.rounds": 2, "federation.cohort": 3, "federation.sampling": "all", "run.on_error": "count"}
    settings |= {"privacy.epsilon": None, "privacy.noise_multiplier": 1.0, "privacy.delta": 1e-3}
    given = {"data": data, "model": Refuses(2, 2), "out": tmp_path / "run", "progress": False}
    folder = dpfed.run("dp-fedavg-digits", settings, **given).folder
    assert json.loads((folder / "client_names.json").read_text()) == names
    assert (folder / "client_names.json").stat().st_mode & 0o777 == 0o600
    assert status(["diagnose", str(folder)]) == 0
    assert "bert-west (2 rounds)" in " ".join(capsys.readouterr().out.split())
    assert evidence_of(folder).failing_clients == (("bert-west", 2),)
    public = [file for file in folder.iterdir() if file.is_file() and file.name not in OPERATORS]
    assert {"summary.json", "metrics.jsonl", "report.html", "ledger.jsonl"} <= {file.name for file in public}
    assert not [file.name for file in public if any(name.encode() in file.read_bytes() for name in names)]
    (folder / "client_names.json").unlink()
    assert evidence_of(folder).failing_clients == (("1", 2),)


def test_what_is_public_needs_no_diagnostics(tmp_path, capsys):
    """Without the operator's file the noise is still named, and nothing is said from it."""
    folder = planted("noise too large", tmp_path / "run")
    (folder / "diagnostics.jsonl").unlink()
    assert status(["diagnose", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] == "noise too large"
    assert not any(one["operator_only"] for one in found["findings"])
    for key in ("typical", "move", "clipped", "broken", "reach"):
        assert found["evidence"][key] is None
    # by hand: noise of 40 clip norms in every coordinate of a sum that is divided by 60
    size = 64 * 16 + 16 + 16 * 10 + 10
    assert found["evidence"]["noise"] == pytest.approx(40 * size**0.5 / 60)


def test_typical_norms_are_medians_within_a_quarter_octave():
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-3, 1.0, 50.0):
        norms = scale * torch.rand(1001, generator=generator, dtype=torch.float64)
        counts = count_norms(norms[:400], 2.0) + count_norms(norms[400:], 2.0)
        assert median_norm(counts) == pytest.approx(float(norms.median()) / 2.0, rel=2**0.25 - 1 + 1e-9)
    ends = torch.tensor([0.0, 1e300, float("nan"), float("inf")], dtype=torch.float64)
    assert int(count_norms(ends, 1.0).sum()) == 2
    assert median_norm(zero_norm_counts()) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.toml", "[["), ("metrics.jsonl", ""), ("metrics.jsonl", '{"test_accuracy": "x"}\n'),
     ("metrics.jsonl", "[]\n"), ("diagnostics.jsonl", '{"probes": 3}\n'), ("ledger.jsonl", "{}\n")],
)  # fmt: skip
def test_a_folder_that_cannot_be_read_is_refused(tmp_path, capsys, name, content):
    files = {"config.toml": "", "metrics.jsonl": '{"round": 1, "test_accuracy": 0.5}\n', "diagnostics.jsonl": ""}
    for file, text in (files | {name: content}).items():
        (tmp_path / file).write_text(text)
    assert status(["diagnose", str(tmp_path)]) == 1
    assert "no run folder with a finished round" in capsys.readouterr().err


def test_a_running_run_is_read_up_to_its_last_whole_line(tmp_path):
    (tmp_path / "config.toml").write_text("[federation]\nrounds = 9\n")
    (tmp_path / "metrics.jsonl").write_text('{"round": 1, "test_accuracy": 0.5}\n{"round": 2, "te')
    found = evidence_of(tmp_path)
    assert (found.rounds, found.planned, found.accuracies) == (1, 9, (0.5,))


@pytest.mark.parametrize(("causes", "words"), [(0, "The run learns."), (1, "these causes may limit it:")])
def test_a_run_with_a_cause_is_not_called_well(capsys, causes, words):
    cause = Cause(
        cause="divergence", words="25.8% of the updates are not finite", key="local.learning_rate", advice="lower"
    )
    _show_findings([], [cause] * causes, True, None)
    assert words in capsys.readouterr().out


def line(**changes):
    return json.dumps({"round": 1, "epsilon": None, "clip_norm": None, "uplink_megabytes": 0.0} | changes) + "\n"


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"test_accuracy": None, "test_loss": 9.0, "test_r2": -0.0025}, "test R2 of -0.00250; always predicting the"),
        ({"test_accuracy": None, "test_loss": 9.0, "test_r2": 0.03}, None),
        ({"test_accuracy": 0.117, "majority_accuracy": 0.1}, "test accuracy of 11.70%; always predicting the most"),
        ({"test_accuracy": 0.119, "majority_accuracy": 0.1}, None),
        ({"test_accuracy": 0.9901, "majority_accuracy": 0.99}, "has 99.00%"),
        ({"test_accuracy": 0.995, "majority_accuracy": 0.99}, None),
        ({"test_accuracy": 0.1}, None),  # a file of an older version
    ],
)
def test_a_run_that_learned_nothing_says_so_with_its_threshold(tmp_path, capsys, scores, words):
    (tmp_path / "config.toml").write_text("[federation]\nrounds = 9\n")
    (tmp_path / "metrics.jsonl").write_text(line(test_accuracy=0.95, majority_accuracy=0.1) + line(**scores))
    assert status(["diagnose", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("Nothing was learned" in printed) is (words is not None)
    assert status(["diagnose", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    if words is not None:
        assert words in printed
        assert "A gain of at most 2% of the gap" in printed
        assert "The run learns" not in printed
        assert found["learning"] is False
        assert words in found["evidence"]["nothing_learned"]


def test_command_run_page_and_experiment_page_say_that_nothing_was_learned(tmp_path, capsys):
    settings = [
        word
        for one in ("federation.rounds=2", "federation.clients=12", "federation.cohort=4", "local.learning_rate=1e-9")
        for word in ("--set", one)
    ]
    folder = tmp_path / "run"
    assert status(["run", "fedavg-digits", *settings, "--out", str(folder)]) == 0
    assert "Nothing was learned" in " ".join(capsys.readouterr().out.split())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0.1 <= last["majority_accuracy"] < 0.15
    assert "Nothing was learned" in (folder / "report.html").read_text()
    assert status(["report", str(folder), "--out", str(tmp_path / "page")]) == 0
    assert "Nothing was learned in 1 of 1 runs: fedavg (1)." in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.parametrize("names", [None, "[]"])
def test_a_folder_that_was_edited_is_one_error(tmp_path, capsys, names):
    """Rounds that are text, and names of fewer clients than took part."""
    rounds = '"ten"' if names is None else "9"
    (tmp_path / "config.toml").write_text(f"[federation]\nrounds = {rounds}\nclients = 9\n")
    (tmp_path / "metrics.jsonl").write_text(line(test_accuracy=0.9))
    if names is not None:
        seen = {"round": 1, "cohort": 9, "participants": 9, "failed": 1, "failing": members_text(np.array([3]), 9)}
        (tmp_path / "diagnostics.jsonl").write_text(json.dumps(seen) + "\n")
        (tmp_path / "client_names.json").write_text(names)
    assert status(["diagnose", str(tmp_path)]) == 1
    assert "is no run folder with a finished round" in capsys.readouterr().err


BARE = dict.fromkeys(field.name for field in fields(RunEvidence)) | {"rounds": 10, "accuracies": (), "losses": ()}
"""A run of which nothing is known."""


@pytest.mark.parametrize(("typical", "factor"), [(304.0, "by 304"), (None, "by 50;")])
def test_the_factor_of_a_clip_norm_is_the_one_that_is_needed(typical, factor):
    """Updates 304 clip norms long, which is private; without their length, the reach of 0.01 to the half that is
    asked for."""
    found = RunEvidence(**(BARE | {"accuracies": (0.1, 0.1), "reach": 0.01, "typical": typical}))
    (cause,) = likely_causes(found)
    assert cause.cause == "clip norm too small"
    assert factor in cause.advice
    assert ("no epsilon covers a choice by it" in cause.advice) is cause.operator_only is (typical is not None)


@pytest.mark.parametrize(
    ("known", "learning"),
    [
        ({"accuracies": (0.5, 0.69)}, False),
        ({"accuracies": (0.5, 0.71)}, True),
        ({"accuracies": (0.75, 0.79)}, False),
        ({"accuracies": (0.75, 0.81)}, True),
        ({"accuracies": (0.5,)}, None),
        ({"losses": (2.0, 1.81)}, False),
        ({"losses": (2.0, 1.79)}, True),
        ({"accuracies": (0.1, 0.9), "nothing_learned": "The best guess scores as much."}, False),
    ],
    ids=range(8),
)
def test_a_run_learns_by_a_fifth_to_four_fifths_or_by_a_tenth_of_its_loss(known, learning):
    assert is_learning(RunEvidence(**(BARE | known))) is learning
