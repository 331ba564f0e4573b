"""Runs killed and resumed: the small version of experiments/crash-test, which has its figures."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "experiments" / "crash-test" / "run.py"
FAULTS = ("checkpoint before the charge", "no fsync of the ledger")


def test_killed_at_every_operation_and_at_random_instants_a_run_keeps_its_promises(tmp_path):
    """In a process of its own: only one without threads can be forked."""
    crash = [sys.executable, str(SCRIPT), "--json", "--random", "10", "--cases", "fedpm", "secure-project"]
    few = ["--points", "fedpm", "--ways", "before"]
    done = subprocess.run(
        [*crash, *few, "--faults", *FAULTS], capture_output=True, text=True, timeout=580, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    points = report["points"]["fedpm"]
    assert points["kills"] == points["operations"] > 60
    assert points["broken"] == []
    assert [one["instants"] for one in report["random"].values()] == [5, 5]
    assert all(one["broken"] == [] for one in report["random"].values())
    assert all(one["found"] for one in report["faults"].values())
