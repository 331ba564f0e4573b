"""The same run on Flower's simulation, and on a SuperLink with two SuperNodes on loopback. About a minute each."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpfed import federation
from dpfed.build import build
from dpfed.config import parse

pytest.importorskip("flwr", reason="flwr is not installed: pip install -c constraints-flower.txt -e '.[train,flower]'")
pytest.importorskip("ray", reason="ray is not installed: pip install -c constraints-flower.txt -e '.[train,flower]'")

BIN = Path(sys.executable).parent
PRIVATE = {"clip_norm": 0.5, "noise_multiplier": 2.0, "accountant": "rdp"}
PATIENCE = 180


@pytest.fixture
def flower(tmp_path):
    """An environment in which Flower is quiet and keeps to this folder."""
    from dpfed.engines.flower.settings import QUIET

    home = tmp_path / "flwr"
    home.mkdir()
    return {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }


def written(tables, path):
    import tomli_w

    path.write_text(tomli_w.dumps(tables))
    return path


def same_run(here, there):
    assert here.summary["epsilon"] == there["epsilon"]
    for key in ("rounds", "uplink_megabytes_total", "uplink_bytes_per_client_round", "stopped_by"):
        assert there[key] == here.summary[key], key


def same_weights(one, two):
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, two))
    for name, values in weights.items():
        torch.testing.assert_close(others[name], values, atol=2e-5, rtol=2e-5)


def test_the_simulation_is_the_run_in_process(tmp_path, flower, tables):
    chosen = tables("fed-smp-randk", "method.keep=0.3", "federation.clients=6", "federation.cohort=3", privacy=PRIVATE)
    file = written(chosen, tmp_path / "small.toml")
    command = [BIN / "dpfed", "run", file, "--engine", "flower", "--out", tmp_path / "there", "--json"]
    done = subprocess.run(command, env=flower, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    here = federation.run(build(parse(chosen, source="test")), tmp_path / "here")
    same_run(here, json.loads(done.stdout))
    same_weights(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / "report.html").exists()


def test_the_simulation_fails_as_the_run_in_process_does(tmp_path, flower, tables):
    chosen = tables("dp-fedavg", "federation.clients=2", "federation.cohort=1", privacy={**PRIVATE, "epsilon": 1e-3})
    file = written({**chosen, "privacy": {**chosen["privacy"], "delta": 1e-5}}, tmp_path / "small.toml")
    command = [BIN / "dpfed", "run", file, "--engine", "flower", "--out", tmp_path / "there"]
    done = subprocess.run(command, env=flower, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "not even one round fits" in done.stderr.splitlines()[-1]


class Loopback:
    """A SuperLink and its SuperNodes; ended by their process groups."""

    def __init__(self, folder, environment, clients):
        self._folder, self._environment, self._processes = folder, environment, []
        port = _free_port()
        connection = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        config = f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n{connection}'
        (Path(environment["FLWR_HOME"]) / "config.toml").write_text(config)
        self._start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
        _wait_for(port)
        for client in range(clients):
            place = ["--port", str(_free_port()), "--node-config", f"partition-id={client} num-partitions={clients}"]
            self._start(f"node{client}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *place)

    def _start(self, name, program, *arguments):
        log = open(self._folder / f"{name}.log", "wb")  # noqa: SIM115
        with log:
            self._processes.append(
                subprocess.Popen(
                    [BIN / program, *arguments],
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def run(self, app, *settings):
        """How the run of this app ended, as `flwr ls` says; never the exit status of `flwr run`."""
        config = [part for setting in settings for part in ("--run-config", setting)]
        self._flwr("run", app, "loopback", *config)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            (run, *_) = json.loads(self._flwr("ls", "loopback", "--format", "json"))["runs"]
            if run["status"].startswith("finished"):
                return run["status"]
            time.sleep(1)
        return run["status"]

    def _flwr(self, *arguments):
        done = subprocess.run(
            [BIN / "flwr", *arguments], env=self._environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def end(self):
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def loopback(tmp_path, flower):
    started = []

    def start(clients):
        started.append(Loopback(tmp_path, flower, clients))
        return started[0]

    yield start
    for one in started:
        one.end()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


def test_two_nodes_on_loopback_are_the_run_in_process(tmp_path, flower, loopback, tables):
    """An app as `dpfed deploy` writes it; afterwards one that must fail: its folder is taken."""
    chosen = tables("qsgd", "federation.clients=2", "federation.cohort=2", "federation.sampling=all", privacy=PRIVATE)
    file, app = written(chosen, tmp_path / "small.toml"), tmp_path / "app"
    subprocess.run([BIN / "dpfed", "deploy", file, "--out", app], env=flower, check=True, timeout=60)
    nodes = loopback(2)
    assert nodes.run(app) == "finished:completed"
    here = federation.run(build(parse(chosen, source="test")), tmp_path / "here")
    same_run(here, json.loads((tmp_path / "app-run" / "summary.json").read_text()))
    same_weights(tmp_path / "here", tmp_path / "app-run")
    assert nodes.run(app) == "finished:failed"
