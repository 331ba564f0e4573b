"""The node's half of a ClientLevelStrategy: a Flower mod."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from dpfed.engines.flower.array_vectors import size_of, update_of
from dpfed.engines.flower.round_terms import RECORD, read_terms
from dpfed.errors import WireError


def client_mod(message: Message, context: Context, call_next: Any) -> Message:
    """`ClientApp(mods=[client_mod])`: the update leaves the node clipped, on the round's coordinates, in the scheme's
    bytes; metrics of training stay where they are. Messages that do not train go through as they are.

    The server clips again, so that no claim rests on this half; what it adds is fewer bytes, and that nothing longer
    than the clip norm ever leaves the node. ConfigError, WireError (Flower then tells the server that the node failed)
    for a server without `ClientLevelStrategy`, terms that are impossible, or an app that returns other arrays than it
    got.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    terms = read_terms(message.content)
    start = message.content.array_records.get(terms.arrays)
    if start is None or size_of(start) != terms.dimension:
        raise WireError(f"no model of {terms.dimension} numbers under {terms.arrays!r}.")
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    ends = list(reply.content.array_records.values())
    if len(ends) != 1:
        raise WireError(f"a reply with {len(ends)} ArrayRecords: must be one, the trained model.")
    sent = ConfigRecord({"round": terms.round, "payload": terms.encode(update_of(start, ends[0]))})
    reply.content = RecordDict({RECORD: sent})
    return reply
