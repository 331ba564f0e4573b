"""Disks that fill up, folders that cannot be written, clocks, second processes, lost GPUs: one clear error, and the run
goes on where it was."""

import errno
import os
import time
from pathlib import Path

import pytest
import torch
from refusals import refused

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.ledger.project import ProjectLedger
from dpfed.errors import ConfigError, DpfedError, RunError, TrainingFailed
from dpfed.report.run import write_report
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.folder import RunFolder

from ...rounds import configured, stopped_run


def tiny(*settings):
    return build(configured(*settings, privacy={"noise_multiplier": 2.0}))


def same_files(one, other):
    for name in ("ledger.jsonl", "model.safetensors", "metrics.jsonl", "canaries.jsonl"):
        if (one / name).exists() or (other / name).exists():
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


class Disk:
    """From operation number `fails_at` on, whatever would write fails as on a full disk; half a write still fits."""

    def __init__(self, patch, under, fails_at, number=errno.ENOSPC):
        self.operations, self.full = 0, False
        self._under, self._fails_at, self._number = str(under), fails_at, number
        real = {name: getattr(os, name) for name in ("open", "write", "fsync", "replace")}
        patch.setattr(os, "open", lambda path, flags, *mode, **more: self.opened(real["open"], path, flags, *mode))
        patch.setattr(os, "write", lambda descriptor, data: self.written(real["write"], descriptor, data))
        patch.setattr(os, "fsync", lambda descriptor: self.synced(real["fsync"], descriptor))
        patch.setattr(os, "replace", lambda old, new: self.replace_stage(real["replace"], old, new))

    def opened(self, real, path, flags, *mode):
        if flags & os.O_CREAT and str(path).startswith(self._under) and not os.path.exists(path):
            self._check()
        return real(path, flags, *mode)

    def written(self, real, descriptor, data):
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._under):
            return real(descriptor, data)
        if self._counted():
            if len(data) > 1:
                real(descriptor, bytes(data)[: len(data) // 2])
            raise OSError(self._number, os.strerror(self._number))
        return real(descriptor, data)

    def synced(self, real, descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._under):
            self._check()
        return real(descriptor)

    def replace_stage(self, real, old, new):
        if str(old).startswith(self._under):
            self._check()
        return real(old, new)

    def _check(self):
        if self._counted():
            raise OSError(self._number, os.strerror(self._number))

    def _counted(self):
        self.full = self.full or self.operations == self._fails_at
        self.operations += 1
        return self.full


@pytest.mark.slow
def test_a_disk_that_fills_up_at_any_operation_is_one_error_and_the_run_goes_on(tmp_path):
    experiment = tiny("audit.canaries=4", "federation.rounds=1")
    whole = tmp_path / "whole"
    with pytest.MonkeyPatch.context() as patch:
        count = Disk(patch, whole, fails_at=-1)
        federation.run(experiment, whole)
    assert count.operations > 15
    for number in range(count.operations):
        folder = tmp_path / f"full-{number}"
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, folder, fails_at=number)
            with pytest.raises((DpfedError, AccountingError)) as caught:
                federation.run(experiment, folder)
        assert disk.full
        assert str(folder) in str(caught.value)
        assert "No space left on device" in str(caught.value)
        federation.run(experiment, folder, resume=(folder / "config.toml").exists())
        same_files(folder, whole)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
def test_a_folder_that_cannot_be_written_is_one_error_before_anything_is_trained(tmp_path, monkeypatch, number):
    folder = tmp_path / "run"
    Disk(monkeypatch, folder, fails_at=0, number=number)
    refused(RunError, os.strerror(number), lambda: federation.run(tiny(), folder))


@pytest.mark.slow
def test_a_report_that_cannot_be_written_loses_nothing_but_itself(tmp_path, monkeypatch):
    experiment = tiny()
    outcome = federation.run(experiment, tmp_path / "run")
    Disk(monkeypatch, tmp_path / "run", fails_at=0)
    refused(RunError, r"curves\.png: .*cannot be written.*The run is complete", write_report, outcome)
    monkeypatch.undo()
    write_report(federation.run(experiment, tmp_path / "run", resume=True))
    assert (tmp_path / "run" / "report.html").exists()
    (tmp_path / "run" / "curves.png").unlink()
    (tmp_path / "run" / "curves.png").mkdir()
    refused(RunError, r"curves\.png: .*cannot be written", write_report, outcome)


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch):
    experiment = tiny()
    federation.run(experiment, tmp_path / "whole")
    hours = iter(range(10**9, 0, -1))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: 3600 * 10**9 * next(hours))
    stopped_run(experiment, tmp_path / "run", after=1)
    os.utime(tmp_path / "run" / "checkpoint.safetensors", (0, 0))
    outcome = federation.run(experiment, tmp_path / "run", resume=True)
    same_files(tmp_path / "run", tmp_path / "whole")
    assert outcome.summary["seconds"] >= 0


def test_two_runs_in_one_folder(tmp_path):
    experiment = tiny()
    first = federation.Run.open(experiment, tmp_path / "run", resume=False)
    for resume in (True, False):
        with pytest.raises(RunError, match=r"another process is running in this folder|is not empty"):
            federation.run(experiment, tmp_path / "run", resume=resume)
    first.unlock()
    assert federation.run(experiment, tmp_path / "run", resume=True).summary["rounds"] == 2


def test_a_folder_that_is_made_at_the_same_time_has_one_run(tmp_path):
    """Between looking and locking, another process was faster."""
    other = RunFolder.create(tmp_path / "run", {"a": {}})
    refused(RunError, "not empty", RunFolder.create, tmp_path / "run", {"a": {}})
    (tmp_path / "run" / "config.toml").unlink()
    refused(RunError, "another process", RunFolder.create, tmp_path / "run", {"a": {}})
    other.unlock()


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported elsewhere"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
    ],
    ids=["gpu-lost", "gpu-memory", "memory"],
)
def test_a_gpu_that_is_lost_in_a_round_is_one_error_and_the_run_goes_on(tmp_path, monkeypatch, error):
    experiment = tiny("federation.rounds=3")
    federation.run(experiment, tmp_path / "whole")
    real = type(experiment.method.clients).train

    def train(self, broadcast, clients, *, number, seeds, failed=None):
        if number == 1:
            raise error
        return real(self, broadcast, clients, number=number, seeds=seeds)

    monkeypatch.setattr(type(experiment.method.clients), "train", train)
    with pytest.raises(TrainingFailed, match=r"round 2: training failed \(.*Nothing of it was released") as caught:
        federation.run(experiment, tmp_path / "run")
    assert len(str(caught.value).splitlines()) == 1
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").releases) == 1
    monkeypatch.undo()
    federation.run(experiment, tmp_path / "run", resume=True)
    same_files(tmp_path / "run", tmp_path / "whole")


CHANGES = {
    "data": "data.test_samples=40", "model": "model.hidden=[5]", "federation": "federation.cohort=5",
    "local": "local.momentum=0.5", "method": "method.name=fed-smp-randk", "privacy": "privacy.noise_multiplier=1.0",
    "aggregation": "aggregation.dropout=0.1", "audit": "audit.canaries=3", "server": "server.learning_rate=0.5",
    "run": "run.seed=1",
}  # fmt: skip


@pytest.fixture
def interrupted(tmp_path):
    """A run of three rounds that ended after two."""
    stopped_run(tiny("federation.rounds=3"), tmp_path / "run", after=2)
    return tmp_path / "run"


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("table", CHANGES)
def test_a_change_in_any_table_is_named(interrupted, table):
    key, _, value = CHANGES[table].partition("=")
    more = ["method.keep=0.5"] if table == "method" else []
    settings = ["federation.rounds=3", CHANGES[table], *more]
    with pytest.raises(RunError, match="another configuration") as caught:
        federation.run(tiny(*settings), interrupted, resume=True)
    assert f"{key} was " in str(caught.value)
    assert value.strip("[]") in str(caught.value).partition(f"{key} was ")[2]


def test_every_table_can_be_changed():
    """A new table is a new line above."""
    from dpfed.config.tables import Config

    assert set(Config.model_fields) - {"mask"} == set(CHANGES)


def older(monkeypatch, leave_out="precision"):
    """Runs are written as by a version that had no such setting."""
    from dpfed.config.tables import Config

    today = Config.to_dict

    def to_dict(self):
        tables = today(self)
        return tables | {"local": {key: value for key, value in tables["local"].items() if key != leave_out}}

    monkeypatch.setattr(Config, "to_dict", to_dict)


def test_a_run_of_a_version_with_fewer_settings_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        older(before)
        stopped_run(tiny("federation.rounds=3"), tmp_path / "old", after=2)
    assert "precision" not in (tmp_path / "old/config.toml").read_text()
    with pytest.raises(RunError, match=r"local\.precision was 'float32', is 'bf16'"):
        federation.run(tiny("federation.rounds=3", "local.precision=bf16"), tmp_path / "old", resume=True)
    federation.run(tiny("federation.rounds=3"), tmp_path / "old", resume=True)
    federation.run(tiny("federation.rounds=3"), tmp_path / "new")
    assert (tmp_path / "old/model.safetensors").read_bytes() == (tmp_path / "new/model.safetensors").read_bytes()


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_a_bit_that_flips_in_a_checkpoint_is_found(interrupted, where):
    path = interrupted / "checkpoint.safetensors"
    flip(path, round(where * (path.stat().st_size - 1)))
    with pytest.raises(RunError, match="checkpoint cannot be read"):
        federation.run(tiny("federation.rounds=3"), interrupted, resume=True)


def test_a_checkpoint_of_another_run_is_found(interrupted, tmp_path):
    federation.run(tiny("federation.rounds=3", "run.seed=1"), tmp_path / "other")
    (interrupted / "checkpoint.safetensors").write_bytes((tmp_path / "other" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(RunError, match="is the checkpoint of another run"):
        federation.run(tiny("federation.rounds=3"), interrupted, resume=True)


@pytest.mark.parametrize("edit", ["flipped", "line lost", "header only", "gone", "two lines as one"])
def test_a_ledger_that_was_tampered_with_is_found(interrupted, edit):
    path = interrupted / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    edited = {
        "flipped": [lines[0], lines[1].replace(b"2.0", b"9.0"), lines[2]],
        "line lost": [lines[0], lines[2]],
        "header only": lines[:1],
        "gone": None,
        "two lines as one": [lines[0], lines[1].strip() + lines[2]],
    }[edit]
    if edited is None:
        path.unlink()
    else:
        path.write_bytes(b"".join(edited))
    with pytest.raises((RunError, AccountingError)) as caught:
        federation.run(tiny("federation.rounds=3"), interrupted, resume=True)
    assert "ledger.jsonl" in str(caught.value)
    assert not (interrupted / "summary.json").exists()


def test_a_run_of_a_project_goes_on_with_that_project_or_not_at_all(tmp_path):
    experiment, folder = tiny("federation.rounds=3"), tmp_path / "run"
    project, other = (
        ProjectLedger.create(tmp_path / f"{name}.jsonl", clients=24, epsilon=50.0, delta=1e-3)
        for name in ("one", "other")
    )
    stopped_run(experiment, folder, after=1, project=project)
    with pytest.raises(RunError, match=r"the run is charged to a project.*To resume, give --ledger"):
        federation.run(experiment, folder, resume=True)
    with pytest.raises(RunError, match=r"other\.jsonl: has no charge of round 0"):
        federation.run(experiment, folder, resume=True, project=other)
    assert federation.run(experiment, folder, resume=True, project=project).summary["rounds"] == 3
    stopped_run(experiment, tmp_path / "alone", after=1)
    with pytest.raises(RunError, match=r"is not charged to a project.*leave out --ledger"):
        federation.run(experiment, tmp_path / "alone", resume=True, project=project)


def test_the_last_round_that_a_project_pays_for_is_not_paid_twice(tmp_path, monkeypatch):
    """Killed between the project's line and the run's own, with nothing left for another."""
    experiment = tiny()
    first = ProjectLedger.create(tmp_path / "first.jsonl", clients=24, epsilon=50.0, delta=1e-3)
    federation.run(experiment, tmp_path / "whole", project=first)
    budget = first.spent().epsilon * 1.001
    project = ProjectLedger.create(tmp_path / "second.jsonl", clients=24, epsilon=budget, delta=1e-3, reserve=0.0)
    real = Ledger.record

    def record(self, entry):
        if entry.round == 1 and self.path.name == "ledger.jsonl":
            raise KeyboardInterrupt
        real(self, entry)

    monkeypatch.setattr(Ledger, "record", record)
    refused(KeyboardInterrupt, "", federation.run, experiment, tmp_path / "run", project=project)
    monkeypatch.undo()
    outcome = federation.run(experiment, tmp_path / "run", resume=True, project=ProjectLedger.open(project.ledger.path))
    assert (outcome.summary["rounds"], outcome.summary["stopped_by"]) == (2, "rounds")
    assert len(Ledger.read(project.ledger.path).releases) == 2


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_line_starts(tmp_path):
    """A configuration that was not written to its end, a ledger without a whole header."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml.part").write_text("[data")
    (folder / "lock").touch()
    refused(RunError, r"has no run to resume.*without --resume", lambda: federation.run(tiny(), folder, resume=True))
    federation.run(tiny(), folder)
    federation.run(tiny(), tmp_path / "whole")
    same_files(folder, tmp_path / "whole")
    half = tmp_path / "half"
    RunFolder.create(half, tiny().config.to_dict()).unlock()
    for torn in (b"", (folder / "ledger.jsonl").read_bytes()[:20]):
        (half / "ledger.jsonl").write_bytes(torn)
        federation.run(tiny(), half, resume=True)
        same_files(half, tmp_path / "whole")
        for name in ("ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl", "diagnostics.jsonl"):
            (half / name).unlink()


@pytest.mark.slow
def test_secure_randomness_takes_discrete_noise(tmp_path):
    for settings in (
        (),
        ("privacy.placement=clients", "federation.sampling=fixed"),
        ("privacy.adaptive.quantile=0.5",),
    ):
        refused(ConfigError, r"run\.randomness='secure' with Gaussian noise", tiny, "run.randomness=secure", *settings)
    coins = ("method.name=fedpm", "privacy.release=uploads", "privacy.noise_std=0.5", "run.randomness=secure")
    refused(ConfigError, r"privacy\.noise_std=0\.5", build, configured(*coins, privacy={"noise_multiplier": None}))
    build(configured(*(one for one in coins if "std" not in one), privacy={"noise_multiplier": None}))
    outcome = federation.run(tiny("run.randomness=secure", "privacy.noise=skellam"), tmp_path / "run")
    assert outcome.summary["for_release"] is True
    assert not any("seed" in note for note in outcome.summary["not_protected"])


def test_what_is_simulated_says_so_everywhere(tmp_path):
    outcome = federation.run(tiny(), tmp_path / "run")
    write_report(outcome)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").header.randomness == "simulated"
    assert (outcome.summary["randomness"], outcome.summary["for_release"]) == ("simulated", False)
    assert "not for release" in (tmp_path / "run" / "report.html").read_text()
