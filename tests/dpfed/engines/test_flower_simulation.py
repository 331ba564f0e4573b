"""Flower's simulation, with Ray's processes as nodes: one start of Ray, many methods, each the run in process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")
pytest.importorskip("ray", reason="ray is not installed: make test-flower")

PATIENCE = 500
COINS = {"clip_norm": 0.5, "accountant": "rdp", "delta": 0.1}
PRIVATE = {**COINS, "noise_multiplier": 2.0}
SHARES = {**PRIVATE, "noise": "discrete-gaussian", "placement": "clients", "adjacency": "zero-out"}
SMALL = ("federation.clients=8", "federation.cohort=4")
MOVES = ("mask.bound=0.2", "mask.edge=0.05", "mask.spread=0.0", "mask.readout=mean")
PROTOCOL = ("aggregation.kind=protocol",)
RUNS = {
    "fed-smp-randk": ("fed-smp-randk", ("method.keep=0.3",), PRIVATE),
    "fed-smp-topk": ("fed-smp-topk", ("method.keep=0.1", "data.public=50"), PRIVATE),
    "shares": ("dp-fedavg", (), SHARES),
    "gaussian shares": ("dp-fedavg", ("federation.sampling=fixed",), {**PRIVATE, "placement": "clients"}),
    "fedpm": ("fedpm", (), {**COINS, "slots": 6}),
    "fedmrn": ("fedmrn", (), None),
    "drive": ("drive", (), None),
    "signsgd": ("signsgd", ("method.error_feedback=true",), None),
    "fedscalar": ("fedscalar", ("method.shared=true", "method.options.projections=5"), PRIVATE),
    "coins of moves": ("fedpm", (*MOVES, "method.keep=0.3"), {**COINS, "slots": 6, "trials": 16, "count_bits": 6}),
    "protocol": ("fed-smp-randk", ("method.keep=0.3", *PROTOCOL), SHARES),
    "protocol of coins": ("fedpm", PROTOCOL, {**COINS, "slots": 6}),
    "protocol of moves": ("fedpm", (*MOVES, *PROTOCOL), {**COINS, "slots": 6, "trials": 16, "count_bits": 6}),
}


@pytest.fixture(scope="module")
def all_tables(tables):
    return {name: tables(method, *SMALL, *more, privacy=privacy) for name, (method, more, privacy) in RUNS.items()}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, flower, all_tables):
    """The folder of all runs, on one simulation of eight nodes."""
    folder = tmp_path_factory.mktemp("simulation")
    (folder / "configs.json").write_text(json.dumps(all_tables))
    program = [sys.executable, Path(__file__).with_name("many_runs.py"), folder / "configs.json", folder / "runs"]
    done = subprocess.run(program, env=flower(folder), capture_output=True, text=True, timeout=PATIENCE)
    assert (folder / "runs" / list(RUNS)[-1] / "summary.json").exists(), done.stderr[-3000:]
    assert done.returncode == 0
    return folder / "runs"


@pytest.mark.parametrize("name", RUNS)
def test_the_simulation_is_the_run_in_process(simulated, all_tables, as_in_process, name):
    as_in_process(all_tables[name], simulated / name)


def test_no_other_machine_is_called_or_asked_for(simulated, strangers):
    """No telemetry, no look for updates, no metadata service, in any of the Python processes."""
    assert strangers(simulated.parent) == set()


def test_ray_answers_its_own_processes_and_nobody_else(simulated):
    assert (simulated / "ours").read_text().strip() == "1"
    assert "AuthenticationError" in (simulated / "stranger").read_text()


def test_the_simulation_fails_as_the_run_in_process_does(tmp_path, flower, tables):
    import tomli_w

    private = {**PRIVATE, "epsilon": 1e-3, "delta": 1e-5}
    chosen = tables("dp-fedavg", "federation.clients=2", "federation.cohort=1", privacy=private)
    (tmp_path / "small.toml").write_text(tomli_w.dumps(chosen))
    dpfed = Path(sys.executable).with_name("dpfed")
    command = [dpfed, "run", tmp_path / "small.toml", "--engine", "flower", "--out", tmp_path / "there"]
    done = subprocess.run(command, env=flower(tmp_path), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "not even one round fits" in done.stderr.splitlines()[-1]
