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

from dpfed.aggregation.plain import PlainSums
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.secure import SecureSums
from dpfed.aggregation.summed import Sums
from dpfed.engines.flower.conversation import Instruction, arrays_of, read_answer
from dpfed.engines.flower.directory import Directory
from dpfed.engines.flower.inbox import Inbox, NodesTotal, only_once, sees_rows
from dpfed.engines.flower.losses import note_loss
from dpfed.engines.flower.secure_sum import NodeSum, NodeSums, Question
from dpfed.errors import WireError
from dpfed.parts import Parts
from dpfed.round import canaries_of, open_into
from dpfed.run.loop import Run
from dpfed.sending import Uploading


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
        self._task: Task | None = None
        self._uploading: Uploading[NodesTotal] | None = None
        self._sums = _sums_of(run.experiment.method)
        self._asked: dict[int, int] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What to ask of the round's clients; nothing if there is no round to pay for."""
        self._task = self._run.next_task(self._stop)
        if self._task is None:
            return []
        self._directory.look_again(timeout=self._timeout)
        experiment = self._run.experiment
        self._uploading = open_into(self._sums, self._task, experiment.method, seeds=experiment.seeds)
        if isinstance(self._uploading.total, NodeSum):
            self._uploading.total.begin(partial(self._ask, grid), self._task.participants)
        clients = [int(one) for one in self._uploading.total.senders if one < experiment.method.sampler.clients]
        nodes = {client: self._directory.node_of(client) for client in clients}
        self._asked = {node: client for client, node in nodes.items() if node is not None}
        cohort = set(self._task.cohort.tolist())
        return [
            Message(
                self._instruction(self._task, client, train=client in cohort).to_content(),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
            )
            for node, client in self._asked.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The round's sum, charged; the new broadcast and what may be published of the round."""
        task, uploading = self._task, self._uploading
        if task is None or uploading is None:
            return None, None
        experiment = self._run.experiment
        present = canaries_of(experiment.method, task.state.round)[0]
        inbox = Inbox(uploading, task.cohort[task.cohort < experiment.method.sampler.clients].tolist())
        if sees_rows(uploading):
            uploading.canaries(np.intersect1d(uploading.total.senders, present))
        nowhere = np.setdiff1d(uploading.total.senders, [*self._asked.values(), *present.tolist()])
        inbox.lose(nowhere)
        sent = inbox.take(self._asked, replies)
        if isinstance(uploading.total, NodeSum):
            uploading.total.finish(partial(self._ask, self._grid))
        self._task, self._uploading = None, None
        record = self._run.finish_round(uploading, sent)
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

    def _ask(self, grid: Grid, question: Question, messages: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """A step of the secure sum, to the clients that have a node; what is no answer is left out."""
        assert self._task is not None
        nodes = {client: self._directory.node_of(client) for client in messages}
        common: dict[str, Any] = {"round": self._task.state.round, "fingerprint": self._fingerprint}
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

    def _instruction(self, task: Task, client: int, *, train: bool) -> Instruction:
        total = self._uploading.total if self._uploading is not None else None
        return Instruction(
            round=task.state.round,
            clip_norm=task.state.clip_norm,
            broadcast=task.state.broadcast,
            train=train,
            fingerprint=self._fingerprint,
            forwarded=total.forwarded[client] if isinstance(total, NodeSum) else b"",
        )


def _sums_of(parts: Parts) -> Sums[NodesTotal]:
    """As the configuration says; the protocol's clients are on the nodes."""
    if isinstance(parts.sums, SecureSums):
        return NodeSums(terms=parts.sums)
    assert isinstance(parts.sums, PlainSums)
    return parts.sums
