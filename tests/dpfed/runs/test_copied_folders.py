"""Copies of a run's folder on one project: whatever is killed, copied and resumed, each release has its own charge."""

import itertools
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from refusals import refused

from accounting import Gaussian, Header, Ledger, Release, Subsampled
from accounting.errors import LedgerError
from accounting.ledger import regular_file
from accounting.ledger.hash_chain import chained_line
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import BallsAndBins
from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.errors import RunError
from dpfed.runs import loop as federation
from dpfed.runs.binding import LedgerHeads
from dpfed.runs.book import LedgerBook, project_releases_of
from dpfed.runs.experiment import build

from ...rounds import Killed, killed_after, killed_before_checkpoint

NOISE = Gaussian(noise_multiplier=50.0, adjacency="add-remove")
KINDS = {"independent": NOISE, "schedule": Subsampled(mechanism=NOISE, sampling=BallsAndBins(bins=4, stream="s"))}
HEADER = Header(unit="client", clients=60, randomness="secure", about={"run": "a-1"}, binding={"format": "1"})


def line(number, kind):
    return Release(
        round=number, mechanism=KINDS[kind], clip_norm=1.0, noise_std=50.0, noise_placement="server", detail={}
    )


@dataclass
class Folder:
    """A run's folder as far as its charges go: a ledger, and a checkpoint that counts the rounds that are saved."""

    path: object
    done: int = 0
    heads: LedgerHeads = field(default_factory=LedgerHeads)

    def copy(self, name):
        shutil.copytree(self.path, self.path.with_name(name))
        return replace(self, path=self.path.with_name(name))

    def opened(self, project):
        project = ProjectLedger.open(project)
        return LedgerBook.open(
            self.path / "ledger.jsonl", HEADER, rounds_done=self.done, heads=self.heads, project=project
        )

    def release(self, project, kind, seen):
        """Resume, and make one more round. `seen` gets the number of the round where its result is released."""
        book = self.opened(project)
        if not (kind == "schedule" and book.charged_before_interruption(self.done)):
            book.record(line(self.done, kind))
            seen.append(self.done)
        self.done, self.heads = self.done + 1, book.heads


@pytest.fixture
def folder(tmp_path):
    ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=8.0, delta=1e-3)
    (tmp_path / "run").mkdir()
    return Folder(tmp_path / "run")


@pytest.fixture
def project(folder):
    return folder.path.parent / "project.jsonl"


def to_the_end(folder, project, kind, seen):
    """Two rounds in all."""
    while folder.done < 2:
        folder.release(project, kind, seen)


def charges(project):
    return Counter(one.round for one in project_releases_of("a-1", ProjectLedger.open(project)))


def same_charges(folder, project):
    own = Ledger.read(folder.path / "ledger.jsonl").releases
    assert [one.nonce for one in own] == [one.nonce for one in project_releases_of("a-1", ProjectLedger.open(project))]
    assert len({one.nonce for one in own}) == len(own)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_write_each_release_is_charged_in_both_ledgers(folder, project, monkeypatch, kind, moment):
    """Two rounds; killed once, at each operation on a file in turn, then resumed to the end."""
    writes, kill_at = 0, 0

    def deadly(write):
        def wrapped(*given, **named):
            nonlocal writes
            writes += 1
            if writes == kill_at and moment == "before":
                raise Killed
            write(*given, **named)
            if writes == kill_at:
                raise Killed

        return wrapped

    for name in ("create", "append", "replace_content"):
        monkeypatch.setattr(regular_file, name, deadly(getattr(regular_file, name)))
    to_the_end(Folder(folder.path), project, kind, [])
    operations, marks = writes, 0
    assert operations >= 7  # a header; of each round its line, the project's line, the project's head
    for deadly_one in range(1, operations + 1):
        kill_at = 0
        for one in project.parent.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        folder.path.mkdir()
        ProjectLedger.create(project, clients=60, epsilon=8.0, delta=1e-3)
        writes, kill_at, seen, now = 0, deadly_one, [], Folder(folder.path)
        refused(Killed, "", to_the_end, now, project, kind, seen)
        assert not Counter(seen) - charges(project)
        to_the_end(now, project, kind, seen)
        assert not Counter(seen) - charges(project)
        same_charges(now, project)
        if kind == "schedule":
            assert max(charges(project).values()) == 1
        read = Ledger.read(now.path / "ledger.jsonl")
        marks += len(read.entries) > len(read.entries_in_force)
        assert len(read.entries) - len(read.entries_in_force) in (0, 2)
        assert now.opened(project).interrupted_charges(2) == sum(charges(project).values()) - 2
    assert marks >= 1  # some kill fell between the two lines


@pytest.mark.parametrize("kind", KINDS)
def test_copies_in_any_order_release_no_more_than_is_charged(folder, project, kind):
    """An older copy, the folder itself and a copy of it: whoever goes on first keeps on, the others are refused."""
    folder.release(project, kind, seen := [])
    older = folder.copy("older")
    folder.release(project, kind, seen)
    state = {one: one.read_bytes() for one in project.parent.glob("project.jsonl*")}
    for turn, order in enumerate(itertools.permutations(["older", "run", "copy"])):
        for one, content in state.items():
            one.write_bytes(content)
        places = {
            "older": older.copy(f"older{turn}"),
            "run": folder.copy(f"run{turn}"),
            "copy": folder.copy(f"c{turn}"),
        }
        released = list(seen)
        for name in [*order, *order]:
            try:
                places[name].release(project, kind, released)
            except RunError as error:
                assert "the folder is an old copy" in str(error)
        assert Counter(released) == charges(project)
        assert released == [0, 1, 2, 3]
        same_charges(places[next(name for name in order if name != "older")], project)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_was_open_already_is_refused_when_the_other_has_charged(folder, project, kind):
    folder.release(project, kind, [])
    one, other = folder.copy("one").opened(project), folder.copy("other").opened(project)
    one.record(line(1, kind))
    refused(RunError, "the run continued in another one", lambda: other.record(line(1, kind)))
    assert charges(project) == {0: 1, 1: 1}
    assert len(other.ledger.entries) == 1


def test_a_charge_that_was_taken_back_and_then_paid_is_found(folder, project, monkeypatch):
    """A copy made between the two lines marks its line; then the process that was copied writes the project's."""
    folder.release(project, "schedule", [])
    book, copies = folder.opened(project), []
    record = Ledger.record

    def copied_before(self, entry):
        if self.path == project:
            copies.append(folder.copy("copy"))
            copies[0].opened(project)
        record(self, entry)

    monkeypatch.setattr(Ledger, "record", copied_before)
    book.record(line(1, "schedule"))
    monkeypatch.setattr(Ledger, "record", record)
    assert len(Ledger.read(copies[0].path / "ledger.jsonl").entries_in_force) == 1
    refused(RunError, "old copy", copies[0].release, project, "schedule", [])


def test_a_project_that_lost_the_charge_of_a_saved_round_is_refused(folder, project):
    folder.release(project, "independent", [])
    before = {one: one.read_bytes() for one in project.parent.glob("project.jsonl*")}
    folder.release(project, "independent", [])
    for one, content in before.items():
        one.write_bytes(content)
    refused(RunError, "has no charge of round 1", folder.opened, project)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_version_0_2_goes_on(folder, project, kind):
    """Its lines have no nonces, and the project was charged first. A crash between the two lines is charged in full:
    such a round of a schedule is left without a result, any other is repeated and charged again."""
    book = folder.opened(project)
    for number in range(2):
        ProjectLedger.open(project).charge(line(number, kind), run="a-1")
        book.ledger.record(line(number, kind))
    folder.done = 2
    ProjectLedger.open(project).charge(line(2, kind), run="a-1")
    copies = [folder.copy("first"), folder.copy("second")]
    copies[0].release(project, kind, released := [])
    copies[0].release(project, kind, released)
    assert released == ([3] if kind == "schedule" else [2, 3])
    assert charges(project) == {0: 1, 1: 1, 2: 1 if kind == "schedule" else 2, 3: 1}
    refused(RunError, "old copy", copies[1].release, project, kind, released)


def test_a_line_of_records_has_no_nonce(tmp_path):

    header, chain = chained_line({**HEADER.to_dict(), "unit": "record"}, "")
    record = {"kind": "local-release", "round": 0, "steps": [], "clip_norm": 1.0, "noise_std": 1.0, "detail": {}}
    (tmp_path / "l.jsonl").write_bytes(header + chained_line(record | {"nonce": "00"}, chain)[0])
    refused(LedgerError, "no nonce", Ledger.read, tmp_path / "l.jsonl")


def test_of_three_copies_of_a_secure_run_one_goes_on(tiny_config, tmp_path):
    """Balls-and-bins with noise from the operating system: three copies, one round old, of which each released round 3
    and one was charged for it."""
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=50.0, delta=1e-3)
    settings = ("run.randomness=secure", "privacy.noise=discrete-gaussian", "federation.sampling=balls-and-bins")
    config = tiny_config(*settings, "federation.cohort=20", "federation.rounds=4", "model.hidden=[4]")

    def until(number, folder, *, resume):
        how = {"on_round": killed_after(number), "project": ProjectLedger.open(project.ledger.path)}
        refused(Killed, "", federation.run, build(config), folder, resume=resume, **how)

    until(2, tmp_path / "run", resume=False)
    for name in "abc":
        shutil.copytree(tmp_path / "run", tmp_path / name)
    until(3, tmp_path / "b", resume=True)
    for name in "ac":
        refused(RunError, "old copy", until, 3, tmp_path / name, resume=True)
    assert [one.round for one in ProjectLedger.open(project.ledger.path).ledger.releases] == [0, 1, 2]


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("planted", [False, True])
def test_the_audit_compares_a_run_with_its_project(tiny_config, tmp_path, monkeypatch, planted):
    """The second of two rounds is interrupted after its charge and repeated with new noise. Planted: the project is not
    charged for the repetition, which only the comparison of the two ledgers finds.

    Noise is from the operating system: a right run fails with probability 1e-9."""
    path = tmp_path / "project.jsonl"
    ProjectLedger.create(path, clients=60, epsilon=50.0, delta=1e-3)
    config = tiny_config(
        "run.randomness=secure", "privacy.noise=discrete-gaussian", "federation.rounds=2", "model.hidden=[4]"
    )
    charge = ProjectLedger.charge

    def charged_once(self, release, *, run, first, **named):
        if release.round in [line.round for line in project_releases_of(run, self)]:
            first()
        else:
            charge(self, release, run=run, first=first, **named)

    if planted:
        monkeypatch.setattr(ProjectLedger, "charge", charged_once)
    killed_before_checkpoint(build(config), tmp_path / "run", 2, project=ProjectLedger.open(path))
    done = federation.run(build(config), tmp_path / "run", resume=True, project=ProjectLedger.open(path))
    assert done.summary["interrupted_charges"] == 1
    alone = audit_run(tmp_path / "run", confidence=1 - 1e-9)
    assert alone.verdict == "pass", [one for one in alone.checks if not one.passed]
    assert any("--project" in note for note in alone.notes)
    found = audit_run(tmp_path / "run", confidence=1 - 1e-9, project=path)
    assert found.verdict == ("fail" if planted else "pass")
    compared = next(one for one in found.checks if one.name == "project was charged alike")
    assert compared.passed is not planted
    if planted:
        assert "was not charged as ledger.jsonl states for round 2" in compared.detail
        assert status(["audit", "run", str(tmp_path / "run"), "--project", str(path)]) == 1
