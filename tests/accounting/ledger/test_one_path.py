"""One ledger has one path, one head, one lock; outputs replace regular files only."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest
from reference.shorthand import poisson, release
from refusals import refused

from accounting.errors import LedgerError
from accounting.ledger.backups import backup, restore
from accounting.ledger.project import ProjectLedger
from accounting.ledger.regular_file import replace_content
from dpfed.cli import status
from dpfed.cli.output import write_file
from dpfed.errors import RunError


def charge(path: Path, run: str) -> None:
    ProjectLedger.open(path).charge(release(0, poisson(0.01, 1.0)), run=run, population=None, worst=None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "real" / "p.jsonl"
    path.parent.mkdir()
    ProjectLedger.create(path, clients=1000, epsilon=3.0, delta=1e-5)
    charge(path, "a")
    return path


@pytest.mark.parametrize("linked", ["file", "file and head", "folder"])
def test_a_charge_by_a_symbolic_link_is_not_forgotten(project: Path, linked: str, tmp_path: Path) -> None:
    link = tmp_path / "there" / "p.jsonl"
    if linked == "folder":
        link.parent.symlink_to(project.parent)
    else:
        link.parent.mkdir()
        link.symlink_to(project)
        if "head" in linked:
            link.with_name("p.jsonl.head").symlink_to(project.with_name("p.jsonl.head"))
    charge(link, "b")
    assert len(ProjectLedger.open(project).ledger.entries) == 2
    assert not project.with_name("p.jsonl.head").is_symlink()
    lines = project.read_text().splitlines(keepends=True)
    project.write_text("".join(lines[:-1]))
    for path in (project, link):
        refused(LedgerError, "Lines are missing", ProjectLedger.open, path)


def test_a_copy_is_made_checked_and_restored_by_a_symbolic_link(project: Path, tmp_path: Path) -> None:
    """The head was looked for beside the link, and a restore put a second ledger in the place of the link."""
    link = tmp_path / "there" / "p.jsonl"
    link.parent.mkdir()
    link.symlink_to(project)
    assert status(["ledger", "verify", str(link)]) == 0
    copy = backup(link, tmp_path / "copy").path
    project.with_name("p.jsonl.head").unlink()
    restore(copy, link, nothing_since=True)
    charge(link, "b")
    assert len(ProjectLedger.open(project).ledger.entries) == 2


def test_a_copy_does_not_replace_its_ledger(project: Path) -> None:
    """A charge that came while the copy was made was lost, with its head."""
    refused(LedgerError, "is the folder of the ledger", backup, project, project.parent)
    assert sorted(one.name for one in project.parent.iterdir()) == ["p.jsonl", "p.jsonl.head", "p.jsonl.lock"]


def test_a_ledger_with_two_hard_links_is_not_charged(project: Path) -> None:
    other = project.with_name("other.jsonl")
    os.link(project, other)
    before = project.read_bytes()
    for path in (project, other):
        refused(LedgerError, r"2 names|head is missing", charge, path, "b")
    assert project.read_bytes() == before
    other.unlink()
    charge(project, "b")
    assert len(ProjectLedger.open(project).ledger.entries) == 2


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_named_at_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_locks)
    began = time.monotonic()
    refused(LedgerError, "no locks", charge, project, "b")
    assert time.monotonic() - began < 10  # it is not waited for


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_an_output_replaces_nothing_but_a_regular_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("making a device requires root")
    before = os.stat(path, follow_symlinks=False)
    refused(RunError, "regular files", write_file, path, "text")
    assert os.stat(path, follow_symlinks=False) == before
    assert not path.with_name("out.part").exists()


def test_a_backup_into_something_else_than_a_folder_is_one_error(project: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "copies")
    refused(LedgerError, "Name a folder", backup, project, tmp_path / "copies")


def test_what_appears_while_the_content_is_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    from accounting.ledger import regular_file

    write = regular_file.write_through

    def fifo_appears(descriptor: int, data: bytes) -> None:
        write(descriptor, data)
        os.mkfifo(path)

    monkeypatch.setattr(regular_file, "write_through", fifo_appears)
    refused(OSError, "FIFO", replace_content, path, b"content")
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_linked_output_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    replace_content(link, b"new")
    assert not link.is_symlink()
    assert (target.read_text(), link.read_text()) == ("old", "new")
