"""Flower without a network: a grid whose nodes are objects of this process."""

import json
import os
import random
import socket
import sys
import uuid
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from accounting import Ledger
from dpfed.config.tables import override, parse
from dpfed.errors import DpfedError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import DIGITS
from ...rounds import tables as changed

torch.set_num_threads(1)

TABLES = changed(DIGITS, federation={"clients": 20, "cohort": 8, "rounds": 2}, method={"name": "fedavg"}, privacy=None)


def tables_of(method, *settings, privacy=None, **more):
    tables = TABLES | {"method": {"name": method}} | more | ({"privacy": privacy} if privacy else {})
    return override(tables, settings)


@pytest.fixture(scope="session")
def tables():
    """`tables("dp-fedavg", "table.key=value", ..., privacy={...})`."""
    return tables_of


@pytest.fixture
def grid():
    """`grid(tables, faults={client: fault}, load_data=...)`: `fault` gets the good reply and gives back a list of
    replies."""
    from dpfed.engines.flower.settings import QUIET

    os.environ.update(QUIET)
    pytest.importorskip("flwr", reason="flwr is not installed: pip install -c constraints-flower.txt -e '.[flower]'")
    return FakeGrid


class FakeGrid:
    """One node a client, asked in turn; replies come in an order that has nothing to do with them."""

    def __init__(self, tables, *, faults=None, load_data=None, node_of=lambda client: 1000 - client):
        from flwr.app import Context, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        from dpfed.engines.flower.client_app import client_app

        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.app, self.faults = client_app(tables, load_data=load_data), faults or {}
        self.clients = {node_of(client): client for client in range(tables["federation"]["clients"])}
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": client, "num-partitions": len(self.clients)},
                state=RecordDict(),
                run_config={},
            )
            for node, client in self.clients.items()
        }
        self.rounds, self.messages, self.kept = [], [], {}

    def push_messages(self, messages):
        """Answered at once; a message that gets no reply has no id, so that nobody waits for one."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        for reply in self.send_and_receive(messages):
            self.kept.setdefault(reply.metadata.reply_to_message_id, []).append(reply)
        return [one.metadata.message_id for one in messages if one.metadata.message_id in self.kept]

    def pull_messages(self, message_ids):
        return [reply for key in message_ids for reply in self.kept.pop(key, [])]

    def get_node_ids(self):
        return list(self.clients)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.messages += messages
        replies = [reply for message in messages for reply in self._answers(message)]
        random.Random(len(self.rounds)).shuffle(replies)
        if any(message.metadata.message_type == "train" for message in messages) or not messages:
            self.rounds.append(([self.clients[one.metadata.dst_node_id] for one in messages], replies))
        return replies

    def _answers(self, message):
        node = message.metadata.dst_node_id
        fault = self.faults.get(self.clients[node])
        good = self._good(message, self.contexts[node])
        return [good] if fault is None or message.metadata.message_type != "train" else fault(good, message)

    def _good(self, message, context):
        """What the app says; an error where it raises one of the package's, as Flower's nodes do."""
        from flwr.app import Error, Message

        try:
            return self.app(message, context)
        except DpfedError as error:
            if message.metadata.message_type == "train":
                raise
            return Message(Error(code=1, reason=str(error)), reply_to=message)


@pytest.fixture(scope="session", name="same_run")
def _same_run():
    return same_run


def same_run(here, there, *, but=()):
    """Two run folders: cohorts, ledger, epsilon and bytes the same; weights up to the order of float sums.
    but: numbers of a round that may differ.
    """
    summaries = [json.loads((one / "summary.json").read_text()) for one in (here, there)]
    for key in ("epsilon", "server_epsilon", "rounds", "aborted_rounds", "stopped_by", *_BYTES):
        assert summaries[1][key] == summaries[0][key], key
    if (here / "ledger.jsonl").exists():
        releases = [Ledger.read(one / "ledger.jsonl").releases for one in (here, there)]
        assert [one.to_dict() for one in releases[1]] == [one.to_dict() for one in releases[0]]
    observed = [
        [json.loads(line) for line in (one / "diagnostics.jsonl").read_text().splitlines()] for one in (here, there)
    ]
    for before, after in zip(*observed, strict=True):
        for key in {"cohort", "participants", "arrived", "uplink_bytes", "divisor", "not_finite"}.difference(but):
            assert after[key] == before[key], key
    weights, others = (load_file(one / "model.safetensors") for one in (here, there))
    for name, values in weights.items():
        torch.testing.assert_close(others[name], values, atol=2e-5, rtol=2e-5)


_BYTES = ("uplink_megabytes_total", "uplink_bytes_per_client_round", "secure_sum_bytes_per_client_round")


@pytest.fixture(scope="session")
def as_in_process():
    """`as_in_process(tables, there)`: the run in the folder `there` is the run that one process does."""

    def compare(tables, there):
        here = there.with_name(f"{there.name}-here")
        federation.run(build(parse(tables, source="test")), here)
        same_run(here, there)

    return compare


@pytest.fixture(scope="session")
def flower(tmp_path_factory):
    """`flower(folder)`: an environment in which Flower is quiet and keeps to this folder; every connection that one of
    its Python processes makes is a line of folder/connections."""
    from dpfed.engines.flower.settings import QUIET

    def environment(folder):
        for name in ("flwr", "watch"):
            (folder / name).mkdir()
        (folder / "watch" / "sitecustomize.py").write_text(_WATCH.format(log=str(folder / "connections")))
        return {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(folder / "flwr"),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder / "watch"),
        }

    return environment


@pytest.fixture(scope="session")
def strangers():
    """`strangers(folder)`: other machines that were called, or asked for, of those that `flower(folder)` has seen."""

    def found(folder):
        places = {line.split()[0] for line in (folder / "connections").read_text().splitlines()}
        assert places, "nothing was watched"
        return {place for place in places if not _here(place)}

    return found


def _here(place):
    """Only addresses of one's own can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in place else socket.AF_INET) as probe:
        try:
            probe.bind((place, 0))
        except OSError:
            return False
    return True


_WATCH = """
import os, socket, sys


def _look(event, arguments):
    if event == "socket.connect" and arguments[0].family != socket.AF_UNIX:
        place = arguments[1][0]
    elif event == "socket.getaddrinfo":
        place = arguments[0]
    else:
        return
    with open({log!r}, "a") as log:
        log.write(f"{{place}} {{sys.argv[0]}}\\n")


sys.addaudithook(_look)
"""


@pytest.fixture
def checked():
    return lambda tables: parse(tables, source="test")
