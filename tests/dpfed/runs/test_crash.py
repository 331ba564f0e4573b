"""Runs killed and resumed: the small version of experiments/crash-test, which has its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "experiments" / "crash-test" / "run.py"
FAULTS = ("checkpoint before the charge", "no fsync of the ledger")


def crashed(tmp_path, *arguments, seconds=100):
    """The script's report; in a process of its own: only one without threads can be forked."""
    command = [sys.executable, str(SCRIPT), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_killed_at_random_instants_a_run_keeps_its_promises(tmp_path):
    report = crashed(tmp_path, "--random", "2", "--cases", "secure-project", "--points", "--faults")
    assert report["random"] == {"secure-project": {"instants": 2, "broken": []}}


@pytest.mark.slow
def test_killed_at_every_operation_and_at_random_instants_a_run_keeps_its_promises(tmp_path):
    few = ["--random", "10", "--cases", "fedpm", "secure-project", "--points", "fedpm", "--ways", "before"]
    report = crashed(tmp_path, *few, "--faults", *FAULTS, seconds=580)
    points = report["points"]["fedpm"]
    assert points["kills"] == points["operations"] > 60
    assert points["broken"] == []
    assert [one["instants"] for one in report["random"].values()] == [5, 5]
    assert all(one["broken"] == [] for one in report["random"].values())
    assert all(one["found"] for one in report["faults"].values())


@pytest.mark.slow
def test_killed_while_a_thread_writes_the_files_a_run_keeps_its_promises(tmp_path):
    """Kills, as on a GPU, at every operation of a run, and at random instants with fresh noise and a ledger."""
    few = ["--random", "8", "--cases", "fedpm", "secure-project", "--points", "fedpm", "--ways", "before", "--faults"]
    report = crashed(tmp_path, "--beside", *few, seconds=580)
    points = report["points"]["fedpm"]
    assert points["kills"] == points["operations"] > 60
    assert points["broken"] == []
    assert all(one["broken"] == [] for one in report["random"].values())
