"""`dpfed audit X`: one command for whatever X is, one verdict, and the names of 0.3."""

from __future__ import annotations

import json

import pytest
from scipy.stats import mannwhitneyu

import dpfed.audit
from dpfed.api.audit import audits, combined
from dpfed.audit.evidence.loop import rank_sum_p_value
from dpfed.audit.verdict import worst_outcome
from dpfed.cli import status

FILE = """
import numpy as np
import accounting
from dpfed import audit

@audit.claim(accounting.Gaussian(noise_multiplier=1.0, adjacency="add-remove"), trials=60, arrays="numpy", dimension=4)
def noiseless(updates, seed):
    return updates.sum(axis=0)

def call(data, out):
    total = sum(np.clip(one, -1, 1) for one in data([np.ones(1), np.zeros(1)]))
    audit.mechanism(lambda x: x + np.random.normal(size=1), sensitivity=1.0)(total)
"""


def test_a_file_is_audited_by_what_it_has(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(FILE)
    assert status(["audit", str(tmp_path / "mine.py"), "--set", "replay.pairs=3", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "fail"
    assert [part["audited"] for part in record["parts"]] == ["noiseless", "call"]
    assert record["parts"][0]["verdict"] == "fail"


def test_a_scheme_is_tested_and_its_options_are_settings(capsys):
    assert status(["audit", "scheme", "qsgd", "--set", "levels=4", "--json"]) == 0
    assert "levels=4" in json.loads(capsys.readouterr().out)["audited"]
    found = dpfed.audit.audit("dense")
    assert found.verdict == "pass"
    assert all(one.would_find for one in found.checks)
    assert str(found).startswith("pass on these updates")


OF_REPLAY = ["replay", "dp-fedavg-digits", "--set"]
WHOLE = "give whole numbers, at least 1 round and 2 pairs"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["dp-fedavgg"], "must be a run folder or ledger"),
        (["dense", "--effort", "hard"], "hard"),
        ([*OF_REPLAY, "replay.pears=3"], "replay.pears=3: is no setting here"),
        ([*OF_REPLAY, "replay.rounds=many"], WHOLE),
        ([*OF_REPLAY, "replay.rounds=1.5"], WHOLE),
        ([*OF_REPLAY, "replay.last=0"], WHOLE),
        ([*OF_REPLAY, "replay.pairs=1"], WHOLE),
        ([*OF_REPLAY, "replay.pairs=[]"], WHOLE),
        ([*OF_REPLAY, "replay.processes=0.5"], WHOLE),
        (["upload"], "requires an argument"),
        (["upload", "dp-fedavgg"], "Did you mean"),
        (["upload", "dp-fedavg", "--clients", "3"], "clients=3: is no setting here"),
        (["upload", "dp-fedavg", "--set", "clients=3"], "clients=3: is no setting here"),
        (["upload", "dp-fedavg", "--set", "privacy.clip=1"], "clip_norm"),
        (["upload", "fedpm", "--noise-multiplier", "1"], "privacy.noise_multiplier with privacy.noise='coins'"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_message_and_status_2(capsys, given, words):
    assert status(["audit", *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err


PAIR = '"pair": {"clients": [0], "change": "far", "record": null}'


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        '{"reproduce": 3}',
        "[" * 100_000,
        f"{{{PAIR}}}",
        f'{{{PAIR}, "config": {{}}, "load": 1, "rounds": 2}}',
    ],
    ids=["list", "number", "part", "deep", "pair alone", "load"],
)
def test_a_file_of_no_replay_audit_is_one_message(tmp_path, capsys, text):
    (tmp_path / "a.json").write_text(text)
    assert status(["audit", str(tmp_path / "a.json")]) == 2
    assert "is no file of a replay audit" in capsys.readouterr().err


def test_old_names_work_and_say_the_new_one(capsys):
    assert status(["audit", "scheme", "drive", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["passed"] is True
    assert "it is now `dpfed audit SCHEME`" in captured.err


def test_several_audits_have_the_worst_verdict():
    assert worst_outcome(["pass", "nothing tested"]) == "nothing tested"
    assert worst_outcome(["pass", "inconclusive", "nothing tested"]) == "inconclusive"
    assert worst_outcome(["inconclusive", "fail"]) == "fail"
    found = audits("dense")
    assert combined([*found, *found], "both").to_dict().keys() >= {"parts", "checks", "differences", "skipped_files"}


@pytest.mark.parametrize("shift", [0, 3])
def test_the_rank_sum_is_exact(shift):
    """Without ties, as scipy's exact test of Mann and Whitney."""
    one, other = [1 + 10 * k + shift for k in (0, 2, 5)], [10 * k for k in (1, 3, 4, 6, 7, 8)]
    expected = mannwhitneyu(one, other, method="exact").pvalue
    assert min(1.0, rank_sum_p_value(one, other)) == pytest.approx(expected)


def test_the_rank_sum_of_many_rounds_is_drawn(monkeypatch):
    monkeypatch.setattr("dpfed.audit.evidence.loop._PERMUTATIONS", 5_000)
    assert rank_sum_p_value(range(40), range(40, 80)) < 1e-3
    assert rank_sum_p_value(range(0, 80, 2), range(1, 80, 2)) > 0.05
