"""Messages between server and clients as Flower's records; each side parses received messages as untrusted input."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from logging import DEBUG
from typing import Any, get_type_hints

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore import log
from torch import Tensor

from accounting import require
from accounting.errors import AccountingError
from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed.aggregation.sums import PlainSums
from dpfed.errors import ConfigError, WireError
from dpfed.methods.privacy_target import has_enough_noise
from dpfed.methods.records import AnyTarget
from dpfed.round import Method
from dpfed.server.rules import ServerState


@dataclass(frozen=True, kw_only=True, eq=False)
class Instruction:
    """The server's instruction to one client for a round.

    train:       False for a client that only fills the sum up
    fingerprint: hash of the configuration, equal at server and client
    solved:      the server's calibrated noise (`solved_text`)
    charge:      declaration for a node's own ledger (`charge_text`)
    forwarded:   message of the secure sum for the step before the upload"""

    round: int
    clip_norm: float
    broadcast: Tensor
    train: bool
    fingerprint: str
    solved: str
    charge: str = ""
    forwarded: bytes = b""

    def to_content(self) -> RecordDict:
        values = {name.replace("_", "-"): value for name, value in vars(self).items()}
        values["broadcast"] = self.broadcast.detach().cpu().numpy().astype("<f4").tobytes()
        return RecordDict({"config": ConfigRecord(values)})

    @property
    def state(self) -> ServerState:
        """State of the server, as far as a client needs it: round, broadcast and clip norm."""
        return ServerState(round=self.round, broadcast=self.broadcast, clip_norm=self.clip_norm)


@dataclass(frozen=True, kw_only=True)
class UploadMessage:
    """Upload of a client.

    padding: zero bytes that make the size of the upload independent of data
    head: hashes of the last lines of the node's own ledger; empty without one
    inside, outside, finite: whether clipping changed the row, and whether it is finite, as counts
        (`dpfed.stages.stage.Tally`); None if the server clips, or must not learn them
    """

    client: int
    round: int
    payload: bytes
    padding: bytes = b""
    head: str = ""
    inside: bool | None = None
    outside: bool | None = None
    finite: bool | None = None

    @property
    def flags(self) -> tuple[bool | None, ...]:
        return self.inside, self.outside, self.finite

    def to_content(self) -> RecordDict:
        values = {name: value for name, value in vars(self).items() if value is not None}
        return RecordDict({"upload": ConfigRecord(values)})


def read_instruction(message: Message, *, start: ServerState, clip_moves: bool, fingerprint: str) -> Instruction:
    """Return the server's instruction; `start` is the state of the server before the first round.

    Raises WireError for a broadcast of another size, or with numbers that are not finite. Raises WireError also for a
    clip norm that is not the configuration's, for which the client's noise is sized. If the clip norm is adaptive
    (`clip_moves`), it must be in the allowed range.
    """
    kinds = {name.replace("_", "-"): kind for name, kind in get_type_hints(Instruction).items()}
    values = _entries_of_record(message, "config", kinds | {"broadcast": bytes})
    require_fingerprint(values["fingerprint"], fingerprint)
    clip_norm, size = values.pop("clip-norm"), start.broadcast.numel()
    if not (SMALLEST_CLIP <= clip_norm <= LARGEST_CLIP if clip_moves else clip_norm == start.clip_norm):
        allowed = f"from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}" if clip_moves else start.clip_norm
        raise WireError(f"a clip norm of {clip_norm!r}: must be {allowed}.")
    if values["round"] < 0 or len(values["broadcast"]) != 4 * size:
        raise WireError(
            f"round {values['round']} with {len(values['broadcast'])} bytes of a model: must be from 0, of {4 * size}."
        )
    broadcast = torch.from_numpy(np.frombuffer(values["broadcast"], dtype="<f4").astype(np.float32))
    if not bool(broadcast.isfinite().all()):
        raise WireError("a model with numbers that are not finite.")
    return Instruction(**values | {"clip_norm": clip_norm, "broadcast": broadcast.to(start.broadcast.device)})


def read_question(message: Message, fingerprint: str) -> tuple[int, bytes, str]:
    """Return round, message and declared charge of a step of the secure sum; raises WireError for other content."""
    kinds = {"round": int, "fingerprint": str, "solved": str, "charge": str, "message": bytes}
    values = _entries_of_record(message, "config", kinds)
    require_fingerprint(values["fingerprint"], fingerprint)
    return values["round"], values["message"], values["charge"]


def charge_text(run: str, number: int, head: str) -> str:
    """Return the declaration by which a node with a ledger of its own charges a round.

    run: identity of the server's ledger; empty for simulated noise. number: charges of the run before this one. head:
    hashes of the last lines of the node's ledger that the server has seen
    """
    return json.dumps([run, number, head])


def read_charge(text: str) -> tuple[str, int, str]:
    """Return run, number and head of a declaration; raises WireError for any other text."""
    try:
        run, number, head = json.loads(text[:1000])
    except (ValueError, TypeError, RecursionError):
        run, number, head = None, None, None
    if not isinstance(run, str) or not require.is_whole(number) or not isinstance(head, str):
        raise WireError(f"a charge of {text[:100]!r}: must name run, number and head. Use one version of dpfed.")
    return run, number, head


def solved_text(target: AnyTarget | None) -> str:
    """Return the calibrated numbers that clients use, as JSON; only the server uses the matrix of correlated noise."""
    return json.dumps({} if target is None else {k: one for k, one in target.solved.items() if k != "matrix"})


def read_solved(message: Message, *, own: str, fingerprint: str) -> str:
    """Return the server's calibrated numbers, in the text of `solved_text`; `own` are those that this node calibrates.

    Raises ConfigError for another configuration. Raises WireError for less noise, or a larger clip norm, than this node
    calibrates, up to rounding on another processor.
    """
    values = message.content.config_records.get("config", {}) if message.has_content() else {}
    require_fingerprint(values.get("fingerprint"), fingerprint)
    text = values.get("solved")
    if text == own:
        return own
    try:
        solved = {k: require.positive(**{str(k): one}) for k, one in json.loads(str(text)[:1000]).items()}
    except (ValueError, AttributeError, RecursionError, AccountingError):
        solved = {}
    if not has_enough_noise(solved, json.loads(own)):
        raise WireError(
            f"the server's noise {str(text)[:200]}: must be at least what this node calibrates for the privacy target, "
            f"{own}; nothing is sent."
        )
    return json.dumps(solved)


def require_fingerprint(given: object, own: str) -> None:
    """Raise ConfigError unless server and client have equal configurations and versions."""
    if given != own:
        raise ConfigError(
            "this client's configuration or its dpfed is not the server's; nothing is sent. Give all nodes the same "
            "app and the same package."
        )


def read_upload(reply: Message, *, client: int, number: int, flags: bool) -> UploadMessage:
    """Return the upload in a reply to round `number`; raises WireError for an error reply, or any other content."""
    kinds: dict[str, type] = {"client": int, "round": int, "payload": bytes, "padding": bytes, "head": str}
    values = _entries_of_record(
        reply, "upload", kinds | (dict.fromkeys(("inside", "outside", "finite"), bool) if flags else {})
    )
    upload = UploadMessage(**values)
    if (upload.client, upload.round) != (client, number):
        raise WireError(f"an upload of client {upload.client} in round {upload.round}: expected {client}, {number}.")
    return upload


def read_answer(reply: Message) -> bytes:
    """Return the message of the secure sum in a reply; raises WireError for any other content."""
    message: bytes = _entries_of_record(reply, "answer", {"message": bytes})["message"]
    return message


def read_introduction(reply: Message, clients: int) -> tuple[int, str]:
    """Return client number and fingerprint that a node reports; raises WireError for any other content."""
    values = _entries_of_record(reply, "introduction", {"client": int, "fingerprint": str})
    client, print_ = values["client"], values["fingerprint"]
    if not 0 <= client < clients:
        raise WireError(f"a node that says it is client {client!r}: there are 0 to {clients - 1}.")
    return client, print_


def reports_clipping(method: Method) -> bool:
    """Return True if clients report whether their row was clipped.

    They report it to a trusted server only, and never if single uploads are released. Adaptive clipping needs these
    reports for its count, to which the server adds noise.
    """
    stages = method.stages
    if stages.decodes_before_the_clip or stages.every_upload_is_a_release:
        return False
    needed = not stages.noise_in_rows or stages.adaptive_clip is not None
    return needed and isinstance(method.aggregation, PlainSums)


def padding_bytes(fixed_bits: int | None, payload: bytes) -> bytes:
    """Return zero bytes that pad an upload to `fixed_bits`, so that its size reveals nothing; none if None."""
    return b"" if fixed_bits is None else bytes(max(0, math.ceil(fixed_bits / 8) - len(payload)))


def log_dropout(client: int, where: str, error: WireError) -> None:
    """Log a dropped client in one line at Flower's level DEBUG (FLWR_LOG_LEVEL=DEBUG).

    The line reveals who took part in a round, which no epsilon covers. By default a log has no such lines; a log with
    them must not be published. Counts of arrived uploads are in diagnostics.jsonl.
    """
    log(DEBUG, "client %s drops out %s: %s", client, where, error)


def _entries_of_record(message: Message, name: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the only record of a message; raises WireError unless it has exactly these entries with these types."""
    if message.has_error():
        raise WireError(f"an error instead of an answer: {str(message.error.reason)[:200]}")
    records = message.content.config_records if message.has_content() else {}
    if name not in records or len(message.content) != 1:
        raise WireError(f"a message without exactly the record {name!r}.")
    values = dict(records[name])
    if values.keys() != kinds.keys() or any(type(values[key]) is not kind for key, kind in kinds.items()):
        found = {key: type(value).__name__ for key, value in sorted(values.items())}
        raise WireError(
            f"a record {name!r} of {str(found)[:500]}: must be { {k: v.__name__ for k, v in kinds.items()} }."
        )
    return values
