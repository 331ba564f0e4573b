"""A Flower strategy that runs `dpfed.run.loop`'s rounds on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from dpfed.aggregation.secure import SecureSums
from dpfed.aggregation.sums import PlainSums, Sums
from dpfed.engines.flower.conversation import Instruction, arrays_of, read_answer
from dpfed.engines.flower.directory import Directory
from dpfed.engines.flower.in_flight import most_at_once
from dpfed.engines.flower.inbox import Inbox, NodesTotal, only_once, sees_rows
from dpfed.engines.flower.losses import note_loss
from dpfed.engines.flower.secure_sum import NodeSum, NodeSums, Question
from dpfed.errors import WireError
from dpfed.round import Method, add_canaries, present_canaries
from dpfed.run.loop import Run
from dpfed.run.watched import WatchedRound, open_watched


class PrivateStrategy(Strategy):
    """Cohorts by the configured sampler; uploads parsed as strangers' bytes, summed, decoded, noised; every release
    charged to the ledger before the next broadcast or a line of the folder can show it.

    Claim: that of `dpfed.run.loop.run`, whatever nodes do, for clients whose own node runs this package: a lost,
    late, double or damaged answer is a client lost, and is charged as one. Rounds are the run's, not Flower's, whose
    loop only turns: once the budget does not pay for another round, its remaining rounds ask nobody.
    """

    def __init__(
        self,
        run: Run,
        directory: Directory,
        grid: Grid,
        fingerprint: str,
        *,
        timeout: float,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stop = stop
        self._run, self._directory, self._grid = run, directory, grid
        self._fingerprint, self._timeout = fingerprint, timeout
        self._opened: WatchedRound[NodesTotal] | None = None
        self._sums = _sums_of(run.experiment.method)
        self._asked: dict[int, int] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What to ask of the round's clients; nothing if there is no round to pay for."""
        self._opened, self._asked = None, {}
        now = self._run.next_round(self._stop)
        if now is None:
            return []
        self._directory.look_again(timeout=self._timeout)
        method = self._run.experiment.method
        self._opened = opened = open_watched(now, method, self._sums)
        if isinstance(opened.total, NodeSum):
            opened.total.begin(partial(self._ask, grid, now.number), now.task.participants)
        clients = [int(one) for one in opened.total.senders if one < method.sampler.clients]
        nodes = {client: self._directory.node_of(client) for client in clients}
        self._asked = {node: client for client, node in nodes.items() if node is not None}
        cohort = set(now.task.cohort.tolist())
        return (
            Message(
                self._instruction(opened, client, train=client in cohort).to_content(),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
            )
            for node, client in self._asked.items()
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The round's sum, charged; the new broadcast and what may be published of the round."""
        opened, self._opened = self._opened, None
        if opened is None:
            return None, None
        present = present_canaries(opened.method, opened.now.number)
        inbox = Inbox(opened)
        if sees_rows(opened):
            add_canaries(opened, np.intersect1d(opened.total.senders, present))
        nowhere = np.setdiff1d(opened.total.senders, [*self._asked.values(), *present.tolist()])
        inbox.lose(nowhere)
        inbox.take(self._asked, replies, at_once=most_at_once(len(self._run.state.broadcast)))
        if isinstance(opened.total, NodeSum):
            opened.total.finish(partial(self._ask, self._grid, opened.now.number))
        record = self._run.finish_round(opened)
        if record is None:
            return None, None
        shown: dict[str, Any] = {name: value for name, value in record.items() if isinstance(value, int | float)}
        return arrays_of(self._run.state.broadcast), MetricRecord(shown)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody: the server evaluates on public test data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """What Flower shows at the start."""
        config, drawn = self._run.experiment.config, self._run.experiment.method.sampler
        log(INFO, "\t├── dpfed: %s on %s", config.method.name, config.data.name)
        log(INFO, "\t└── %s clients, %g a round", drawn.clients, drawn.expected)

    def _ask(self, grid: Grid, number: int, question: Question, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """A step of round `number`'s secure sum, to the clients that have a node; what is no answer is left out."""
        nodes = {client: self._directory.node_of(client) for client in messages}
        common: dict[str, Any] = {"round": number, "fingerprint": self._fingerprint}
        asked = [
            Message(
                RecordDict({"config": ConfigRecord({**common, "message": messages[client]})}),
                dst_node_id=node,
                message_type=f"{MessageType.QUERY}.{question}",
            )
            for client, node in nodes.items()
            if node is not None
        ]
        clients = {node: client for client, node in nodes.items() if node is not None}
        replies = list(grid.send_and_receive(asked, timeout=self._timeout)) if asked else []
        answers: dict[int, bytes] = {}
        for node, reply in only_once(replies, clients):
            try:
                answers[clients[node]] = read_answer(reply)
            except WireError as error:
                note_loss(clients[node], f"at step {question}", error)
        return answers

    def _instruction(self, opened: WatchedRound[NodesTotal], client: int, *, train: bool) -> Instruction:
        now, total = opened.now, opened.total
        return Instruction(
            round=now.number,
            clip_norm=now.clip_norm,
            broadcast=now.broadcast,
            train=train,
            fingerprint=self._fingerprint,
            forwarded=total.forwarded[client] if isinstance(total, NodeSum) else b"",
        )


def _sums_of(method: Method) -> Sums[NodesTotal]:
    """As the configuration says; the protocol's clients are on the nodes."""
    if isinstance(method.aggregation, SecureSums):
        return NodeSums(terms=method.aggregation)
    assert isinstance(method.aggregation, PlainSums)
    return method.aggregation
