"""Runs killed, or stopped for another version, and resumed; experiments/crash-test and docs have the longer ones."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accounting import Ledger
from dpfed.cli import status
from dpfed.version import __version__

SCRIPT = Path(__file__).parents[3] / "experiments" / "crash-test" / "run.py"
FAULTS = ("checkpoint before the charge", "no fsync of the ledger")


def crashed(tmp_path, *arguments, seconds=100):
    """The script's report; in a process of its own: only one without threads can be forked."""
    command = [sys.executable, str(SCRIPT), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


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


SETTINGS = (
    "federation.rounds=60", "model.hidden=[4]", "federation.clients=24", "federation.cohort=8",
    "privacy.accountant=rdp", "data.train_samples=240", "data.test_samples=50", "local.epochs=1",
)  # fmt: skip
WORDS = [word for one in SETTINGS for word in ("--set", one)]
EARLIER = """
import sys
import dpfed.version
dpfed.version.__version__ = "0.2.999"
from dpfed.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_goes_on_under_the_next_version(tmp_path):
    """To the same releases and model as a run that was never stopped, and its audit passes."""
    assert __version__ != "0.2.999"
    out, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    command = [sys.executable, "-c", EARLIER, "run", "dp-fedavg-digits", "--out", str(out), *WORDS]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 120
    while not metrics.exists() or not metrics.read_bytes():
        assert time.monotonic() < deadline
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.002)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 128 + signal.SIGTERM, said
    assert not (out / "summary.json").exists()
    assert status(["ledger", "backup", str(out / "ledger.jsonl"), str(tmp_path / "copy")]) == 0
    assert status(["run", "--resume", "--out", str(out)]) == 0
    assert status(["run", "dp-fedavg-digits", "--out", str(tmp_path / "whole"), *WORDS]) == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    upgraded, whole = (Ledger.read(folder / "ledger.jsonl") for folder in (out, tmp_path / "whole"))
    assert upgraded.header.about["package"] == "dpfed 0.2.999"
    assert upgraded.releases == whole.releases
    assert status(["audit", "run", str(out)]) == 0
