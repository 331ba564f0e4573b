"""The client app of a run on Flower: each node is one client, and builds its method from the server's configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import log
from torch import Tensor

from accounting import require
from dpfed import replayed
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.sums import SecureSums
from dpfed.config.own_code import load_files
from dpfed.config.tables import Config, parse, read_toml
from dpfed.engines.flower.client_mod import budget_of_node
from dpfed.engines.flower.conversation import (
    Instruction,
    UploadMessage,
    padding_bytes,
    read_charge,
    read_instruction,
    read_question,
    read_solved,
    reports_clipping,
    solved_text,
)
from dpfed.engines.flower.own_data import LoadData, equal_weights, with_own_samples
from dpfed.engines.flower.secure_sum import publish_keys, send_masked_row, send_shares, send_unmasking_shares
from dpfed.engines.flower.settings import agreement_text, check_engine
from dpfed.engines.node_ledger import DeclaredRound, NodeLedger, RecordNoise, ServerPlan
from dpfed.errors import ConfigError, TrainingFailed, WireError
from dpfed.mechanisms.records import step_release
from dpfed.methods.choices import counts_errors
from dpfed.runs.experiment import Experiment, build
from dpfed.stages.chain import client_halves
from dpfed.stages.stage import Round

_MEMORY, _ROUNDS = "dpfed.memory", "dpfed.rounds"


def client_app(
    config: Path | Mapping[str, Any], *, load_data: LoadData | None = None, own_code: Sequence[Path] = ()
) -> ClientApp:
    """Return a ClientApp for this configuration, given as its tables or as a TOML file in the app's package.

    load_data: returns the samples of the node; required with data.partition = "nodes", and refused otherwise
    own_code:  Python files that register names in the configuration

    Raises ConfigError.
    """
    tables = read_toml(config) if isinstance(config, Path) else dict(config)
    own = tables.get("data", {}).get("partition") == "nodes"
    if own != (load_data is not None):
        raise ConfigError(
            f"load_data {'missing' if own else 'given'} with data.partition={'' if own else 'not '}'nodes': it is the "
            "samples of the node, required there and refused elsewhere. See docs/deploy.md."
        )
    text = json.dumps({"tables": tables, "own_code": list(map(str, own_code))})
    app = ClientApp()
    app.query()(partial(introduce_node, text, load_data))
    app.train()(partial(take_part, text, load_data))
    for name, step in (("advertise", publish_keys), ("share", send_shares), ("unmask", send_unmasking_shares)):
        app.query(name)(partial(answer_step, text, step))
    return app


def introduce_node(config: str, load_data: LoadData | None, message: Message, context: Context) -> Message:
    """Report this node's client to the server.

    A node with unusable local samples, or with a ledger that does not fit the app, fails before round 1.
    """
    experiment = _experiment_of(config)
    client = client_of_node(context, experiment.config)
    _own_ledger(experiment, client, "", context)
    if load_data is not None:
        with_own_samples(experiment, client, load_data(context))
    values: dict[str, object] = {"client": client, "fingerprint": agreement_text(experiment.config)}
    return Message(RecordDict({"introduction": ConfigRecord(values)}), reply_to=message)


def take_part(config: str, load_data: LoadData | None, message: Message, context: Context) -> Message:
    """Return the reply with this client's upload to a training instruction."""
    experiment = _experiment_with_noise(config, message)
    client = client_of_node(context, experiment.config)
    instruction = read_instruction(
        message,
        start=experiment.start,
        clip_moves=experiment.method.stages.adaptive_clip is not None,
        fingerprint=agreement_text(experiment.config),
    )
    _require_first_upload(client, instruction.round, experiment.config.federation.rounds, context)
    own = _own_ledger(experiment, client, instruction.charge, context) if instruction.train else None
    stored = None if own is None else own.admit(instruction.clip_norm)
    if stored is None:
        now, upload = _upload_or_zeros(experiment, load_data, client, instruction, context)
        _store_client_memory(now, client, context)
        if own is not None:
            stored = own.keep(bytes(_FLAGS.index(one) for one in upload.flags) + upload.payload)
    if own is not None and stored is not None:
        log(INFO, "dpfed: %s", own.ledger)
        upload = _stored_upload(experiment, client, instruction, stored, own.ledger.head)
    if isinstance(experiment.method.aggregation, SecureSums):
        hidden = send_masked_row(experiment, client, instruction.round, instruction.forwarded, upload.payload, context)
        upload = replace(upload, payload=hidden, padding=b"")
    return Message(upload.to_content(), reply_to=message)


def _own_ledger(experiment: Experiment, client: int, declared: str, context: Context) -> DeclaredRound | None:
    """Return the declared round of the ledger that the node's operator names; None without a ledger.

    The mechanism is that of the node's own configuration: the server declares only run, number and head. Raises
    ConfigError for an app without noise that rounds can be charged for.
    """
    if "ledger" not in context.node_config:
        return None
    path, epsilon, delta = budget_of_node(context)
    target, config = experiment.privacy_target, experiment.config
    if target is None or config.run.randomness == "simulated" or target.schedule is not None:
        raise ConfigError(
            f"{path}: a node with a ledger needs an app whose rounds have equal noise that cannot be repeated: "
            "[privacy] or [local.record], run.randomness='secure', no schedule of noise. Nothing was answered."
        )
    run, number, head = read_charge(declared) if declared else ("", 0, "")
    rounds = config.charged_rounds
    if target.unit == "record":
        batches, size = target.local.poisson_batches, max(int(target.local.partition.sizes[client]), 1)
        step = step_release(target.mechanism, batches, size)
        noise = RecordNoise(mechanism=step, steps=batches.count(size), epsilon=epsilon, delta=delta)
        ledger, plan = NodeLedger(path, records=noise), ServerPlan(run=run, rounds=rounds, release="", whole_plan=False)
    else:
        ledger = NodeLedger(path, epsilon=epsilon, delta=delta)
        plan = ServerPlan.of(run, rounds, target.mechanism)
        plan.mechanism()
    return DeclaredRound(ledger=ledger, plan=replace(plan, head=head), number=number)


_FLAGS = (None, False, True)


def _stored_upload(
    experiment: Experiment, client: int, instruction: Instruction, stored: bytes, head: str
) -> UploadMessage:
    """Return the upload that the node's ledger has stored; `head`: the heads of the ledger."""
    flags: dict[str, Any] = dict(zip(("inside", "outside", "finite"), (_FLAGS[one] for one in stored[:3]), strict=True))
    padding = padding_bytes(experiment.method.stages.fixed_bits, stored[3:])
    return UploadMessage(
        client=client, round=instruction.round, payload=stored[3:], padding=padding, head=head, **flags
    )


def _upload_or_zeros(
    experiment: Experiment, load_data: LoadData | None, client: int, instruction: Instruction, context: Context
) -> tuple[Round, UploadMessage]:
    """Return a client's upload for a round, or the upload of an update that is not finite if an exception occurs.

    Samples may have caused the exception (in training, load_data or a custom stage), and an error reply would reveal
    it. With run.on_error = "raise" the exception is raised.
    """
    counts = counts_errors(experiment.config, on_nodes=True)
    experiment = replace(experiment, method=replace(experiment.method, counts_errors=counts))
    try:
        trained = experiment
        if load_data is not None and instruction.train:
            trained = with_own_samples(experiment, client, load_data(context))
        now = received_announcement(trained, client, instruction, context)
        return now, upload_of_client(trained, client, now)
    except BaseException as error:
        lacks = isinstance(error, KeyboardInterrupt | MemoryError | torch.OutOfMemoryError | TrainingFailed)
        if lacks or not (counts and instruction.train):
            raise
    now = received_announcement(experiment, client, instruction, context)
    return now, upload_of_client(experiment, client, now, learnt=torch.full((1, len(now.broadcast)), torch.nan))


def answer_step(config: str, step: Callable[..., bytes], message: Message, context: Context) -> Message:
    """Return this client's message for a step of the secure sum."""
    experiment = _experiment_with_noise(config, message)
    client = client_of_node(context, experiment.config)
    number, terms, charge = read_question(message, agreement_text(experiment.config))
    if step is publish_keys and (own := _own_ledger(experiment, client, charge, context)) is not None:
        own.admit(experiment.start.clip_norm)  # refused before masks are exchanged, if at all
    said = step(experiment, client, number, terms, context)
    return Message(RecordDict({"answer": ConfigRecord({"message": said})}), reply_to=message)


def received_announcement(experiment: Experiment, client: int, instruction: Instruction, context: Context) -> Round:
    """Return the announced round with this client as its only participant; it is in the cohort if it must train."""
    ids = np.array([client], dtype=np.int64)
    state = replace(instruction.state, stages=_client_memory(experiment, client, context))
    task = Task(state=state, cohort=ids if instruction.train else ids[:0], participants=ids)
    now = experiment.method.announce(task, experiment.seeds)
    replay = replayed.current_replay()
    return now if replay is None else replace(now, observer=replay.rounds.node_observer(experiment.method))


def upload_of_client(experiment: Experiment, client: int, now: Round, learnt: Tensor | None = None) -> UploadMessage:
    """Return a client's upload: its update after the client halves of the stages.

    The update is `learnt` [1, d] if it is given, else that of local training, or zeros for a client that only fills
    the sum up.
    """
    method, ids, trains = experiment.method, now.task.participants, len(now.task.cohort) > 0
    if learnt is not None:
        rows = learnt.to(now.broadcast.device)
    elif trains:
        ((_, rows),) = method.updates(ids, now, experiment.seeds, at_once=None)
    else:
        rows = torch.zeros(1, len(now.broadcast), device=now.broadcast.device)
    rows = client_halves(method.stages.before_wire, rows, ids, now)
    (payload,) = method.stages.wire.messages(rows, ids, now)
    tells = trains and reports_clipping(method)
    return UploadMessage(
        client=client,
        round=now.number,
        payload=payload,
        padding=padding_bytes(method.stages.fixed_bits, payload),
        inside=now.tally.inside > 0 if tells else None,
        outside=now.tally.outside > 0 if tells else None,
        finite=now.tally.not_finite == 0 if tells else None,
    )


def client_of_node(context: Context, config: Config) -> int:
    """Return the number of this node's client, its partition-id. Raises ConfigError if the run has no such client."""
    client, clients = context.node_config.get("partition-id"), config.federation.clients
    if not require.is_whole(client) or not 0 <= client < clients:
        raise ConfigError(
            f"partition-id={client!r} of this node: must be from 0 to {clients - 1}, a different one for each node. "
            'Start it with --node-config "partition-id=0".'
        )
    return client


def _require_first_upload(client: int, number: int, rounds: int, context: Context) -> None:
    """Raise an error for a second upload of a round, or a round beyond the last: it would be an uncharged release."""
    last = context.state.config_records.get(_ROUNDS, ConfigRecord()).get("last", -1)
    if not isinstance(last, int) or number <= last or number >= rounds:
        raise WireError(f"client {client}: asked for round {number} of {rounds} after round {last!r}; refused.")
    context.state[_ROUNDS] = ConfigRecord({"last": number})


@lru_cache(maxsize=2)
def _experiment_of(config: str, solved: str = "") -> Experiment:
    torch.set_num_threads(1)
    given = json.loads(config)
    load_files([Path(file) for file in given["own_code"]])
    checked = parse(given["tables"], source="the app's config.toml")
    check_engine(checked)
    return equal_weights(build(checked.with_solved_noise(json.loads(solved)) if solved else checked))


def _experiment_with_noise(config: str, message: Message) -> Experiment:
    """Return the experiment with the server's calibrated noise, whose last digits depend on the processor."""
    experiment = _experiment_of(config)
    own = solved_text(experiment.privacy_target)
    solved = read_solved(message, own=own, fingerprint=agreement_text(experiment.config))
    return experiment if solved == own else _experiment_of(config, solved)


def _client_memory(experiment: Experiment, client: int, context: Context) -> dict[str, Tensor]:
    """Return the stages' memory: that of this client from earlier rounds, and zeros for the other clients."""
    memory: dict[str, Tensor] = {}
    for name, array in context.state.array_records.get(_MEMORY, ArrayRecord()).items():
        row = torch.from_numpy(array.numpy().copy()).to(experiment.device)
        memory[name] = row.new_zeros(experiment.config.federation.clients, len(row))
        memory[name][client] = row
    return memory


def _store_client_memory(now: Round, client: int, context: Context) -> None:
    rows = {name: Array(kept[client].cpu().numpy().copy()) for name, kept in now.memory.items()}
    if rows:
        context.state[_MEMORY] = ArrayRecord(rows)
