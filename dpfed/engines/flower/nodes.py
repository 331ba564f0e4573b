"""Source of a round's rows whose clients train on Flower's nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpfed.aggregation.sums import PlainSums, SecureSums, Sums
from dpfed.engines.flower.conversation import Instruction, charge_text, log_dropout, read_answer
from dpfed.engines.flower.directory import NodeDirectory
from dpfed.engines.flower.inbox import NodesTotal, RoundInbox, server_sees_rows, single_replies
from dpfed.engines.flower.secure_sum import NodeSum, NodeSums, Question
from dpfed.errors import WireError
from dpfed.round import Method, OpenRound, present_canaries

BYTES = 2**30
"""Approximate number of bytes of all messages in flight together."""
LEAST = 64

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_ROOM_AFTER = 0.1
"""Fraction of the time limit after which an unanswered message no longer counts as in flight; its node may be gone."""


@dataclass(kw_only=True, eq=False)
class NodeSource:
    """Source of a round's rows: clients on Flower's nodes.

    Uploads are parsed as untrusted bytes. A client whose reply is missing, late, duplicate or damaged drops out.

    agreed: fingerprint of the configuration and calibrated noise, which every message contains
    timeout: seconds to wait for replies
    run: identity of the run's ledger, for nodes with a ledger of their own; empty for simulated noise. repeated: number
    of charges of interrupted rounds, by which the numbers of a node's charges are ahead of the rounds
    """

    directory: NodeDirectory
    grid: Grid
    agreed: Mapping[str, str]
    timeout: float
    run: str
    repeated: int
    _heads: dict[int, str] = field(default_factory=dict, init=False)

    def take_part(self, opened: OpenRound[NodesTotal]) -> None:
        """Send instructions to the clients that have a node, add their replies to the sum, and record dropped
        clients."""
        method, now, total = opened.method, opened.now, opened.total
        self.directory.ask_new_nodes(timeout=self.timeout)
        ask = partial(self._ask_step, now.number)
        if isinstance(total, NodeSum):
            total.begin(ask, now.task.participants)
        clients = [int(one) for one in total.senders if one < method.sampler.clients]
        asked = {node: client for client in clients if (node := self.directory.node_of(client)) is not None}
        present, inbox = present_canaries(method, now.number), RoundInbox(opened)
        if server_sees_rows(opened):
            opened.add_canaries(np.intersect1d(total.senders, present))
        total.record_dropouts(np.setdiff1d(total.senders, [*asked.values(), *present.tolist()]))
        replies = self.grid.send_and_receive(self._instructions(opened, asked), timeout=self.timeout)
        inbox.take_replies(asked, replies, at_once=most_messages_in_flight(len(now.broadcast)))
        self._heads |= inbox.heads
        if isinstance(total, NodeSum):
            total.finish(ask)

    def _instructions(self, opened: OpenRound[NodesTotal], asked: Mapping[int, int]) -> Iterator[Message]:
        now, total = opened.now, opened.total
        cohort = set(now.task.cohort.tolist())
        for node, client in asked.items():
            instruction = Instruction(
                round=now.number,
                clip_norm=now.clip_norm,
                broadcast=now.broadcast,
                train=client in cohort,
                **self.agreed,
                charge=self._charge(client, now.number),
                forwarded=total.forwarded[client] if isinstance(total, NodeSum) else b"",
            )
            yield Message(instruction.to_content(), dst_node_id=node, message_type=MessageType.TRAIN)

    def _charge(self, client: int, number: int) -> str:
        return charge_text(self.run, number + self.repeated, self._heads.get(client, ""))

    def _ask_step(self, number: int, question: Question, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send a step of the secure sum of round `number` to clients that have a node; return their valid answers by
        client."""
        clients = {node: client for client in messages if (node := self.directory.node_of(client)) is not None}

        def content(client: int) -> RecordDict:
            own = {"charge": self._charge(client, number), "message": messages[client]}
            return RecordDict({"config": ConfigRecord({"round": number, **self.agreed, **own})})

        kind = f"{MessageType.QUERY}.{question}"
        asked = [Message(content(client), dst_node_id=node, message_type=kind) for node, client in clients.items()]
        replies = list(self.grid.send_and_receive(asked, timeout=self.timeout)) if asked else []
        answers: dict[int, bytes] = {}
        for node, reply in single_replies(replies, clients):
            try:
                answers[clients[node]] = read_answer(reply)
            except WireError as error:
                log_dropout(clients[node], f"at step {question}", error)
        return answers


def sums_of_nodes(method: Method) -> Sums[NodesTotal]:
    """Return the configured sums; in the secure-sum protocol, clients run on the nodes."""
    if isinstance(method.aggregation, SecureSums):
        return NodeSums(terms=method.aggregation)
    assert isinstance(method.aggregation, PlainSums)
    return method.aggregation


def most_messages_in_flight(numbers: int) -> int:
    """Return the largest number of messages in flight, if each contains a model of `numbers` float32 numbers."""
    return max(LEAST, BYTES // (4 * max(numbers, 1)))


class BoundedGrid:
    """Flower grid whose `send_and_receive` has at most `at_once` messages in flight and yields replies as they arrive.

    Flower's own `send_and_receive` holds all messages of a round, then all replies, and polls every three seconds: at
    100,000 clients of 2.3 MB that is 230 GB twice. Here `messages` may be a generator: a message is made when
    fewer than `at_once` are in flight. An unanswered message counts as in flight for a tenth of `timeout` only, but the
    node may answer until `timeout` is over.
    """

    def __init__(self, grid: Grid, *, at_once: int) -> None:
        self._grid, self._at_once = grid, at_once

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Yield replies in the order of arrival, until all have arrived or `timeout` seconds have passed."""
        waiting, sent, pause = iter(messages), dict[str, float](), _FIRST_PAUSE
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        patience = float("inf") if timeout is None else timeout * _ROOM_AFTER
        while True:
            now = time.monotonic()
            room = self._at_once - sum(now - began < patience for began in sent.values())
            if batch := list(itertools.islice(waiting, max(room, 0))):
                sent |= dict.fromkeys(self._grid.push_messages(batch), now)
                del batch
            elif not sent:
                return
            replies = list(self._grid.pull_messages(list(sent))) if sent else []
            for reply in replies:
                sent.pop(reply.metadata.reply_to_message_id, None)
            yield from replies
            pause = _FIRST_PAUSE if replies else min(1.5 * pause, _LONGEST_PAUSE)
            if time.monotonic() >= end:
                return
            if not replies:
                time.sleep(pause)
