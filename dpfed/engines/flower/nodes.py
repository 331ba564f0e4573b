"""Clients on Flower's nodes, as a source of a round's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpfed.aggregation.plain import PlainSums
from dpfed.aggregation.secure import SecureSums
from dpfed.aggregation.summed import Sums
from dpfed.engines.flower.conversation import Instruction, read_answer
from dpfed.engines.flower.directory import Directory
from dpfed.engines.flower.in_flight import most_at_once
from dpfed.engines.flower.inbox import Inbox, NodesTotal, only_once, sees_rows
from dpfed.engines.flower.losses import note_loss
from dpfed.engines.flower.secure_sum import NodeSum, NodeSums, Question
from dpfed.errors import WireError
from dpfed.round import Method, OpenRound, add_canaries, present_canaries


class Nodes:
    """Uploads are parsed as strangers' bytes: a lost, late, double or damaged answer is a client lost."""

    def __init__(self, directory: Directory, grid: Grid, fingerprint: str, *, timeout: float) -> None:
        self._directory, self._grid = directory, grid
        self._fingerprint, self._timeout = fingerprint, timeout

    def take_part(self, opened: OpenRound[NodesTotal]) -> None:
        """Ask the clients that have a node, take what comes, note who is lost."""
        method, now, total = opened.method, opened.now, opened.total
        self._directory.look_again(timeout=self._timeout)
        ask = partial(self._ask, now.number)
        if isinstance(total, NodeSum):
            total.begin(ask, now.task.participants)
        clients = [int(one) for one in total.senders if one < method.sampler.clients]
        nodes = {client: self._directory.node_of(client) for client in clients}
        asked = {node: client for client, node in nodes.items() if node is not None}
        present, inbox = present_canaries(method, now.number), Inbox(opened)
        if sees_rows(opened):
            add_canaries(opened, np.intersect1d(total.senders, present))
        inbox.lose(np.setdiff1d(total.senders, [*asked.values(), *present.tolist()]))
        replies = self._grid.send_and_receive(self._instructions(opened, asked), timeout=self._timeout)
        inbox.take(asked, replies, at_once=most_at_once(len(now.broadcast)))
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
                fingerprint=self._fingerprint,
                forwarded=total.forwarded[client] if isinstance(total, NodeSum) else b"",
            )
            yield Message(instruction.to_content(), dst_node_id=node, message_type=MessageType.TRAIN)

    def _ask(self, number: int, question: Question, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """A step of round `number`'s secure sum, to the clients that have a node; what is no answer is left out."""
        nodes = {client: self._directory.node_of(client) for client in messages}
        common: dict[str, Any] = {"round": number, "fingerprint": self._fingerprint}
        clients = {node: client for client, node in nodes.items() if node is not None}
        asked = [
            Message(
                RecordDict({"config": ConfigRecord({**common, "message": messages[client]})}),
                dst_node_id=node,
                message_type=f"{MessageType.QUERY}.{question}",
            )
            for node, client in clients.items()
        ]
        replies = list(self._grid.send_and_receive(asked, timeout=self._timeout)) if asked else []
        answers: dict[int, bytes] = {}
        for node, reply in only_once(replies, clients):
            try:
                answers[clients[node]] = read_answer(reply)
            except WireError as error:
                note_loss(clients[node], f"at step {question}", error)
        return answers


def sums_of_nodes(method: Method) -> Sums[NodesTotal]:
    """As the configuration says; the protocol's clients are on the nodes."""
    if isinstance(method.aggregation, SecureSums):
        return NodeSums(terms=method.aggregation)
    assert isinstance(method.aggregation, PlainSums)
    return method.aggregation
