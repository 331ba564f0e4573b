"""Flower without a network: a grid whose nodes are objects of this process."""

import os
import random

import pytest
import torch

from dpfed.config import override, parse
from dpfed.errors import DpfedError

torch.set_num_threads(1)

TABLES = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8]},
    "federation": {"clients": 20, "cohort": 8, "rounds": 2},
    "local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10},
    "method": {"name": "fedavg"},
}


def tables_of(method, *settings, privacy=None, **more):
    tables = TABLES | {"method": {"name": method}} | more | ({"privacy": privacy} if privacy else {})
    return override(tables, settings)


@pytest.fixture
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
        self.rounds = []

    def get_node_ids(self):
        return list(self.clients)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
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


@pytest.fixture
def checked():
    return lambda tables: parse(tables, source="test")
