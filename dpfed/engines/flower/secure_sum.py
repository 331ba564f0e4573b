"""The secure-sum protocol on Flower, both sides: four steps of messages.

The server receives masked rows only. A node's state has its client's keys and shares between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from dpfed.aggregation.client import Client
from dpfed.aggregation.messages import Agreement, MessageKind, ProtocolStep, StepPlan, party_of
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.server import Server
from dpfed.aggregation.sums import SecureSums, SumResult, require_enough_uploads
from dpfed.compress.fixed_point import unpack_row
from dpfed.engines.flower.conversation import log_dropout
from dpfed.errors import SecureSumAborted, WireError
from dpfed.runs.experiment import Experiment

Question = Literal["advertise", "share", "unmask"]
Ask = Callable[[Question, Mapping[int, bytes]], Mapping[int, bytes]]
"""Function that sends messages to clients, given by client, and returns their answers by client."""


@dataclass(frozen=True, kw_only=True)
class NodeSums:
    """Secure sums by the protocol (`SecureSums` of kind "protocol") whose clients run on nodes."""

    terms: SecureSums

    def open(self, task: Task, *, size: int, dtype: torch.dtype) -> NodeSum:
        agreement = self.terms.agreed_terms(task.participants, size=size, number=task.state.round)
        device = task.state.broadcast.device
        return NodeSum(agreement, StepPlan(agreement, task.dropouts), tolerance=self.terms.tolerance, device=device)

    def overhead_bits(self, participants: int) -> int:
        return self.terms.overhead_bits(participants)


class NodeSum:
    """Secure sum of one round: `begin`, then `take` for each upload, `finish` and `close`.

    `close` raises the abort of any step. A client that drops out by the configuration (aggregation.dropout) is not
    asked from its step on.
    """

    def __init__(self, agreement: Agreement, turns: StepPlan, *, tolerance: float | None, device: torch.device) -> None:
        self.agreement, self._turns, self._tolerance, self._device = agreement, turns, tolerance, device
        self._server = Server(agreement)
        self._aborted: SecureSumAborted | None = None
        # clients that were asked for an upload, and clients whose upload has arrived
        self.senders = self.arriving = np.zeros(0, dtype=np.int64)
        self.forwarded: Mapping[int, bytes] = {}

    def begin(self, ask: Ask, participants: NDArray[np.int64]) -> None:
        """Run steps 0 and 1: collect the clients' keys, and the shares of secrets that clients send each other."""
        listed = participants.astype("<i8").tobytes() + self.agreement.session
        try:
            self._run_step("advertise", ask, dict.fromkeys(self._turns.clients_at(ProtocolStep.ADVERTISE), listed))
            keys = self._server.close_step()
            self._run_step("share", ask, self._of_clients_at(ProtocolStep.SHARE, keys))
            self.forwarded = self._server.close_step()
            upload = self._turns.clients_at(ProtocolStep.UPLOAD)
            self.senders = np.array([client for client in upload if client in self.forwarded], dtype=np.int64)
        except SecureSumAborted as aborted:
            self._aborted = aborted

    def take(self, client: int, message: bytes) -> None:
        """Add a client's masked row; raises WireError for a row that is late, or that names another client or round."""
        if party_of(message, MessageKind.UPLOAD, self.agreement.session) != client:
            raise WireError("a masked row of another client.")
        if self._turns.is_late(client):
            raise WireError("came too late.")
        self._server.receive(message)
        self.arriving = np.union1d(self.arriving, [client])

    def finish(self, ask: Ask) -> None:
        """Collect the shares that remove the masks; they are requested only if the sum may be opened."""
        if self._aborted is not None:
            return
        try:
            require_enough_uploads(len(self.arriving), len(self.agreement.graph.circle), self._tolerance)
            requests = self._server.close_step()
            self._run_step("unmask", ask, self._of_clients_at(ProtocolStep.UNMASK, requests))
        except SecureSumAborted as aborted:
            self._aborted = aborted

    def close(self) -> SumResult:
        if self._aborted is not None:
            raise self._aborted
        try:
            summed = self._server.close()
        except WireError as error:
            raise SecureSumAborted(f"the secure sum ended at step unmask: {error} Nothing of it is released.") from None
        total = torch.from_numpy(summed.total.astype(np.int64)).to(self._device)
        return SumResult(total=total, included_clients=summed.included_clients)

    def record_dropouts(self, clients: NDArray[np.int64]) -> None:
        """Do nothing: the protocol itself records which clients arrive."""

    def _of_clients_at(self, step: ProtocolStep, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        return {one: messages[one] for one in self._turns.clients_at(step) if one in messages}

    def _run_step(self, question: Question, ask: Ask, messages: Mapping[int, bytes]) -> None:
        for client, answer in sorted(ask(question, messages).items()):
            try:
                if party_of(answer, MessageKind[question.upper()], self.agreement.session) != client:
                    raise WireError("speaks for another client.")
                self._server.receive(answer)
            except WireError as error:
                log_dropout(client, f"at step {question} of the secure sum", error)


_STATE = "dpfed.secure-sum"
_SESSION = 16


def publish_keys(experiment: Experiment, client: int, number: int, message: bytes, context: Context) -> bytes:
    """Run step 0 of the protocol: publish the client's keys.

    The server's message contains the participants and the session; all other settings are in the configuration.

    Raises SecureSumAborted for fewer participants than the configuration's minimum, because their sum would have less
    noise than this client's share is sized for. Raises WireError if a participant is not a client of the run, or if
    this client is not a participant.
    """
    agreement = _agreement_of_round(experiment, number, message)
    if client not in agreement.graph.circle:
        raise WireError(
            f"client {client}: the server asked for a step of a secure sum without naming this client a participant; "
            "refused."
        )
    one = Client(agreement, client)
    answer = one.advertise()
    _keep_client(context, one, number, message)
    return answer


def send_shares(experiment: Experiment, client: int, number: int, message: bytes, context: Context) -> bytes:
    """Run step 1 of the protocol: send shares of the client's secrets to its neighbours."""
    one, terms = _recall_client(experiment, client, number, context)
    answer = one.share(message)
    _keep_client(context, one, number, terms)
    return answer


def send_masked_row(
    experiment: Experiment, client: int, number: int, message: bytes, payload: bytes, context: Context
) -> bytes:
    """Run step 2 of the protocol: send the masked row of integers."""
    one, terms = _recall_client(experiment, client, number, context)
    one.store_shares(message)
    agreement = _agreement_of_round(experiment, number, terms)
    words = unpack_row(memoryview(payload), agreement.size, agreement.bits)
    upload = one.upload(words.astype(np.uint32))
    _keep_client(context, one, number, terms)
    return upload


def send_unmasking_shares(experiment: Experiment, client: int, number: int, message: bytes, context: Context) -> bytes:
    """Run step 3 of the protocol: send the shares that remove masks, and delete the secrets of the round."""
    one, _ = _recall_client(experiment, client, number, context)
    del context.state[_STATE]
    return one.unmask(message)


def _agreement_of_round(experiment: Experiment, number: int, terms: bytes) -> Agreement:
    method = experiment.method
    assert isinstance(method.aggregation, SecureSums)
    if len(terms) < _SESSION or len(terms) % 8:
        raise WireError(f"terms of {len(terms)} bytes: must be participants of 8 bytes each and a session of 16.")
    participants = np.frombuffer(terms[:-_SESSION], dtype="<i8").astype(np.int64)
    clients = experiment.config.federation.clients
    strange = participants[(participants < 0) | (participants >= clients)]
    if len(strange) or len(np.unique(participants)) < len(participants):
        raise WireError(
            f"{len(participants)} participants, of which {len(strange)} are no clients of this run, or some named "
            f"twice: must be different ones of 0 to {clients - 1}; refused."
        )
    agreement = method.aggregation.agreed_terms(participants, size=method.stages.width, number=number)
    return replace(agreement, session=terms[-_SESSION:])


def _keep_client(context: Context, one: Client, number: int, terms: bytes) -> None:
    context.state[_STATE] = ConfigRecord({"round": number, "terms": terms, "client": one.to_bytes()})


def _recall_client(experiment: Experiment, client: int, number: int, context: Context) -> tuple[Client, bytes]:
    kept = context.state.config_records.get(_STATE, ConfigRecord())
    terms, memory = kept.get("terms"), kept.get("client")
    if kept.get("round") != number or not isinstance(terms, bytes) or not isinstance(memory, bytes):
        raise WireError(f"client {client}: is in no secure sum of round {number}; refused.")
    return Client.from_bytes(_agreement_of_round(experiment, number, terms), client, memory), terms
