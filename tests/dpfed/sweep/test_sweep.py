"""Sweeps that are run: in processes, interrupted, gone on with, with failures, with tuning."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import joblib
import pytest
import run_folders
from refusals import refused

from dpfed.cli import status
from dpfed.errors import ConfigError, RunError, RunInterrupted
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.sweep_folder import read_sweep
from dpfed.sweep import jobs, sweep
from dpfed.sweep.jobs import JobResult, RunJob, _prepare_worker, run_job, worker_pool
from dpfed.sweep.plan import plan
from dpfed.sweep.sweep import best_candidate, run_sweep

pytestmark = pytest.mark.slow_but_one_in(3)


def planned(path, out, profile="smoke", **options):
    return plan(path, profile=profile, out=out, **options)


@pytest.mark.slow
def test_runs_in_worker_processes_are_ordinary_run_folders(experiment_file, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["sweep", str(experiment_file()), "--profile", "smoke", "--out", str(out), "--jobs", "2", "--json"]
    assert status(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in said["runs"]] == ["finished"] * 3
    for run in said["runs"]:
        folder = out / run["folder"]
        assert json.loads((folder / "summary.json").read_text()) == run["summary"]
        assert (folder / "report.html").exists()
    listed = read_sweep(out)
    assert [one.folder for one in listed.runs] == [run["folder"] for run in said["runs"]]
    assert (listed.note, len(listed.published), listed.commit) == ("one seed", 2, None)
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.name != "sweep.json"}
    assert status(arguments) == 0
    assert [run["state"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["already"] * 3
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*") if file.name != "sweep.json"} == before


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_where_it_stopped(experiment_file, tmp_path):
    path, options = experiment_file(("rounds = 2", "rounds = 3")), {"only": ["DP-FedAvg"]}
    options["settings"] = ["privacy.noise_multiplier=2.0"]
    whole = run_sweep(planned(path, tmp_path / "whole", None, **options), jobs=1)
    one = planned(path, tmp_path / "cut", None, **options)
    first, second = one.grid.cells
    rounds = iter([False, False, True])
    with pytest.raises(RunInterrupted):  # killed in the middle of a run
        federation.run(build(second.config), one.folder / second.folder, stop=lambda: next(rounds))

    def kill(done):
        assert done.cell == first
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # killed between two runs
        run_sweep(one, jobs=1, on_run=kill)
    again = planned(path, tmp_path / "cut", None, **options)
    assert [again.state(cell) for cell in again.grid.cells] == ["finished", "interrupted"]
    finished = run_sweep(again, jobs=1)
    assert [done.outcome for done in finished.ended_runs] == ["already", "finished"]
    pytest.importorskip("pandas")
    frame = finished.to_pandas()
    assert frame["state"].tolist() == ["already", "finished"]
    assert frame["epsilon"].tolist() == [done.summary.epsilon for done in finished.ended_runs]
    for cut, uncut in zip(finished.ended_runs, whole.ended_runs, strict=True):
        assert replace(cut.summary, seconds=0.0) == replace(uncut.summary, seconds=0.0)


def test_a_failing_run_is_reported_and_does_not_stop_the_others(experiment_file, tmp_path, capsys):
    out = tmp_path / "out"
    one = planned(experiment_file(), out)
    broken = one.grid.cells[0]
    rounds = iter([True])
    refused(RunInterrupted, "", federation.run, build(broken.config), out / broken.folder, stop=lambda: next(rounds))
    (out / broken.folder / "checkpoint.safetensors").write_bytes(b"damaged")
    arguments = ["sweep", str(one.file), "--profile", "smoke", "--out", str(out), "--jobs", "1"]
    assert status(arguments) == 1
    said = capsys.readouterr().out.replace("\n", "")
    assert "failed: FedAvg seed 1:" in said
    assert "checkpoint" in said
    assert [one.state(cell) for cell in one.grid.cells] == ["interrupted", "finished", "finished"]


def test_an_error_that_nobody_expected_is_shown_with_its_trace(experiment_file, tmp_path, monkeypatch):
    real = federation.run

    def broken(experiment, *arguments, **options):
        if experiment.config.method.name == "fedavg":
            raise ZeroDivisionError("planted")
        return real(experiment, *arguments, **options)

    monkeypatch.setattr(federation, "run", broken)
    finished = run_sweep(planned(experiment_file(), tmp_path / "out"), jobs=1)
    assert [done.outcome for done in finished.ended_runs] == ["failed", "finished", "finished"]
    assert finished.ended_runs[0].error == "ZeroDivisionError: planted"
    assert "in broken" in finished.ended_runs[0].trace


class Dies:
    """Work that ends its process when a worker reads it, before anything is imported there."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_worker_that_dies_is_told_and_the_rest_can_be_gone_on_with(experiment_file, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "run_job", Dies())
    monkeypatch.setattr(sweep, "_build_all", lambda plan, pool: None)
    finished = run_sweep(planned(experiment_file(), tmp_path / "out"), jobs=2)
    assert [done.outcome for done in finished.ended_runs] == ["failed"] * 3
    assert all("a worker process died" in done.error for done in finished.ended_runs)


def test_nothing_runs_where_something_cannot_be_built(experiment_file, tmp_path, monkeypatch):
    monkeypatch.delenv("DPFED_DATA_DIR", raising=False)
    row = '[[row]]\nname = "Other data"\nset = { data.name = "fashion-mnist" }\n\n[profiles.smoke]'
    one = planned(experiment_file(("[profiles.smoke]", row)), tmp_path / "out")
    refused(ConfigError, r"nothing was run.*\n  Other data: .*DPFED_DATA_DIR", run_sweep, one, jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_runs_is_refused(experiment_file, tmp_path):
    run_sweep(planned(experiment_file(), tmp_path / "out", only=["FedAvg"]), jobs=1)
    with pytest.raises(RunError, match=r"holds a different run of row 'FedAvg': federation\.rounds was 1, is 2"):
        planned(experiment_file(), tmp_path / "out", settings=["federation.rounds=2"])


TUNE = """
[tune]
validation = 100
axes = { "local.learning_rate" = [0.001, 0.3, 0.0001] }
"""


@pytest.mark.slow
def test_the_candidate_with_the_best_validation_accuracy_is_run(experiment_file, tmp_path, capsys):
    out = tmp_path / "out"
    path = experiment_file(("rounds = 2", "rounds = 15"), ('set = { "federation.rounds" = 1 }', "set = {}"), more=TUNE)
    arguments = ["sweep", str(path), "--profile", "smoke", "--only", "FedAvg", "--out", str(out), "--jobs", "1"]
    assert status(arguments) == 0
    (told,) = json.loads((out / "tuned.json").read_text())
    assert (told["chosen"], told["validation_samples"]) == ({"local.learning_rate": 0.3}, 100)
    assert [one["values"]["local.learning_rate"] for one in told["scores"]] == [0.001, 0.3, 0.0001]
    assert "tuned: FedAvg: local.learning_rate 0.3" in capsys.readouterr().out.replace("\n", " ")
    assert "learning_rate = 0.3\n" in (out / "fedavg/run.seed=1/config.toml").read_text()
    assert "validation" not in (out / "fedavg/run.seed=1/config.toml").read_text()
    assert status([*arguments, "--json"]) == 0  # what was chosen is chosen again: nothing runs anew
    assert {run["state"] for run in json.loads(capsys.readouterr().out)["runs"]} == {"already"}


def scored(validation, test):
    return run_folders.summary(validation_accuracy=validation, test_accuracy=test, best_test_accuracy=test)


def test_the_test_set_has_no_say_in_tuning(experiment_file, tmp_path, monkeypatch):
    """Planted: the candidate that is best on the test set is worst on validation."""
    scores = {0.001: scored(0.5, 0.99), 0.3: scored(0.6, 0.1), 0.0001: scored(0.6, 0.95)}
    ran = []

    def work(job):
        if "_tune" in Path(job.folder).parts:
            return JobResult(number=job.number, summary=scores[job.config["local"]["learning_rate"]])
        ran.append(job.config["local"]["learning_rate"])
        return JobResult(number=job.number, summary=run_folders.summary())

    monkeypatch.setattr(sweep, "run_job", work)
    run_sweep(planned(experiment_file(more=TUNE), tmp_path / "out"), jobs=1)
    assert ran == [0.3] * 3  # of the two with 0.6 the first


@pytest.mark.slow
def test_what_was_chosen_for_other_rows_is_kept(experiment_file, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "run_job", lambda job: JobResult(number=job.number, summary=scored(0.5, 0.5)))
    for row in ("FedAvg", "DP-FedAvg", "DP-FedAvg"):
        run_sweep(planned(experiment_file(more=TUNE), tmp_path / "out", None, only=[row]), jobs=1)
    told = json.loads((tmp_path / "out" / "tuned.json").read_text())
    assert [one["row"] for one in told] == ["FedAvg", "DP-FedAvg", "DP-FedAvg"]  # two points of one row
    assert list(read_sweep(tmp_path / "out").tuned) == told


def test_nothing_is_chosen_where_a_candidate_failed(experiment_file, tmp_path, monkeypatch):
    one = planned(experiment_file(more=TUNE), tmp_path / "out", only=["FedAvg"])
    assert best_candidate(one.grid.choices[0], [scored(0.5, 0.5), None, scored(0.6, 0.5)]).values is None
    monkeypatch.setattr(sweep, "run_job", lambda job: JobResult(number=job.number, error="planted"))
    finished = run_sweep(one, jobs=1)
    assert [done.error for done in finished.ended_runs[:3]] == ["planted"] * 3
    assert "a run of [tune] failed" in finished.ended_runs[3].error
    assert len(finished.failed_runs) == 4


def test_a_candidate_that_diverges_is_the_worst(experiment_file, tmp_path):
    """A loss that is not finite has no number: a choice by loss was lost, as if a run had failed."""
    one = planned(experiment_file(more=TUNE), tmp_path / "out", only=["FedAvg"])
    losses = [run_folders.summary(validation_loss=loss) for loss in (None, 0.5, 0.4)]
    assert best_candidate(one.grid.choices[0], losses).values == {"local.learning_rate": 0.0001}
    assert best_candidate(one.grid.choices[0], losses[:1] * 3).values is None


def jobs_on_gpus(folder, **more):
    config = {"run": {"device": "auto"}}
    return [RunJob(number=i, config=config, folder=folder, state="to run", **more) for i in range(6)]


def test_a_worker_takes_a_gpu_that_no_living_worker_has_and_its_part_of_the_cores(tmp_path, monkeypatch):
    """Two workers' calls in this process, which must not be reused by the next."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(jobs.multiprocessing, "parent_process", lambda: True)
    monkeypatch.setattr(jobs.signal, "signal", lambda *given: None)
    monkeypatch.setattr(jobs, "_held_locks", [])
    taken = []
    for _ in range(2):
        jobs._worker_number.cache_clear()
        for job in jobs_on_gpus(tmp_path, gpus=("3", "5"), lock_folder=tmp_path):
            _prepare_worker(job)
            taken.append(os.environ["CUDA_VISIBLE_DEVICES"])
    jobs._worker_number.cache_clear()
    assert taken == ["3"] * 6 + ["5"] * 6
    with mock.patch("joblib.Parallel"), mock.patch("joblib.parallel_config") as config:
        list(jobs.Workers(count=2, lock_folder=tmp_path).results(run_job, jobs_on_gpus(tmp_path)))
    assert config.call_args.kwargs["inner_max_num_threads"] == max(1, joblib.cpu_count() // 2)


@pytest.mark.slow
def test_no_two_workers_share_a_gpu_and_all_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def work(job):
        _prepare_worker(job)
        (tmp_path / str(os.getpid())).touch()
        until = time.monotonic() + 100
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:  # the other is here, too
            time.sleep(0.02)
        seen = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
        return JobResult(number=job.number, summary=seen | {"process": os.getpid()})

    with worker_pool(2, ["cpu"]) as pool:
        found = [result.summary for result in pool.results(work, jobs_on_gpus(tmp_path))]
    gpu_of = {(one["process"], one["CUDA_VISIBLE_DEVICES"]) for one in found}
    assert len(gpu_of) == len({process for process, _ in gpu_of})  # it keeps what it has
    assert {gpu for _, gpu in gpu_of} == {"3", "5"}
    assert {one["OMP_NUM_THREADS"] for one in found} == {str(max(1, joblib.cpu_count() // 2))}
