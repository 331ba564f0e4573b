"""Rounds that were cut off, models and files that are not the run's, and what old runs did not write."""

import itertools
import json
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from dpfed.audit.evidence.run_files import sha256_of
from dpfed.audit.evidence.step_evidence import rows_are_bounded
from dpfed.audit.run import audit_run
from dpfed.records.round import INTERRUPTED, RoundRecord

from . import run_folders
from .run_folders import BOUND, change, change_config, change_ledger, change_summary, copied, failed, records, undecided

ROUNDS, MODEL = "all files have the same rounds", "model is the run's"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {
        "rounds": run_folders.run(tmp_path_factory.mktemp("a") / "run"),
        "budget": run_folders.run(
            tmp_path_factory.mktemp("b") / "run",
            "privacy.epsilon=2.2",
            "privacy.delta=0.011",
            "federation.sampling=all",
            "federation.rounds=50",
        ),
    }


@pytest.fixture
def folder(made, tmp_path):
    numbers = itertools.count()
    return lambda name: copied(made[name], tmp_path / f"{name}-{next(numbers)}")


def bound(path):
    return next(one for one in audit_run(path).checks if one.name == BOUND)


def without_the_last(path, *, summary=True):
    """The last round cut off from every file of lines, and the sums of the summary made to fit."""
    for name in ("metrics.jsonl", "diagnostics.jsonl"):
        change(path, name, lambda lines: lines.pop())
    change_ledger(path, lambda lines: lines.pop())
    found = audit_run(path)
    if summary:
        last = records(path, "metrics.jsonl")[-1]
        change_summary(path, rounds=last["round"], epsilon=found.recomputed_epsilon, clip_norm=last["clip_norm"])
        change(path, "metrics.jsonl", lambda lines: lines[-1].update(epsilon=found.recomputed_epsilon))


def test_the_last_round_cut_off_everywhere(folder):
    for name in ("rounds", "budget"):
        path = folder(name)
        without_the_last(path)
        assert ROUNDS in failed(path), name
        assert bound(path).passed is False


def test_the_last_round_cut_off_of_the_configuration_and_the_checkpoint_too(folder):
    """The header's plan has one round more. Once that is forged, too, what is left is the model: it is not where the
    last round left it."""
    path = folder("rounds")
    without_the_last(path)
    change_config(path, "federation", rounds=3)
    assert "ledger follows the configuration" in failed(path)

    def planned(lines):
        lines[0]["plan"]["rounds"] = lines[0]["plan"]["most"][0]["parts"][0][1] = 3

    change_ledger(path, planned)
    epsilon = audit_run(path).recomputed_epsilon
    change_summary(path, epsilon=epsilon)
    change(path, "metrics.jsonl", lambda lines: lines[-1].update(epsilon=epsilon))
    tensors = load_file(path / "checkpoint.safetensors")
    metadata = audit_run(path).files.checkpoint.header
    save_file(tensors, path / "checkpoint.safetensors", metadata=metadata | {"round": "3"})
    assert failed(path) == {"model moves by what was released", "metrics agree with other files"}
    assert bound(path).passed is False


@pytest.mark.parametrize(
    "values", [{"stopped_by": "budget"}, {"stopped_by": "x"}, {"interrupted_charges": 1}, {"rounds": 5}]
)
def test_an_end_that_was_not(folder, values):
    path = folder("rounds")
    change_summary(path, **values)
    assert ROUNDS in failed(path)


def test_a_budget_that_had_room_for_another_round(folder):
    path = folder("budget")
    change_config(path, "privacy", epsilon=4.0, noise_multiplier=records(path, "ledger.jsonl")[1]["noise_std"])
    assert ROUNDS in failed(path)


@pytest.mark.parametrize(
    ("name", "edit", "check"),
    [
        ("metrics.jsonl", lambda line: line.update(clip_norm=0.0), "rows are bounded"),
        ("diagnostics.jsonl", lambda line: line["noise"].update(entries=2**64 - 1), "noise is as large as charged"),
    ],
)
def test_values_at_the_ends_of_their_types_are_no_crash(folder, name, edit, check):
    path = folder("rounds")
    change(path, name, lambda lines: edit(lines[0]))
    found = {one.name: one for one in audit_run(path).checks}
    assert found[check].passed is not True
    assert {one.passed for one in found.values()} >= {True, False}


def test_rows_of_an_interrupted_round_are_in_no_release():
    """An interrupted round of a resumed schedule has no recorded rows, and nothing of it was used."""
    made = RoundRecord(round=1, cohort=2, participants=2, largest_norm=1.0, longest_added=1.0)
    lost = RoundRecord(round=2, cohort=2, participants=2, aborted=INTERRUPTED, noise_known=False)
    config = SimpleNamespace(privacy=object())
    files = SimpleNamespace(config=config, releases={}, opened_rounds=(made, lost), results=(made,))
    assert rows_are_bounded(files)[0] is True


def test_a_model_that_is_not_the_runs(folder):
    path = folder("rounds")
    name, tensors = path / "model.safetensors", load_file(path / "model.safetensors")
    first = next(iter(tensors))
    tensors[first][0] += 1e-3
    save_file(tensors, name)
    assert failed(path) == {MODEL}
    change_summary(path, model_sha256=sha256_of(name))
    assert failed(path) == {MODEL}  # the checkpoint has other numbers
    name.unlink()
    assert undecided(path) == {MODEL}


def test_a_checkpoint_of_another_model_or_clip_norm(folder):
    path = folder("rounds")
    metadata, tensors = audit_run(path).files.checkpoint.header, load_file(path / "checkpoint.safetensors")
    tensors["broadcast"][3] += 0.01
    save_file(tensors, path / "checkpoint.safetensors", metadata=dict(metadata))
    assert failed(path) == {MODEL, "model moves by what was released"}
    again = folder("rounds")
    save_file(
        load_file(again / "checkpoint.safetensors"),
        again / "checkpoint.safetensors",
        metadata=metadata | {"clip_norm": "2.0"},
    )
    assert failed(again) == {MODEL, "metrics agree with other files"}


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_damaged_checkpoint_is_no_pass_and_no_crash(folder, damage):
    path = folder("rounds")
    (path / "checkpoint.safetensors").write_bytes(damage)
    assert audit_run(path).verdict == "inconclusive"
    assert {ROUNDS, MODEL} <= undecided(path)


def test_a_configuration_or_ledger_of_another_run(folder):
    path = folder("rounds")
    assert bound(path).passed is True
    change_config(path, "run", group=7)  # of no consequence, but not what ran
    assert failed(path) == set()
    assert bound(path).passed is False
    other = folder("rounds")
    change_ledger(other, lambda lines: lines[0].update(population="0" * 64))
    assert bound(other).passed is False


OF_TODAY = ("members", "counted", "longest_added", "probes", "map")


def test_a_run_of_an_old_version_is_inconclusive_and_says_why(folder):
    path = folder("rounds")

    def old(lines):
        for line in lines:
            for key in OF_TODAY:
                line.pop(key)
            for key in ("largest", "correlation", "probe"):
                line["noise"].pop(key)

    change(path, "diagnostics.jsonl", old)
    summary = json.loads((path / "summary.json").read_text())
    summary.pop("model_sha256")
    (path / "summary.json").write_text(json.dumps(summary))
    found = audit_run(path)
    assert found.verdict == "inconclusive"
    left = [one for one in found.checks if one.passed is None]
    assert {one.name for one in left} == {
        "rows are bounded", "sums are of what went in", "model moves by what was released",
        "noise is shaped as charged", "members follow the sampler", "cohorts follow the seed only if simulated", MODEL,
    }  # fmt: skip
    assert all("diagnostics.jsonl" in one.detail or "summary.json" in one.detail for one in left)


def test_a_run_of_another_version_is_not_held_against_todays_seeds(folder):
    path = folder("rounds")
    change_ledger(path, lambda lines: lines[0]["about"].update(package="dpfed 0.0.1"))
    assert undecided(path) == {"cohorts follow the seed only if simulated"}


@pytest.mark.parametrize("members", ["1:", "all", "1:AA==", "x", 7])
def test_members_that_are_not_the_cohorts(folder, members):
    path = folder("rounds")
    change(path, "diagnostics.jsonl", lambda lines: lines[1].update(members=members))
    assert audit_run(path).verdict != "pass"


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize("value", [10**400, "x", []])
@pytest.mark.parametrize("key", ["members", "counted", "longest_added", "probes", "map", "noise"])
def test_hostile_values_are_no_crash(folder, key, value):
    path = folder("rounds")
    change(path, "diagnostics.jsonl", lambda lines: lines[0].update({key: value}))
    assert audit_run(path).verdict in ("pass", "fail", "inconclusive")
