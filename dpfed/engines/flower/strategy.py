"""A Flower strategy that runs `dpfed.federation`'s rounds on nodes."""

from __future__ import annotations

from collections.abc import Iterable
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from dpfed.engines.flower.conversation import Instruction, arrays_of
from dpfed.engines.flower.directory import Directory
from dpfed.engines.flower.inbox import Inbox
from dpfed.federation import Run
from dpfed.ranks import Task
from dpfed.round import canaries_of, open_uploads
from dpfed.sending import Uploading


class PrivateStrategy(Strategy):
    """Cohorts by the configured sampler; uploads parsed as strangers' bytes, summed, decoded, noised; every release
    charged to the ledger before the next broadcast or a line of the folder can show it.

    Claim: that of `dpfed.federation.run`, whatever nodes do, for clients whose own node runs this package: a lost,
    late, double or damaged answer is a client lost, and is charged as one. Rounds are the run's, not Flower's, whose
    loop only turns: once the budget does not pay for another round, its remaining rounds ask nobody.
    """

    def __init__(self, run: Run, directory: Directory, fingerprint: str, *, timeout: float) -> None:
        self._run, self._directory = run, directory
        self._fingerprint, self._timeout = fingerprint, timeout
        self._task: Task | None = None
        self._uploading: Uploading | None = None
        self._asked: dict[int, int] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What to ask of the round's clients; nothing if there is no round to pay for."""
        self._task = self._run.next_task()
        if self._task is None:
            return []
        self._directory.look_again(timeout=self._timeout)
        experiment = self._run.experiment
        self._uploading = open_uploads(self._task, experiment.parts, seeds=experiment.seeds)
        clients = [int(one) for one in self._uploading.total.senders if one < experiment.parts.sampler.clients]
        nodes = {client: self._directory.node_of(client) for client in clients}
        self._asked = {node: client for client, node in nodes.items() if node is not None}
        cohort = set(self._task.cohort.tolist())
        return [
            Message(
                self._instruction(self._task, train=client in cohort).to_content(),
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
        present = canaries_of(experiment.parts, task.state.round)[0]
        inbox = Inbox(uploading, task.cohort[task.cohort < experiment.parts.sampler.clients].tolist())
        uploading.canaries(np.intersect1d(uploading.total.senders, present))
        nowhere = np.setdiff1d(uploading.total.senders, [*self._asked.values(), *present.tolist()])
        inbox.lose(nowhere)
        sent = inbox.take(self._asked, replies)
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
        config = self._run.experiment.config
        log(INFO, "\t├── dpfed: %s on %s", config.method.name, config.data.name)
        log(INFO, "\t└── %s clients, %s a round", config.federation.clients, config.federation.cohort)

    def _instruction(self, task: Task, *, train: bool) -> Instruction:
        return Instruction(
            round=task.state.round,
            clip_norm=task.state.clip_norm,
            broadcast=task.state.broadcast,
            train=train,
            fingerprint=self._fingerprint,
        )
