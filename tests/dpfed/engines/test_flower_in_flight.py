"""Messages on their way: only so many at a time, and a client that does not answer does not stop the others."""

import itertools
import time

import pytest

from dpfed.runs.experiment import build

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from dpfed.engines.flower.nodes import BoundedGrid
from dpfed.engines.flower.server_app import serve_run


class Slow:
    """A grid that answers one message each time it is asked; nodes in `silent` never answer."""

    def __init__(self, silent=()):
        self.silent, self.open, self.most, self.made = set(silent), {}, 0, 0

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.made += 1
            message.metadata.__dict__["_message_id"] = f"m{self.made}"
            self.open[f"m{self.made}"] = message
            ids.append(f"m{self.made}")
        self.most = max(self.most, len(self.open))
        return ids

    def pull_messages(self, message_ids):
        able = [key for key in message_ids if self.open[key].metadata.dst_node_id not in self.silent]
        return [Message(RecordDict(), reply_to=self.open.pop(key)) for key in able[-1:]]


def messages(count):
    for node in range(1, count + 1):
        yield Message(RecordDict({"config": ConfigRecord()}), dst_node_id=node, message_type=MessageType.TRAIN)


@pytest.fixture(autouse=True)
def _identity():
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


def nodes_of(replies):
    return sorted(reply.metadata.src_node_id for reply in replies)


def test_all_answer_and_no_more_than_allowed_are_on_their_way():
    inner = Slow()
    assert nodes_of(BoundedGrid(inner, at_once=3).send_and_receive(messages(20), timeout=60.0)) == list(range(1, 21))
    assert inner.most == 3


def test_messages_are_made_when_there_is_room():
    inner = Slow()
    replies = BoundedGrid(inner, at_once=4).send_and_receive(messages(100), timeout=60.0)
    next(replies)
    assert inner.made == 4
    assert len(list(itertools.islice(replies, 5))) == 5
    assert inner.made <= 10


def test_clients_without_an_answer_time_out_and_the_others_are_asked():
    inner, began = Slow(silent={1, 2, 3}), time.monotonic()
    assert nodes_of(BoundedGrid(inner, at_once=3).send_and_receive(messages(12), timeout=2.0)) == list(range(4, 13))
    assert time.monotonic() - began < 6


def test_without_messages_it_does_not_wait():
    assert list(BoundedGrid(Slow(), at_once=3).send_and_receive([], timeout=60.0)) == []


def test_a_round_that_does_not_fit_is_the_same_but_for_the_order_of_its_sum(
    tmp_path, monkeypatch, grid, tables, checked, as_in_process
):
    monkeypatch.setattr("dpfed.engines.flower.nodes.BYTES", 1)
    monkeypatch.setattr("dpfed.engines.flower.nodes.LEAST", 2)
    chosen = tables("dp-fedavg", privacy={"clip_norm": 0.5, "accountant": "rdp", "noise_multiplier": 2.0})
    nodes = grid(chosen)
    serve_run(nodes, build(checked(chosen)), tmp_path / "there")
    assert max(len(asked) for asked, _ in nodes.rounds) == 2
    as_in_process(chosen, tmp_path / "there")
