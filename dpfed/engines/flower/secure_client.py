"""Client of the secure-sum protocol on a Flower node; the node's state has its keys and shares between the steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray

from dpfed.aggregation.client import Client
from dpfed.aggregation.messages import Agreement
from dpfed.aggregation.sums import SecureSums
from dpfed.compress.fixed_point import unpack_row
from dpfed.errors import WireError
from dpfed.runs.experiment import Experiment

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
    _require_clients_of(experiment, participants)
    agreement = method.aggregation.agreed_terms(participants, size=method.stages.width, number=number)
    return replace(agreement, session=terms[-_SESSION:])


def _require_clients_of(experiment: Experiment, participants: NDArray[np.int64]) -> None:
    clients = experiment.config.federation.clients
    strange = participants[(participants < 0) | (participants >= clients)]
    if len(strange) or len(np.unique(participants)) < len(participants):
        raise WireError(
            f"{len(participants)} participants, of which {len(strange)} are no clients of this run, or some named "
            f"twice: must be different ones of 0 to {clients - 1}; refused."
        )


def _keep_client(context: Context, one: Client, number: int, terms: bytes) -> None:
    context.state[_STATE] = ConfigRecord({"round": number, "terms": terms, "client": one.to_bytes()})


def _recall_client(experiment: Experiment, client: int, number: int, context: Context) -> tuple[Client, bytes]:
    kept = context.state.config_records.get(_STATE, ConfigRecord())
    terms, memory = kept.get("terms"), kept.get("client")
    if kept.get("round") != number or not isinstance(terms, bytes) or not isinstance(memory, bytes):
        raise WireError(f"client {client}: is in no secure sum of round {number}; refused.")
    return Client.from_bytes(_agreement_of_round(experiment, number, terms), client, memory), terms
