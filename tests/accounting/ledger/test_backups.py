"""Copies of ledgers: consistent while a run appends, and never restored where a release would be forgotten."""

import shutil
import threading

import pytest
from filelock import FileLock
from reference.shorthand import release
from refusals import refused

from accounting import Header, Ledger
from accounting.errors import LedgerError
from accounting.ledger import backups
from accounting.ledger.backups import backup, restore
from accounting.ledger.project import ProjectLedger
from dpfed.cli import status


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "run").mkdir()
    made = Ledger.create(tmp_path / "run" / "ledger.jsonl", Header(unit="client", clients=10, randomness="secure"))
    (tmp_path / "run" / "population.key").write_text("ab" * 32 + "\n")
    made.record_all(release(round) for round in range(3))
    return made


def test_a_copy_has_ledger_head_and_key(ledger, tmp_path):
    made = backup(ledger.path, tmp_path / "copy")
    assert (made.entries, made.head) == (3, ledger.head)
    assert made.path.read_bytes() == ledger.path.read_bytes()
    assert backups.read_head(made.path) == ledger.head
    key = tmp_path / "copy" / "population.key"
    assert key.stat().st_mode & 0o077 == 0
    assert key.read_text() == "ab" * 32 + "\n"


def test_a_line_that_is_not_whole_is_left_out(ledger, tmp_path):
    whole = ledger.path.read_bytes()
    with ledger.path.open("ab") as file:
        file.write(b'{"round": 3, "mech')
    assert backup(ledger.path, tmp_path / "copy").path.read_bytes() == whole


def test_copies_while_a_run_appends_are_whole(ledger, tmp_path):
    def run():
        for number in range(3, 60):
            ledger.record(release(number))

    writing, seen = threading.Thread(target=run), []
    writing.start()
    while writing.is_alive():
        seen.append(backup(ledger.path, tmp_path / "copy").entries)
        assert Ledger.read(tmp_path / "copy" / "ledger.jsonl").head
    writing.join()
    assert seen == sorted(seen)
    assert backup(ledger.path, tmp_path / "copy").entries == 60


def test_a_ledger_that_is_not_whole_is_named_and_not_copied(ledger, tmp_path):
    """The message named the copy, which stayed in the folder."""
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole.replace(b'"noise_std":', b'"noise_std":1', 1))
    refused(LedgerError, f"^{ledger.path}, line 2", backup, ledger.path, tmp_path / "copy")
    backups.write_head(ledger.path, ledger.head)
    ledger.path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    refused(LedgerError, f"^{ledger.path}: has no line of hash", backup, ledger.path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_of_another_ledger_is_not_replaced(ledger, tmp_path):
    backup(ledger.path, tmp_path / "copy")
    other = Ledger.create(tmp_path / "ledger.jsonl", Header(unit="client", clients=11, randomness="secure"))
    refused(LedgerError, "Use another folder", backup, other.path, tmp_path / "copy")


def test_an_older_copy_is_never_restored(ledger, tmp_path):
    """Over a longer ledger; over a head that names a later line; with a last head that it does not have."""
    made = backup(ledger.path, tmp_path / "copy")
    ledger.record(release(3))
    refused(LedgerError, "would omit", restore, made.path, ledger.path, nothing_since=True)
    last = ledger.head
    backups.write_head(ledger.path, last)
    ledger.path.unlink()
    refused(LedgerError, "older", restore, made.path, ledger.path, nothing_since=True)
    backups.head_path(ledger.path).unlink()
    refused(LedgerError, "not with the head given", restore, made.path, ledger.path, last_head=last)
    refused(LedgerError, "nothing shows that this is the newest", restore, made.path, ledger.path)
    assert not ledger.path.exists()


@pytest.mark.parametrize("how", ["head", "word"])
def test_a_lost_folder_is_restored(ledger, tmp_path, how):
    before = ledger.path.read_bytes()
    made = backup(ledger.path, tmp_path / "copy")
    shutil.rmtree(ledger.path.parent)
    ledger.path.parent.mkdir()
    restore(made.path, ledger.path, **({"last_head": ledger.head} if how == "head" else {"nothing_since": True}))
    assert ledger.path.read_bytes() == before
    assert not backups.head_path(ledger.path).exists()  # a run would append lines to the ledger, not to this head
    assert (ledger.path.parent / "population.key").read_text() == "ab" * 32 + "\n"


def test_a_damaged_ledger_is_restored_by_its_head(ledger, tmp_path):
    made = backup(ledger.path, tmp_path / "copy")
    backups.write_head(ledger.path, ledger.head)
    ledger.path.write_bytes(made.path.read_bytes()[:100])
    assert restore(made.path, ledger.path).entries == 3
    assert Ledger.read(ledger.path).head == ledger.head


def test_a_project_by_the_commands(tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    assert status(["ledger", "create", str(path), "--clients", "24", "--epsilon", "3"]) == 0
    ProjectLedger.open(path).key()
    assert status(["ledger", "backup", str(path), str(tmp_path / "copy")]) == 0
    for file in tmp_path.glob("p.jsonl*"):
        file.unlink()
    again = ["ledger", "restore", str(tmp_path / "copy" / "p.jsonl"), str(path)]
    assert status(again) == 1
    assert "--nothing-since" in capsys.readouterr().err
    assert status([*again, "--nothing-since"]) == 0
    assert status(["ledger", "show", str(path)]) == 0
    assert (tmp_path / "p.jsonl.key").read_bytes() == (tmp_path / "copy" / "p.jsonl.key").read_bytes()
    assert backups.read_head(path) is not None


def test_a_restore_waits_for_a_writer(tmp_path, monkeypatch):
    """A charge between the comparison of the files and the writing was forgotten, with its head."""
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=10, epsilon=3.0, delta=1e-5)
    made = backup(project.ledger.path, tmp_path / "copy")
    monkeypatch.setattr("accounting.ledger.backups.PATIENCE", 0.05)
    with FileLock(f"{project.ledger.path}.lock"), pytest.raises(LedgerError, match="another process has held"):
        restore(made.path, project.ledger.path)
    assert restore(made.path, project.ledger.path).entries == 0
