"""The client app: a node is one client, and builds its method from the same configuration as the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from accounting import require
from dpfed import replayed
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.secure import SecureSums
from dpfed.config.own_code import load
from dpfed.config.tables import Config, parse, read_toml
from dpfed.engines.flower.conversation import (
    Instruction,
    UploadMessage,
    adapts_clip,
    padding_to,
    read_instruction,
    read_question,
    tells_clipping,
)
from dpfed.engines.flower.own_data import LoadData, equal_weights, with_own_samples
from dpfed.engines.flower.secure_client import advertise, masked, share, unmask
from dpfed.engines.flower.settings import check_engine, fingerprint
from dpfed.errors import ConfigError, TrainingFailed, WireError
from dpfed.methods.choices import counts_errors
from dpfed.runs.experiment import Experiment, build
from dpfed.stages.chain import client_halves
from dpfed.stages.stage import Round

_MEMORY, _ROUNDS = "dpfed.memory", "dpfed.rounds"


def client_app(
    config: Path | Mapping[str, Any], *, load_data: LoadData | None = None, own_code: Sequence[Path] = ()
) -> ClientApp:
    """Return a ClientApp for this configuration: a TOML file beside the app, or its tables.

    `load_data` returns the node's samples, only with data.partition = "nodes". own_code: Python files that register
    names in the configuration. ConfigError.
    """
    tables = read_toml(config) if isinstance(config, Path) else dict(config)
    own = tables.get("data", {}).get("partition") == "nodes"
    if own != (load_data is not None):
        raise ConfigError(
            f"load_data {'missing' if own else 'given'} with data.partition={'' if own else 'not '}'nodes': it is the "
            "node's own samples, there and only there. See docs/deploy.md."
        )
    text = json.dumps({"tables": tables, "own_code": list(map(str, own_code))})
    app = ClientApp()
    app.query()(partial(introduce, text, load_data))
    app.train()(partial(take_part, text, load_data))
    for name, step in (("advertise", advertise), ("share", share), ("unmask", unmask)):
        app.query(name)(partial(answer, text, step))
    return app


def introduce(config: str, load_data: LoadData | None, message: Message, context: Context) -> Message:
    """Report to the server which client this node is. A node with unusable local samples fails here, before any
    round.
    """
    experiment = _experiment(config)
    client = client_of(context, experiment.config)
    if load_data is not None:
        with_own_samples(experiment, client, load_data(context))
    values: dict[str, object] = {"client": client, "fingerprint": fingerprint(experiment.config)}
    return Message(RecordDict({"introduction": ConfigRecord(values)}), reply_to=message)


def take_part(config: str, load_data: LoadData | None, message: Message, context: Context) -> Message:
    """Return this client's upload."""
    experiment = _experiment(config)
    client = client_of(context, experiment.config)
    instruction = read_instruction(
        message,
        start=experiment.start,
        clip_moves=adapts_clip(experiment.method.stages),
        fingerprint=fingerprint(experiment.config),
    )
    _require_first_upload(client, instruction.round, experiment.config.federation.rounds, context)
    now, upload = _upload_or_zeros(experiment, load_data, client, instruction, context)
    if isinstance(experiment.method.aggregation, SecureSums):
        hidden = masked(experiment, client, instruction.round, instruction.forwarded, upload.payload, context)
        upload = replace(upload, payload=hidden, padding=b"")
    _remember(now, client, context)
    return Message(upload.to_content(), reply_to=message)


def _upload_or_zeros(
    experiment: Experiment, load_data: LoadData | None, client: int, instruction: Instruction, context: Context
) -> tuple[Round, UploadMessage]:
    """Return the upload of a client's part in a round.

    An exception that its samples may have caused (in training, load_data or a custom stage) would be visible in an
    error reply. The upload of an update that is not finite is sent instead, unless run.on_error is "raise".
    """
    counts = counts_errors(experiment.config, on_nodes=True)
    experiment = replace(experiment, method=replace(experiment.method, counts_errors=counts))
    try:
        trained = experiment
        if load_data is not None and instruction.train:
            trained = with_own_samples(experiment, client, load_data(context))
        now = announced(trained, client, instruction, context)
        return now, upload_of(trained, client, now)
    except BaseException as error:
        lacks = isinstance(error, KeyboardInterrupt | MemoryError | torch.OutOfMemoryError | TrainingFailed)
        if lacks or not (counts and instruction.train):
            raise
    now = announced(experiment, client, instruction, context)
    return now, upload_of(experiment, client, now, learnt=torch.full((1, len(now.broadcast)), torch.nan))


def answer(config: str, step: Callable[..., bytes], message: Message, context: Context) -> Message:
    """Return this client's message in a step of the secure sum."""
    experiment = _experiment(config)
    client = client_of(context, experiment.config)
    said = step(experiment, client, *read_question(message, fingerprint(experiment.config)), context)
    return Message(RecordDict({"answer": ConfigRecord({"message": said})}), reply_to=message)


def announced(experiment: Experiment, client: int, instruction: Instruction, context: Context) -> Round:
    """Return the announced round for this client alone, which is in the cohort if it is to train."""
    ids = np.array([client], dtype=np.int64)
    state = replace(instruction.state, stages=_client_memory(experiment, client, context))
    task = Task(state=state, cohort=ids if instruction.train else ids[:0], participants=ids)
    now = experiment.method.announce(task, experiment.seeds)
    replay = replayed.current_replay()
    return now if replay is None else replace(now, observer=replay.rounds.node_observer(experiment.method))


def upload_of(experiment: Experiment, client: int, now: Round, learnt: Tensor | None = None) -> UploadMessage:
    """Return a client's upload: train (or send zeros, or take the update `learnt` [1, d]), then apply the client
    halves of the stages.
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
    tells = trains and tells_clipping(method)
    return UploadMessage(
        client=client,
        round=now.number,
        payload=payload,
        padding=padding_to(method.stages.fixed_bits, payload),
        inside=now.tally.inside > 0 if tells else None,
        outside=now.tally.outside > 0 if tells else None,
        finite=now.tally.not_finite == 0 if tells else None,
    )


def client_of(context: Context, config: Config) -> int:
    """Return the client that this node is: its partition-id. ConfigError for a node that is no client of the run."""
    client, clients = context.node_config.get("partition-id"), config.federation.clients
    if not require.is_whole(client) or not 0 <= client < clients:
        raise ConfigError(
            f"partition-id={client!r} of this node: must be from 0 to {clients - 1}, a different one for each node. "
            'Start it with --node-config "partition-id=0".'
        )
    return client


def _require_first_upload(client: int, number: int, rounds: int, context: Context) -> None:
    """Refuse a second upload of a round, or one more round: its fresh noise would be a release that is not charged."""
    last = context.state.config_records.get(_ROUNDS, ConfigRecord()).get("last", -1)
    if not isinstance(last, int) or number <= last or number >= rounds:
        raise WireError(f"client {client}: asked for round {number} of {rounds} after round {last!r}; refused.")
    context.state[_ROUNDS] = ConfigRecord({"last": number})


def _checked(config: str) -> Config:
    given = json.loads(config)
    load([Path(file) for file in given["own_code"]])
    checked = parse(given["tables"], source="the app's config.toml")
    check_engine(checked)
    return checked


@lru_cache(maxsize=1)
def _experiment(config: str) -> Experiment:
    torch.set_num_threads(1)
    return equal_weights(build(_checked(config)))


def _client_memory(experiment: Experiment, client: int, context: Context) -> dict[str, Tensor]:
    """Return the stages' memory for this client from earlier rounds, and zeros for other clients."""
    memory: dict[str, Tensor] = {}
    for name, array in context.state.array_records.get(_MEMORY, ArrayRecord()).items():
        row = torch.from_numpy(array.numpy().copy()).to(experiment.device)
        memory[name] = row.new_zeros(experiment.config.federation.clients, len(row))
        memory[name][client] = row
    return memory


def _remember(now: Round, client: int, context: Context) -> None:
    rows = {name: Array(kept[client].cpu().numpy().copy()) for name, kept in now.memory.items()}
    if rows:
        context.state[_MEMORY] = ArrayRecord(rows)
