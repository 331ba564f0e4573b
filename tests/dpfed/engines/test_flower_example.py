"""examples/flower_app in Flower's simulation: one start of Ray. On loopback nodes: test_flower_loopback.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accounting import Ledger, Plan, budget
from accounting.rounding import upwards

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")
pytest.importorskip("ray", reason="ray is not installed: make test-flower")

APP = Path(__file__).parents[3] / "examples" / "flower_app"


@pytest.mark.slow
def test_the_example_runs_and_its_ledger_says_what_it_cost(tmp_path, flower):
    """8 nodes, rate 1/2, three rounds of 40% of the coordinates, integer noise that is nearly Gaussian."""
    environment = flower(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join([str(APP), environment["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, Path(__file__).with_name("simulated_app.py"), tmp_path]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    ledger = Ledger.read(tmp_path / "flower-app-run" / "ledger.jsonl")
    assert [one.round for one in ledger.releases] == [0, 1, 2]
    spent = ledger.guarantee(1e-3).epsilon
    gaussian = budget.epsilon(Plan(clients=8, cohort=4, delta=1e-3), noise_multiplier=0.8, rounds=3)
    assert spent == pytest.approx(gaussian, rel=0.02)
    assert f"epsilon {upwards(spent)}" in done.stdout
    assert (tmp_path / "flower-app-run" / "model.pt").exists()
