"""The head beside a project's ledger: never ahead of it, so that a ledger without its last lines is found."""

import json
import os
from dataclasses import replace

import pytest
from reference.bounded import bounded
from reference.shorthand import release
from refusals import refused

from accounting import Header, Ledger
from accounting.errors import LedgerError
from accounting.ledger import backups, regular_file
from accounting.ledger.hash_chain import chained_line
from accounting.ledger.project import ProjectLedger

WHO, OTHERS = "a" * 64, "b" * 64


@pytest.fixture
def project(tmp_path):
    made = ProjectLedger.create(tmp_path / "p.jsonl", clients=10, epsilon=3.0, delta=1e-5)
    for round in range(3):
        made.charge(release(round), run="a", population=WHO)
    return made


def cut(path, entries):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: 1 + entries]))


def test_every_line_has_its_place_after_a_head(tmp_path):
    ledger = Ledger.create(tmp_path / "l", Header(unit="client", clients=10, randomness="simulated"))
    heads = [ledger.head]
    for round in range(300):
        ledger.record(release(round))
        heads.append(ledger.head)
    for found in (ledger, Ledger.read(ledger.path), Ledger.resume(ledger.path)):
        assert [found.entries_after(head) for head in heads] == list(range(300, -1, -1))
        assert found.identity == heads[0]
    lines = [json.loads(line)["chain"] for line in ledger.path.read_text().splitlines()]
    assert lines == heads
    for wrong in ("", "0" * 64, heads[3][:-2], heads[3].upper(), heads[3] + " ", "x" * 64, heads[3][2:] + heads[4][:2]):
        assert ledger.entries_after(wrong) is None


@pytest.mark.parametrize("entries", [0, 1, 2])
def test_a_cut_at_the_end_of_a_line_is_found_by_who_opens_and_who_charges(project, entries):
    other = ProjectLedger.open(project.ledger.path)
    cut(project.ledger.path, entries)
    with pytest.raises(LedgerError, match=r"p\.jsonl: has no line of hash .* which p\.jsonl\.head names"):
        ProjectLedger.open(project.ledger.path)
    for writer in (project, other):
        refused(LedgerError, "shorter than at the last read", writer.charge, release(7), run="b", population=WHO)


def test_a_ledger_that_is_ahead_of_its_head_is_what_a_crash_leaves(project):
    path = project.ledger.path
    head = backups.head_path(path).read_bytes()
    project.charge(release(3), run="a", population=WHO)
    backups.head_path(path).write_bytes(head)
    again = ProjectLedger.open(path)
    assert len(again.ledger.releases) == 4
    again.charge(release(4), run="a", population=WHO)
    assert backups.read_head(path) == again.ledger.head == Ledger.read(path).head


def test_what_cannot_be_written_is_an_error_and_the_charge_stands(project, monkeypatch):
    def full(path, content, **how):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accounting.ledger.regular_file.replace_content", full)
    with pytest.raises(LedgerError, match=r"p\.jsonl\.head: cannot be written.*Nothing was released"):
        project.charge(release(3), run="a", population=WHO, repeatable=True)
    monkeypatch.undo()
    assert len(ProjectLedger.open(project.ledger.path).ledger.releases) == 4
    project.charge(release(3), run="a", population=WHO, repeatable=True)
    project.charge(release(4), run="a", population=WHO)
    assert len(ProjectLedger.open(project.ledger.path).ledger.releases) == 5
    assert backups.read_head(project.ledger.path) == project.ledger.head


@pytest.mark.parametrize("content", [None, b"", b"abc\n", b"\xff" * 64, b"0" * 64 + b"\n"])
def test_a_head_that_is_gone_or_damaged_is_found(project, content):
    path = backups.head_path(project.ledger.path)
    path.unlink() if content is None else path.write_bytes(content)
    for attempt in (lambda: ProjectLedger.open(project.ledger.path), lambda: project.charge(release(3), run="a")):
        refused(LedgerError, r"p\.jsonl", attempt)


def test_a_project_that_is_lost_beside_its_head_is_to_be_restored(project):
    """The message gave the command that forgets it, and the command did."""
    path = project.ledger.path
    path.unlink()
    refused(LedgerError, r"head names a line of it: restore it from a copy", ProjectLedger.open, path)
    refused(LedgerError, "would forget", ProjectLedger.create, path, clients=10, epsilon=3.0, delta=1e-5)
    assert backups.read_head(path) == project.ledger.head


def test_a_project_that_was_made_and_never_charged_has_a_head(tmp_path):
    """It is written first: a kill in between leaves no project."""
    path = tmp_path / "p.jsonl"
    ProjectLedger.create(path, clients=10, epsilon=3.0, delta=1e-5)
    path.unlink()  # killed before this file was written
    project = ProjectLedger.create(path, clients=10, epsilon=3.0, delta=1e-5)
    assert backups.read_head(path) == project.ledger.head == ProjectLedger.open(path).ledger.head
    refused(LedgerError, "already exists", ProjectLedger.create, path, clients=10, epsilon=9.0, delta=1e-5)
    assert ProjectLedger.open(path).terms.epsilon == 3.0


def project_of_0_1(path, *lines):
    """Without a head, a key and fingerprints, as version 0.1 wrote it."""
    about = {"project": {"epsilon": 3.0, "delta": 1e-5}}
    header = {"kind": "header", "version": 1, "unit": "client", "clients": 10, "randomness": "x", "about": about}
    content, chain = b"", ""
    for record in (header, *(line.to_dict() | {"detail": {"run": "old"}} for line in lines)):
        line, chain = chained_line(record, chain)
        content += line
    path.write_bytes(content)
    return path


def test_a_project_of_version_0_1_is_read_and_goes_on_without_populations_only(tmp_path):
    path = project_of_0_1(tmp_path / "p.jsonl", release(0))
    project = ProjectLedger.open(path)
    assert project.spent().epsilon > 0
    with pytest.raises(LedgerError, match=r"charged by runs of version 0\.1.*Create a new project"):
        project.charge(release(1), run="new", population=WHO)
    project.charge(release(1), run="old")
    assert len(Ledger.read(path).releases) == 2


def test_one_population_has_a_project(project, tmp_path):
    assert ProjectLedger.open(project.ledger.path).population == WHO
    for population, words in ((OTHERS, "this run's are bbbb"), (None, "has no fingerprint of its clients")):
        refused(LedgerError, words, project.charge, release(3), run="b", population=population)
    given = ProjectLedger.create(
        tmp_path / "q.jsonl", clients=10, epsilon=3.0, delta=1e-5, population=WHO, key=bytes(32)
    )
    refused(LedgerError, "is for the clients", lambda: given.charge(release(0), run="b", population=OTHERS))
    given.charge(release(0), run="b", population=WHO)
    assert ProjectLedger.open(given.ledger.path).key() == bytes(32)


def test_lines_for_different_clients_are_not_believed(project):
    project.ledger.record(replace(release(3), detail={"run": "c", "population": OTHERS}))
    refused(LedgerError, "was charged for clients other than", project.charge, release(4), run="a", population=WHO)


def test_the_key_is_one_for_all_runs(project, tmp_path):
    fresh = ProjectLedger.create(tmp_path / "fresh.jsonl", clients=10, epsilon=3.0, delta=1e-5)
    key = fresh.key()
    assert key == fresh.key() == ProjectLedger.open(fresh.ledger.path).key() != regular_file.new_key()
    assert (tmp_path / "fresh.jsonl.key").stat().st_mode & 0o077 == 0
    refused(LedgerError, r"p\.jsonl\.key: the key is missing", project.key)
    (tmp_path / "fresh.jsonl.key").write_text("short")
    refused(LedgerError, "must hold 64 hexadecimal digits", fresh.key)


@pytest.mark.parametrize("name", [".head", ".key"])
def test_a_fifo_beside_a_ledger_is_refused_and_not_waited_for(project, name):
    path = project.ledger.path.with_name(f"p.jsonl{name}")
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with bounded(), pytest.raises(LedgerError, match="is a FIFO"):
        ProjectLedger.open(project.ledger.path).key()
    with bounded(), pytest.raises(LedgerError, match="is a FIFO"):
        regular_file.read_key(path) if name == ".key" else backups.read_head(project.ledger.path)
