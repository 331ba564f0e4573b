"""Flower mod with the node's part of a ClientLevelStrategy: clipping and encoding."""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore import log
from numpy.typing import NDArray
from torch import Tensor

from dpfed.engines.node_ledger import DeclaredRound, NodeLedger, ServerPlan
from dpfed.engines.round_terms import RoundTerms, add_to_named_arrays, checked_terms
from dpfed.errors import ConfigError, WireError

Next = Callable[[Message, Context], Message]
RECORD = "dpfed"
"""Name of the ConfigRecord with dpfed's data in messages and replies."""


def client_mod(message: Message, context: Context, call_next: Next) -> Message:
    """Clip a node's update, keep the round's coordinates and encode it: `ClientApp(mods=[client_mod])`.

    Metrics of training are not sent. Messages that are not about training pass unchanged.

    The server clips again, so that no claim depends on this mod. Its purpose is to send fewer bytes, and to send no
    update longer than the clip norm. Raises ConfigError or WireError, which Flower reports to the server, in three
    cases. They are a server without `ClientLevelStrategy`, invalid terms, and an app that returns other arrays than it
    received.
    """
    return _answer(message, context, call_next, None)


def node_mod(ledger: NodeLedger | None = None) -> Callable[[Message, Context, Next], Message]:
    """Return `client_mod` of a node with a ledger of its own: `ClientApp(mods=[node_mod()])`.

    ledger: None opens the ledger that the node's operator names when the node starts, with the keys `ledger` (a path),
        `epsilon` and `delta` of `flower-supernode --node-config`

    A round is charged before the node trains, and refused if the ledger does not cover it; the server then counts zeros
    and keeps its divisor. The upload is stored before it is sent. Raises ConfigError for a node without these keys.
    """

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if ledger is not None:
            return _answer(message, context, call_next, ledger)
        path, epsilon, delta = budget_of_node(context)
        return _answer(message, context, call_next, NodeLedger(path, epsilon=epsilon, delta=delta))

    return mod


def budget_of_node(context: Context) -> tuple[str, float, float]:
    """Return path, epsilon and delta of the ledger that the node's operator names; raises ConfigError without them."""
    path, epsilon, delta = (context.node_config.get(key) for key in ("ledger", "epsilon", "delta"))
    if not (isinstance(path, str) and isinstance(epsilon, int | float) and isinstance(delta, int | float)):
        raise ConfigError(
            "the node's own ledger: start the node with flower-supernode --node-config "
            "'ledger=\"/data/node.jsonl\" epsilon=8.0 delta=1e-5' beside its other keys."
        )
    return path, float(epsilon), float(delta)


def _answer(message: Message, context: Context, call_next: Next, ledger: NodeLedger | None) -> Message:
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    terms = read_terms(message.content)
    start = message.content.array_records.get(terms.arrays)
    if start is None or model_size(start) != terms.dimension:
        raise WireError(f"no model of {terms.dimension} numbers under {terms.arrays!r}.")
    own = None if ledger is None else DeclaredRound(ledger=ledger, plan=ServerPlan.read(terms.plan), number=terms.round)
    stored = None if own is None else own.admit(terms.clip_norm)
    reply = Message(RecordDict(), reply_to=message) if stored is not None else call_next(message, context)
    if reply.has_error():
        return reply
    payload = stored or terms.encode(update_in_reply(start, reply.content))
    sent: dict[str, object] = {"round": terms.round, "payload": payload}
    if own is not None:
        sent |= {"payload": own.keep(payload), "head": own.ledger.head}
        log(INFO, "dpfed: %s", own.ledger)
    reply.content = RecordDict({RECORD: ConfigRecord(sent)})
    return reply


def read_terms(content: RecordDict) -> RoundTerms:
    """Return the round's terms in a message.

    Raises ConfigError if the server is not a ClientLevelStrategy, WireError for terms that it never sends.
    """
    if RECORD not in content.config_records:
        raise ConfigError(
            f"a message without the record {RECORD!r}: client_mod needs dpfed's ClientLevelStrategy on the server. "
            "Wrap the server's strategy, or remove client_mod from ClientApp(mods=[...])."
        )
    return checked_terms(dict(content.config_records[RECORD]))


def model_size(start: ArrayRecord) -> int:
    """Return d, the number of floating-point numbers in the arrays. Raises ConfigError if d is 0."""
    size = sum(int(np.prod(array.shape)) for array in start.values() if _is_floating_point(array))
    if not size:
        raise ConfigError("the model's ArrayRecord has no floating-point array: there is nothing to train.")
    return size


def update_in_reply(start: ArrayRecord, trained: RecordDict) -> Tensor:
    """Return the update, float32 [d]: the floating-point arrays in a reply's only ArrayRecord minus those in `start`.

    Integer arrays, such as the counter num_batches_tracked, are left out. Raises WireError unless both records have the
    same names and shapes.
    """
    ends = list(trained.array_records.values())
    if len(ends) != 1:
        raise WireError(f"a reply with {len(ends)} ArrayRecords: must be one, the trained model.")
    end = ends[0]
    if list(start.keys()) != list(end.keys()):
        raise WireError(f"arrays {list(end.keys())!r:.200}: must be the model's, {list(start.keys())!r:.200}.")
    parts = [
        _array_values(name, end[name], array).astype(np.float64).ravel() - array.numpy().astype(np.float64).ravel()
        for name, array in start.items()
        if _is_floating_point(array)
    ]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def add_to_arrays(start: ArrayRecord, move: Tensor) -> ArrayRecord:
    """Return the arrays `start` after adding a float32 vector [d] to the floating-point arrays; others are
    unchanged."""
    ends = add_to_named_arrays({name: array.numpy() for name, array in start.items()}, move)
    return ArrayRecord({name: Array(np.asarray(end)) for name, end in ends.items()})


def with_types_of(start: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return arrays converted to their types in `start`, because Flower's weighted means turn integers into floats."""
    return ArrayRecord(
        {
            name: Array(np.asarray(array.numpy().astype(start[name].dtype)))
            if name in start and start[name].dtype != array.dtype
            else array
            for name, array in arrays.items()
        }
    )


def _array_values(name: str, given: Array, like: Array) -> NDArray[np.generic]:
    """Return the numbers of an untrusted array, without relying on the shape that it declares."""
    try:
        values = given.numpy()
    except Exception as error:  # numpy may raise anything on untrusted bytes
        raise WireError(f"array {name!r}: cannot be read ({error}).") from None
    if values.shape != tuple(like.shape) or values.dtype != np.dtype(like.dtype):
        raise WireError(f"array {name!r} of {values.dtype} {values.shape}: must be {like.dtype} {tuple(like.shape)}.")
    return values


def _is_floating_point(array: Array) -> bool:
    return np.dtype(array.dtype).kind == "f"
