"""A SuperLink and two SuperNodes on loopback, processes as `dpfed deploy` and Flower's commands start them."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from accounting import Ledger
from accounting.gaussian import smallest_epsilon
from dpfed import data
from dpfed.aggregation.messages import ProtocolStep
from dpfed.config.tables import override, parse
from dpfed.engines.node_ledger import NodeLedger
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from .served import PRIVATE, SHARES, free_port, lines

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

BIN = Path(sys.executable).parent
PATIENCE = 600
COINS = {"clip_norm": 0.5, "accountant": "rdp"}
TWO = ("federation.clients=2", "federation.cohort=2", "federation.sampling=all")
RUNS = {
    "fed-smp-randk": ("fed-smp-randk", ("method.keep=0.3",), SHARES),
    "coins under the protocol": ("fedpm", ("aggregation.kind=protocol", "federation.rounds=1"), COINS),
}


class Loopback:
    """A SuperLink and its SuperNodes; ended with all that they have started."""

    def __init__(self, folder, environment):
        self._folder, self._environment, self._processes = folder, environment, {}
        self._port = free_port()
        connection = f'address = "127.0.0.1:{self._port}"\ninsecure = true\n'
        config = f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n{connection}'
        (Path(environment["FLWR_HOME"]) / "config.toml").write_text(config)

    def start(self, node_configs):
        self._start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self._port))
        _wait_for(self._port)
        for number, config in enumerate(node_configs):
            place = ["--superlink", f"127.0.0.1:{self._port}", "--port", str(free_port()), "--node-config", config]
            self._start(f"node{number}", "flower-supernode", "--insecure", *place)

    def _start(self, name, program, *arguments):
        with open(self._folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [BIN / program, *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def begin(self, app, *settings):
        config = [part for setting in settings for part in ("--run-config", setting)]
        self._flwr("run", app, "loopback", *config)

    def end_of_run(self):
        """How it ended, as `flwr ls` says; never the exit status of `flwr run`."""
        return _until(self._finished, "the run has not ended", pause=3.0)

    def _finished(self):
        (run, *_) = json.loads(self._flwr("ls", "loopback", "--format", "json"))["runs"]
        return run["status"] if run["status"].startswith("finished") else None

    def _flwr(self, *arguments):
        done = subprocess.run(
            [BIN / "flwr", *arguments], env=self._environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self, name):
        """SIGKILL, to this one and to all that it has started, in whatever session, at once."""
        process = self._processes.pop(name)
        for one in [process.pid, *_descendants(process.pid)]:
            _kill(one)
        process.wait()

    def end(self):
        for name in list(self._processes):
            self.kill(name)


def _descendants(pid):
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = children.get(pid, [])
    return found + [deeper for child in found for deeper in _descendants(child)]


def _kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _until(found, complaint, *, pause=0.5):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(pause)
    raise TimeoutError(complaint)


def _wait_for(port):
    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    _until(listens, f"nothing listens on port {port}")


@pytest.fixture
def loopback(tmp_path, flower):
    nodes = Loopback(tmp_path, flower(tmp_path))
    yield nodes
    nodes.end()


def deployed(tables, folder):
    import tomli_w

    (folder / "small.toml").write_text(tomli_w.dumps(tables))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [BIN / "dpfed", "deploy", folder / "small.toml", "--out", folder / "app"], env=environment, check=True
    )
    return folder / "app"


def test_two_nodes_are_the_run_in_process(tmp_path, loopback, tables, as_in_process, strangers):
    """An app with the modules of several configurations; then a run that must fail: its folder is taken."""
    all_tables = {name: tables(method, *TWO, *more, privacy=privacy) for name, (method, more, privacy) in RUNS.items()}
    app = deployed(all_tables["fed-smp-randk"], tmp_path)
    (app / "dpfed_app" / "configs.json").write_text(json.dumps(all_tables))
    (app / "dpfed_app" / "many_runs.py").write_text(Path(__file__).with_name("many_runs.py").read_text())
    for number, name in enumerate(("client", "server")):
        source = f"""from pathlib import Path

from dpfed_app.many_runs import apps

app = apps(Path(__file__).with_name("configs.json"))[{number}]
"""
        (app / "dpfed_app" / f"{name}_app.py").write_text(source)
    loopback.start([f"partition-id={client}" for client in range(2)])
    loopback.begin(app)
    assert loopback.end_of_run() == "finished:completed"
    for name, chosen in all_tables.items():
        as_in_process(chosen, tmp_path / "app-run" / name)
    loopback.begin(app)
    assert loopback.end_of_run() == "finished:failed"
    assert strangers(tmp_path) == set()


def test_two_nodes_with_a_ledger_each_and_one_refuses(tmp_path, loopback):
    """Budgets come from each node's own command line: for three rounds of noise 4 (mu = sqrt(3)/4), and for one.

    The refusing node answers the first round alone, and the server ends its three rounds.
    """
    shutil.copytree(Path(__file__).parents[3] / "examples" / "flower_app", tmp_path / "app")
    client, server = (tmp_path / "app" / "digits_app" / f"{one}_app.py" for one in ("client", "server"))
    client.write_text(client.read_text().replace("client_mod import client_mod", "client_mod import node_mod"))
    client.write_text(client.read_text().replace("mods=[client_mod]", "mods=[node_mod()]"))
    server.write_text(server.read_text().replace("noise_multiplier=0.8", 'noise_multiplier=4.0, sampling="all"'))
    budgets = [smallest_epsilon(0.99e-5, mu=rounds**0.5 / 4) * 1.05 for rounds in (3, 1)]
    own = [f'ledger="{tmp_path}/{number}/node.jsonl" epsilon={budget}' for number, budget in enumerate(budgets)]
    loopback.start([f"partition-id={number} num-partitions=2 delta=1e-5 {one}" for number, one in enumerate(own)])
    loopback.begin(tmp_path / "app", f'clients=2 cohort=2 out="{tmp_path}/run"')
    assert loopback.end_of_run() == "finished:completed"
    assert [one.round for one in Ledger.read(tmp_path / "run" / "ledger.jsonl").releases] == [0, 1, 2]
    answered = [[one.round for one in Ledger.read(tmp_path / f"{number}/node.jsonl").releases] for number in (0, 1)]
    assert answered == [[0, 1, 2], [0]]
    report = NodeLedger(tmp_path / "1" / "node.jsonl", epsilon=budgets[1], delta=1e-5).report()["client"]
    assert report["units_left"] == 0
    assert report["spent_epsilon"] == pytest.approx(smallest_epsilon(1e-5, mu=1 / 4), rel=0.02)
    refusals = (tmp_path / "node1.log").read_text(errors="replace").count("BudgetSpent")
    assert refusals >= 2


HANGS = '''"""As `dpfed deploy` writes it, but that a node may hang at a call that was agreed."""

import time
from pathlib import Path

from dpfed.engines.flower.client_app import client_app
from dpfed.engines.flower.own_data import samples_of_file

PLANS = Path({plans!r})


def load_data(context):
    client = context.node_config["partition-id"]
    calls = PLANS / f"calls-of-{{client}}"
    with calls.open("a") as file:
        file.write(".")
    if (PLANS / f"hang-{{client}}-at-{{calls.stat().st_size}}").exists():
        (PLANS / f"{{client}}-hangs").touch()
        time.sleep(3600)
    return samples_of_file(context)


app = client_app(Path(__file__).with_name("config.toml"), load_data=load_data)
'''


def _upgrade():
    """The commands that docs/deploy.md names for an upgrade."""
    page = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text()
    return re.search(r"To upgrade.*?^```\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[1]


class LostOnce:
    """In process: client 1 in the second round."""

    def draw(self, participants, number):
        return {1: ProtocolStep.UPLOAD} if number == 1 else {}


def test_a_client_killed_then_the_superlink_killed_then_resumed(tmp_path, loopback, tables, same_run):
    """Nodes with their own samples. In round 2 client 1 is killed at its training: the round ends without it. In round
    3 the SuperLink is killed, and all that it started, while client 0 trains. What was released is in the ledger. The
    operator upgrades from version 0.2.9 by the steps of docs/deploy.md, and the run that goes on with a new SuperLink
    is the one of a single process that lost client 1 in round 2."""
    chosen = tables(
        "dp-fedavg",
        *TWO,
        "data.partition=nodes",
        "federation.rounds=3",
        local={"learning_rate": 0.3, "steps": 4, "batch_size": 10},
        privacy=PRIVATE,
    )
    digits = data.load("digits")
    owners = np.arange(len(digits.train_labels)) % 2
    for client in range(2):
        own = {"inputs": digits.train_inputs[owners == client], "labels": digits.train_labels[owners == client]}
        save_file(own, tmp_path / f"own{client}.safetensors")
    app, out, plans = deployed(chosen, tmp_path), tmp_path / "app-run", tmp_path / "plans"
    plans.mkdir()
    started = tmp_path / "watch" / "sitecustomize.py"
    watched = started.read_text()
    started.write_text(f"{watched}\nimport dpfed.version\ndpfed.version.__version__ = '0.2.9'\n")
    (app / "dpfed_app" / "client_app.py").write_text(HANGS.format(plans=str(plans)))
    (plans / "hang-1-at-3").touch()  # calls: introduction, round 1, round 2
    (plans / "hang-0-at-4").touch()
    nodes = [f'partition-id={client} data="{tmp_path}/own{client}.safetensors"' for client in range(2)]
    loopback.start(nodes)
    loopback.begin(app)
    _until((plans / "1-hangs").exists, "client 1 has not come to round 2")
    loopback.kill("node1")
    _until((plans / "0-hangs").exists, "client 0 has not come to round 3")
    loopback.kill("superlink")
    loopback.kill("node0")
    releases = Ledger.read(out / "ledger.jsonl").releases
    assert [one["round"] for one in lines(out, "metrics.jsonl")] == [1, 2]
    assert [one.round for one in releases] == [0, 1]
    for file in plans.glob("hang-*"):
        file.unlink()
    started.write_text(watched)
    *steps, last = _upgrade().splitlines()
    assert last == "flwr run app loopback --run-config resume=true"
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    project = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(re.sub(r"==[\d.]+", "==0.2.9", project))
    subprocess.run(["bash", "-e", "-c", "\n".join(steps)], cwd=tmp_path, env=environment, check=True)
    assert (app / "pyproject.toml").read_text() == project
    loopback.start(nodes)
    loopback.begin(app, "resume=true")
    assert loopback.end_of_run() == "finished:completed"
    data.register("halves", replace(digits, name="halves", train_clients=owners.astype(np.int64), natural_clients=2))
    experiment = build(parse(override(chosen, ["data.name=halves", "data.partition=natural"]), source="test"))
    lost = replace(experiment, method=replace(experiment.method, dropouts=LostOnce()))
    federation.run(lost, tmp_path / "here")
    same_run(tmp_path / "here", out)
    assert [one["arrived"] for one in lines(out, "diagnostics.jsonl")] == [2, 1, 2]


HANGS_AT_ITS_LEDGER = '''"""App as deployed, whose node may hang before or after an upload is stored."""

import time
from hashlib import sha256
from pathlib import Path

from dpfed.engines.flower.client_app import client_app
from dpfed.engines.node_ledger import NodeLedger

PLANS = Path({plans!r})
keep, admit = NodeLedger.keep, NodeLedger.admit


def keeps(self, plan, number, upload):
    _hang(f"{{self.path.parent.name}}-before-{{number}}")
    kept = keep(self, plan, number, upload)
    _sent(self, number, kept)
    _hang(f"{{self.path.parent.name}}-after-{{number}}")
    return kept


def admits(self, plan, number, **more):
    stored = admit(self, plan, number, **more)
    if stored is not None:
        _sent(self, number, stored)
    return stored


def _sent(ledger, number, upload):
    with (PLANS / f"sent-{{ledger.path.parent.name}}").open("a") as file:
        file.write(f"{{number}} {{sha256(upload).hexdigest()}}\\n")


def _hang(place):
    if (PLANS / f"hang-{{place}}").exists():
        (PLANS / f"at-{{place}}").touch()
        time.sleep(3600)


NodeLedger.keep, NodeLedger.admit = keeps, admits
app = client_app(Path(__file__).with_name("config.toml"))
'''


def test_nodes_of_a_deployed_app_keep_their_ledgers_through_kills(tmp_path, loopback, tables):
    """Budgets for three rounds of noise 4. In round 2 all is killed after node 1 stored its upload and before it was
    sent; in round 3 of the resumed run node 0 is killed between its line and its upload.

    Each node has one line a round, a round that is asked again gets the stored bytes, and a second run gets nothing.
    """
    noise = {"clip_norm": 0.5, "noise_multiplier": 4.0, "noise": "discrete-gaussian"}
    rounds = ("federation.rounds=3", "run.randomness=secure")
    app, plans = deployed(tables("dp-fedavg", *TWO, *rounds, privacy=noise), tmp_path), tmp_path / "plans"
    (app / "dpfed_app" / "client_app.py").write_text(HANGS_AT_ITS_LEDGER.format(plans=str(plans)))
    plans.mkdir()
    (plans / "hang-1-after-1").touch()
    (plans / "hang-0-before-2").touch()
    budget = smallest_epsilon(0.99e-5, mu=3**0.5 / 4) * 1.02
    own = [f'partition-id={one} ledger="{tmp_path}/{one}/node.jsonl" epsilon={budget} delta=1e-5' for one in range(2)]

    def charged(number):
        return [one.round for one in Ledger.read(tmp_path / f"{number}/node.jsonl").releases]

    loopback.start(own)
    loopback.begin(app)
    _until((plans / "at-1-after-1").exists, "node 1 has not stored its upload of round 2")
    _until(lambda: len((plans / "sent-0").read_text().splitlines()) == 2, "node 0 has not answered round 2")
    loopback.end()
    assert [one.round for one in Ledger.read(tmp_path / "app-run" / "ledger.jsonl").releases] == [0]
    assert [charged(0), charged(1)] == [[0, 1], [0, 1]]
    (plans / "hang-1-after-1").unlink()
    loopback.start(own)
    loopback.begin(app, "resume=true")
    _until((plans / "at-0-before-2").exists, "node 0 has not come to round 3")
    loopback.kill("node0")
    assert loopback.end_of_run() == "finished:completed"
    assert [one.round for one in Ledger.read(tmp_path / "app-run" / "ledger.jsonl").releases] == [0, 1, 2]
    assert [charged(0), charged(1)] == [[0, 1, 2], [0, 1, 2]], "one line a round, that of the upload that was lost too"
    for number, answered in ((0, [0, 1, 1]), (1, [0, 1, 1, 2])):
        sent = [line.split() for line in (plans / f"sent-{number}").read_text().splitlines()]
        assert [int(one) for one, _ in sent] == answered
        assert sent[1] == sent[2], "the second request for round 2 gets the stored upload"
    assert [one["arrived"] for one in lines(tmp_path / "app-run", "diagnostics.jsonl")] == [2, 2, 1]
    (plans / "hang-0-before-2").unlink()
    loopback.end()
    loopback.start(own)
    loopback.begin(app, f'out="{tmp_path}/second"')
    assert loopback.end_of_run() == "finished:completed"
    assert [one["arrived"] for one in lines(tmp_path / "second", "diagnostics.jsonl")] == [0, 0, 0]
    assert [charged(0), charged(1)] == [[0, 1, 2], [0, 1, 2]]
    assert "BudgetSpent" in (tmp_path / "node1.log").read_text(errors="replace")
