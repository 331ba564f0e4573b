"""The client app: one node is one client, which builds its parts from the configuration that the server has too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfed.aggregation.secure import SecureSums
from dpfed.config.tables import Config, parse, read_toml
from dpfed.engines.flower.conversation import (
    Instruction,
    Upload,
    padding_to,
    read_instruction,
    read_question,
    tells_clipping,
)
from dpfed.engines.flower.elsewhere import Elsewhere
from dpfed.engines.flower.own_data import LoadData, equal_weights, with_own_samples
from dpfed.engines.flower.secure_client import advertise, masked, share, unmask
from dpfed.engines.flower.settings import check_engine, fingerprint
from dpfed.errors import ConfigError, WireError
from dpfed.run.experiment import Experiment, build
from dpfed.sending import Uploading

_MEMORY, _ROUNDS = "dpfed.memory", "dpfed.rounds"


def client_app(config: Path | Mapping[str, Any], *, load_data: LoadData | None = None) -> ClientApp:
    """A ClientApp for this configuration: a TOML file beside the app, or its tables. `load_data` gives the node's own
    samples, with data.partition = "nodes" and only there. ConfigError."""
    tables = read_toml(config) if isinstance(config, Path) else dict(config)
    own = tables.get("data", {}).get("partition") == "nodes"
    if own != (load_data is not None):
        raise ConfigError(
            f"load_data {'missing' if own else 'given'} with data.partition={'' if own else 'not '}'nodes': it is the "
            "node's own samples, there and only there. See docs/deploy.md."
        )
    text = json.dumps(tables)
    app = ClientApp()
    app.query()(partial(introduce, text, load_data))
    app.train()(partial(take_part, text, load_data))
    for name, step in (("advertise", advertise), ("share", share), ("unmask", unmask)):
        app.query(name)(partial(answer, text, step))
    return app


def introduce(config: str, load_data: LoadData | None, message: Message, context: Context) -> Message:
    """Which client this node is. One whose own samples cannot be used says so here, before any round."""
    checked = _checked(config)
    client = client_of(context, checked)
    if load_data is not None:
        with_own_samples(_experiment(config), client, load_data(context))
    values: dict[str, Any] = {"client": client, "fingerprint": fingerprint(checked)}
    return Message(RecordDict({"introduction": ConfigRecord(values)}), reply_to=message)


def take_part(config: str, load_data: LoadData | None, message: Message, context: Context) -> Message:
    """This client's upload."""
    experiment = _experiment(config)
    client = client_of(context, experiment.config)
    instruction = read_instruction(
        message,
        start=experiment.start,
        clip_moves=getattr(experiment.method.privacy, "adaptive", None) is not None,
        fingerprint=fingerprint(experiment.config),
    )
    _once(client, instruction.round, experiment.config.federation.rounds, context)
    _recall(experiment, client, context)
    if load_data is not None and instruction.train:
        experiment = with_own_samples(experiment, client, load_data(context))
    upload = upload_of(experiment, client, instruction)
    if isinstance(experiment.method.aggregation, SecureSums):
        hidden = masked(experiment, client, instruction.round, instruction.forwarded, upload.payload, context)
        upload = replace(upload, payload=hidden, padding=b"")
    _remember(experiment, client, context)
    return Message(upload.to_content(), reply_to=message)


def answer(config: str, step: Callable[..., bytes], message: Message, context: Context) -> Message:
    """A step of the secure sum."""
    experiment = _experiment(config)
    client = client_of(context, experiment.config)
    said = step(experiment, client, *read_question(message, fingerprint(experiment.config)), context)
    return Message(RecordDict({"answer": ConfigRecord({"message": said})}), reply_to=message)


def upload_of(experiment: Experiment, client: int, instruction: Instruction) -> Upload:
    """Train (or not), bound, noise, code: what this client sends."""
    parts, state = experiment.method, instruction.state
    chosen = parts.map.for_round(state.broadcast, state.round, experiment.seeds)
    total = Elsewhere(client)
    uploading = Uploading(
        state=state,
        parts=parts,
        map=chosen,
        origin=chosen.restrict(state.broadcast),
        total=total,
        seeds=experiment.seeds,
    )
    group = total.senders
    rows = uploading.trained(group) if instruction.train else uploading.nothing(group)
    bounded, (payload,) = uploading.messages(rows, group)
    told = bounded if tells_clipping(parts) else None
    return Upload(
        client=client,
        round=state.round,
        payload=payload,
        padding=padding_to(parts.code.fixed_bits(chosen.sent), payload),
        inside=None if told is None else bool(told.inside[0]),
        finite=None if told is None else told.not_finite == 0,
    )


def client_of(context: Context, config: Config) -> int:
    """The client that this node is: its partition-id. ConfigError for a node that is none of the run's clients."""
    client, clients = context.node_config.get("partition-id"), config.federation.clients
    if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < clients:
        raise ConfigError(
            f"partition-id={client!r} of this node: must be from 0 to {clients - 1}, a different one for each node. "
            'Start it with --node-config "partition-id=0".'
        )
    return client


def _once(client: int, round: int, rounds: int, context: Context) -> None:
    """A second upload of a round, with fresh noise, would be a release that nobody charges; so would one more round."""
    last = context.state.config_records.get(_ROUNDS, ConfigRecord()).get("last", -1)
    if not isinstance(last, int) or round <= last or round >= rounds:
        raise WireError(f"client {client}: asked for round {round} of {rounds} after round {last!r}; refused.")
    context.state[_ROUNDS] = ConfigRecord({"last": round})


def _checked(config: str) -> Config:
    checked = parse(json.loads(config), source="the app's config.toml")
    check_engine(checked)
    return checked


@lru_cache(maxsize=1)
def _experiment(config: str) -> Experiment:
    torch.set_num_threads(1)
    return equal_weights(build(_checked(config)))


def _recall(experiment: Experiment, client: int, context: Context) -> None:
    """What this client remembers from earlier rounds, back into the code; zeros at first."""
    code, clients = experiment.method.code, experiment.config.federation.clients
    kept = context.state.array_records.get(_MEMORY, ArrayRecord())
    rows = {name: torch.from_numpy(array.numpy().copy()).to(experiment.device) for name, array in kept.items()}
    code.restore({name: row.new_zeros(clients, len(row)) for name, row in rows.items() if name not in code.keep()})
    for name, memory in code.keep().items():
        memory[client] = rows.get(name, 0.0)


def _remember(experiment: Experiment, client: int, context: Context) -> None:
    memories = experiment.method.code.keep()
    rows = {name: Array(memory[client].cpu().numpy().copy()) for name, memory in memories.items()}
    if rows:
        context.state[_MEMORY] = ArrayRecord(rows)
