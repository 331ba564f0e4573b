"""The ledger of `dpfed.ClientLevel`: interrupted, cut, edited, shared; no round is repeated, none stays uncharged."""

import errno
import json
import os

import pytest
import torch
from private_loops import D, level, releases, rows
from refusals import refused

from accounting import Header, Ledger
from accounting.errors import LedgerError
from accounting.ledger import backups
from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError, RunError
from dpfed.runs.client_level.book import diagnostics_file

from ...rounds import Killed


def test_it_goes_on_with_its_ledger(tmp_path):
    whole = level(tmp_path / "whole", rounds=6)
    expected = releases(whole)
    found = []
    for _ in range(3):
        for step in level(tmp_path / "parts", rounds=6).rounds():
            found.append(step.release(rows(step)))
            if step.round % 2:
                break
    assert len(found) == 6
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    parts = level(tmp_path / "parts", rounds=6)
    assert parts.guarantee() == whole.guarantee()
    assert list(parts.rounds()) == []
    assert len(diagnostics_file(parts.ledger).read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"clients": 61}, "clients was 60, is 61"),
        ({"cohort": 13}, "cohort was 12, is 13"),
        ({"sampling": "fixed"}, "sampling was poisson, is fixed"),
        ({"clip_norm": 2.0}, "clip_norm was 1.0, is 2.0"),
        ({"noise_multiplier": 3.0}, "noise_multiplier was 2.0, is 3.0"),
        ({"epsilon": 3.0}, "epsilon was not given, is 3.0"),
        ({"delta": 1e-3}, "delta was 0.0001, is 0.001"),
        ({"adjacency": "zero-out"}, "adjacency was not given, is zero-out"),
        ({"noise": "skellam"}, "noise was gaussian, is skellam"),
        ({"randomness": "secure"}, "randomness was simulated, is secure"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"clients": [f"c{i}" for i in range(60)]}, "the names of clients was none"),
    ],
    ids=range(12),
)
def test_a_ledger_of_another_plan_is_refused(tmp_path, change, complaint):
    releases(level(tmp_path, rounds=1))
    before = (tmp_path / "l.jsonl").read_bytes()
    refused(RunError, complaint, level, tmp_path, **change)
    assert (tmp_path / "l.jsonl").read_bytes() == before


def test_a_key_that_is_gone_from_the_plan_is_seen_too(tmp_path):
    releases(level(tmp_path, rounds=1, delta=1e-3))
    refused(RunError, r"delta was 0.001, is 0.0001", level, tmp_path)


def test_more_rounds_may_be_planned_within_a_budget_that_the_noise_does_not_follow_from(tmp_path):
    releases(level(tmp_path, rounds=2, epsilon=8.0))
    private = level(tmp_path, rounds=5, epsilon=8.0)
    assert len(releases(private)) == 3
    assert private.guarantee().epsilon == 8.0
    found = {one.name: one.passed for one in audit_run(tmp_path / "l.jsonl").checks}
    assert found["every round is charged once"] is True
    assert found["ledger follows the plan"] is True
    releases(level(tmp_path / "without", rounds=2))
    with pytest.raises(RunError, match=r"rounds=5 for a ledger that began with rounds=2 and without epsilon"):
        level(tmp_path / "without", rounds=5)
    assert not releases(level(tmp_path / "without", rounds=1))  # fewer are no choice of more
    calibrated = {"epsilon": 3.0, "noise_multiplier": None}
    releases(level(tmp_path / "other", rounds=2, **calibrated))
    refused(RunError, "rounds was 2, is 5", level, tmp_path / "other", rounds=5, **calibrated)


def test_clients_have_names(tmp_path):
    names = [f"ward {i}" for i in range(60)]
    for step in level(tmp_path, clients=names).rounds():
        assert step.names == tuple(f"ward {one}" for one in step.cohort)
        step.release(rows(step))
    assert "ward" not in (tmp_path / "l.jsonl").read_text()
    level(tmp_path, clients=names)
    refused(RunError, r"the names of clients was .*, is .* by PATH.key", level, tmp_path, clients=names[::-1])
    refused(ConfigError, "a name occurs twice", level, clients=["a", "b", "a"], cohort=2)
    assert next(level().rounds()).names[0].isdecimal()


def test_names_open_a_ledger_in_a_new_folder_and_by_a_link(tmp_path):
    names = [f"ward {i}" for i in range(60)]
    _one_round(tmp_path / "new" / "folder", clients=names)
    (tmp_path / "l.jsonl").symlink_to(tmp_path / "new" / "folder" / "l.jsonl")
    assert len(releases(level(tmp_path, clients=names))) == 2


def test_equal_numbers_of_another_type_are_the_same_plan(tmp_path):
    releases(level(tmp_path, rounds=2, epsilon=8, noise_multiplier=2, clip_norm=1))
    level(tmp_path, rounds=2, epsilon=8.0, noise_multiplier=2.0, clip_norm=1.0)


@pytest.mark.parametrize("known", [None, 2])
@pytest.mark.parametrize("released", [False, True])
def test_integers_of_another_dimension_are_not_of_the_plan(tmp_path, known, released):
    """The epsilon is that of rounds like the planned, or like the first, and depends on the dimension."""
    begun = level(tmp_path, noise="discrete-gaussian", dimension=known)
    if released:
        step = next(begun.rounds())
        step.release(rows(step, size=2))
    if known or released:
        refused(RunError, "dimension was 2, is 64", level, tmp_path, noise="discrete-gaussian", dimension=D)
    unknown = level(tmp_path, noise="discrete-gaussian")
    step = next(unknown.rounds())
    for _ in range(2 * released):
        refused(RunError, "dimension was 2, is 64", step.release, rows(step))
    assert step.release(rows(step, size=2)).shape == (2,)


@pytest.mark.parametrize(("fault", "dimension"), [("continued", None), ("head not written", D)])
def test_the_budget_ends_a_loop_that_was_interrupted(tmp_path, monkeypatch, fault, dimension):
    """Each continuation without `dimension`, and each round that failed after its charge, had one round too many."""
    plan = {"epsilon": 1.5, "rounds": 50, "noise": "discrete-gaussian", "dimension": dimension}
    private, write_head = level(tmp_path, **plan), backups.write_head
    for _ in range(3):
        if fault == "continued":
            releases(private)
            private = level(tmp_path, **plan)
        else:
            step = next(private.rounds())
            with monkeypatch.context() as patch:
                patch.setattr(backups, "write_head", lambda *_: write_head(tmp_path / "no folder" / "l.jsonl", "0"))
                refused(LedgerError, "cannot be written", step.release, rows(step))
    releases(private)
    assert private.stopped_by == "budget"
    ledger = Ledger.read(private.ledger)
    assert 3 < len(ledger.releases) < 50
    assert 1.4 < ledger.if_fixed_in_advance(private.delta).epsilon <= 1.5


def test_a_loop_is_continued_from_a_copy(tmp_path):
    """A restore left no head, without which a loop cannot continue. A run keeps its head elsewhere."""
    _one_round(tmp_path)
    made = backups.backup(tmp_path / "l.jsonl", tmp_path / "copy")
    for file in tmp_path.glob("l.*"):
        file.unlink()
    backups.restore(made.path, tmp_path / "l.jsonl", nothing_since=True)
    assert len(releases(level(tmp_path))) == 2


@pytest.mark.parametrize("left", [None, 0, 40])
def test_a_ledger_that_is_lost_beside_its_head_is_not_begun_anew(tmp_path, left):
    """The releases were forgotten, with the head that named them, and the clients' key was replaced."""
    names = [f"ward {i}" for i in range(60)]
    _one_round(tmp_path, clients=names)
    ledger, copy = tmp_path / "l.jsonl", backups.backup(tmp_path / "l.jsonl", tmp_path / "copy")
    content = ledger.read_bytes()
    ledger.unlink()
    if left is not None:
        ledger.write_bytes(content[:left])
    refused(RunError, "its releases would be forgotten", level, tmp_path, clients=names)
    backups.restore(copy.path, ledger)
    assert len(releases(level(tmp_path, clients=names))) == 2


def test_a_lost_key_of_names_is_restored(tmp_path):
    """A loop that was opened without its key wrote a new one, which a restore of the ledger did not replace."""
    plan = {"clients": [f"ward {i}" for i in range(60)], "noise": "discrete-gaussian", "randomness": "secure"}
    level(tmp_path, **plan)
    copy = backups.backup(tmp_path / "l.jsonl", tmp_path / "copy")
    (tmp_path / "l.jsonl.key").unlink()
    refused(RunError, "names of clients", level, tmp_path, **plan)
    backups.restore(copy.path, tmp_path / "l.jsonl")
    level(tmp_path, **plan)


def test_killed_between_a_new_ledger_and_its_head(tmp_path):
    level(tmp_path)
    (tmp_path / "l.jsonl.head").unlink()
    again = level(tmp_path)
    assert (tmp_path / "l.jsonl.head").exists()  # before the first line, beside which it must not be missing
    assert len(releases(again)) == 3
    (tmp_path / "l.jsonl.head").unlink()
    refused(LedgerError, "the head is missing", level, tmp_path)


def test_a_ledger_that_was_cut_or_edited_is_refused(tmp_path):
    releases(level(tmp_path))
    ledger = tmp_path / "l.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))
    refused(LedgerError, "Lines are missing", level, tmp_path)
    ledger.write_text("".join(lines).replace('"noise_std":2.0', '"noise_std":3.0'))
    refused(LedgerError, "", level, tmp_path)
    ledger.unlink()
    Ledger.create(ledger, Header(unit="client", clients=60, randomness="simulated"))
    refused(LedgerError, "has no line of hash", level, tmp_path)
    (tmp_path / "l.jsonl.head").write_text(f"{Ledger.read(ledger).head}\n")
    refused(RunError, r"is not the ledger of a dpfed\.ClientLevel", level, tmp_path)


def test_a_round_that_was_charged_and_interrupted_stays_charged_and_is_not_repeated(tmp_path, monkeypatch):
    private = level(tmp_path, rounds=4)
    steps = private.rounds()
    first = next(steps).release(rows(private._step))
    step = next(steps)
    with monkeypatch.context() as patch:
        patch.setattr(
            "dpfed.runs.client_level.book.LoopBook.note_diagnostics", lambda *_: (_ for _ in ()).throw(Killed)
        )
        refused(Killed, "", lambda: step.release(rows(step)))
    again = level(tmp_path, rounds=4)
    found = {step.round: step.release(rows(step)) for step in again.rounds()}
    assert list(found) == [2, 3]
    assert [one.round for one in Ledger.read(again.ledger).releases] == [0, 1, 2, 3]
    assert not any(torch.equal(first, one) for one in found.values())


def test_nothing_is_returned_that_the_ledger_does_not_hold(tmp_path, monkeypatch):
    private = level(tmp_path)
    for step in private.rounds():
        with monkeypatch.context() as patch:
            patch.setattr(
                "accounting.ledger.regular_file.append", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
            )
            refused(LedgerError, "was not released", step.release, rows(step))
        assert len(Ledger.read(private.ledger).releases) == step.round
        step.release(rows(step))


def test_a_line_that_was_written_in_half_is_cut_off(tmp_path):
    expected = releases(level())
    private = level(tmp_path)
    first = next(private.rounds()).release(rows(private._step))
    for file in (private.ledger, diagnostics_file(private.ledger)):
        with file.open("a") as half:
            half.write('{"round": 1, "chain": "')
    again = level(tmp_path)
    assert diagnostics_file(private.ledger).stat().st_mode & 0o077 == 0  # for the operator only, also now
    rest = releases(again)
    assert all(torch.equal(one, other) for one, other in zip([first, *rest], expected, strict=True))
    assert len(diagnostics_file(private.ledger).read_text().splitlines()) == 3


def test_a_full_disk_leaves_no_half_line_before_the_next_round(tmp_path, monkeypatch):
    """The next line was glued to it, and an audit could read none of the file."""
    private, real = level(tmp_path), os.write
    step = next(private.rounds())

    def full(descriptor, data):
        if b"members" not in bytes(data):
            return real(descriptor, data)
        real(descriptor, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        refused(RunError, "The round is charged", step.release, rows(step))
    assert len(releases(private)) == 2
    lines = diagnostics_file(private.ledger).read_text().splitlines()
    assert [json.loads(one)["round"] for one in lines] == [2, 3]


def test_killed_while_the_ledger_was_made(tmp_path):
    (tmp_path / "l.jsonl").write_text('{"chain":"')
    assert len(releases(level(tmp_path))) == 3


@pytest.mark.parametrize("content", ["a note", '{"chain": 1}'])
def test_a_file_that_is_no_ledger_is_left_as_it_is(tmp_path, content):
    """A file without a line end was taken for a ledger whose making was interrupted, and removed."""
    (tmp_path / "l.jsonl").write_text(content)
    refused(LedgerError, "the header is incomplete", level, tmp_path)
    assert (tmp_path / "l.jsonl").read_text() == content


def _one_round(path, **changes):
    private = level(path, **changes)
    step = next(private.rounds())
    step.release(rows(step))


def test_two_loops_on_one_ledger_cannot_both_go_on(tmp_path):
    mine = level(tmp_path)
    step = next(mine.rounds())
    _one_round(tmp_path)
    refused(RunError, "another process has written to this ledger meanwhile", lambda: step.release(rows(step)))
    assert len(Ledger.read(mine.ledger).releases) == 1
