"""What server and clients say to each other, as Flower's records; what a client says is read as a stranger's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from dpfed.errors import WireError
from dpfed.parts import Parts
from dpfed.secagg.plain import PlainSums
from dpfed.server.state import ServerState


@dataclass(frozen=True, kw_only=True, eq=False)
class Instruction:
    """One client's part of a round. `train` is false for clients that only fill the sum up. `fingerprint`: of the
    configuration that both must have. `forwarded`: the secure sum's message that goes before an upload."""

    round: int
    clip_norm: float
    broadcast: Tensor
    train: bool
    fingerprint: str
    forwarded: bytes = b""

    def to_content(self) -> RecordDict:
        values: dict[str, Any] = {
            "round": self.round,
            "clip-norm": self.clip_norm,
            "train": self.train,
            "fingerprint": self.fingerprint,
            "forwarded": self.forwarded,
        }
        return RecordDict({"arrays": arrays_of(self.broadcast), "config": ConfigRecord(values)})

    @classmethod
    def of(cls, content: RecordDict, device: torch.device) -> Instruction:
        """What the server has sent."""
        values: Mapping[str, Any] = content.config_records["config"]
        broadcast = torch.from_numpy(content.array_records["arrays"]["broadcast"].numpy().copy())
        return cls(
            round=values["round"],
            clip_norm=values["clip-norm"],
            broadcast=broadcast.to(device),
            train=values["train"],
            fingerprint=values["fingerprint"],
            forwarded=values["forwarded"],
        )

    @property
    def state(self) -> ServerState:
        """What of the server's state a client needs."""
        return ServerState(round=self.round, broadcast=self.broadcast, clip_norm=self.clip_norm)


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a client sends back. `padding` fills the payload up to a size that tells nothing.

    inside, finite: of the row that was bounded; None where the server puts the bound or must not know.
    """

    client: int
    round: int
    payload: bytes
    padding: bytes = b""
    inside: bool | None = None
    finite: bool | None = None

    def to_content(self) -> RecordDict:
        values: dict[str, Any] = {
            "client": self.client,
            "round": self.round,
            "payload": self.payload,
            "padding": self.padding,
        }
        if self.inside is not None and self.finite is not None:
            values |= {"inside": self.inside, "finite": self.finite}
        return RecordDict({"upload": ConfigRecord(values)})


def read_upload(reply: Message, *, client: int, round: int, flags: bool) -> Upload:
    """The upload in a reply. WireError for an error, or for anything but the upload of this client in this round."""
    values = _record(reply, "upload")
    wanted: dict[str, type] = {"client": int, "round": int, "payload": bytes, "padding": bytes}
    wanted |= {"inside": bool, "finite": bool} if flags else {}
    if values.keys() != wanted.keys() or any(type(values[name]) is not kind for name, kind in wanted.items()):
        raise WireError(f"an upload with the entries {sorted(values)}: must be {sorted(wanted)}, each of its type.")
    upload = Upload(**values)
    if (upload.client, upload.round) != (client, round):
        raise WireError(f"an upload of client {upload.client} in round {upload.round}: expected {client}, {round}.")
    return upload


def read_answer(reply: Message) -> bytes:
    """A message of the secure sum. WireError for anything else."""
    values = _record(reply, "answer")
    if values.keys() != {"message"} or type(values["message"]) is not bytes:
        raise WireError("an answer that is not one message of bytes.")
    return values["message"]


def read_introduction(reply: Message, clients: int) -> tuple[int, str]:
    """Client id and fingerprint of a node. WireError for anything else."""
    values = _record(reply, "introduction")
    client, print_ = values.get("client"), values.get("fingerprint")
    if type(client) is not int or not 0 <= client < clients or not isinstance(print_, str):
        raise WireError(f"a node that says it is client {client!r}: there are 0 to {clients - 1}.")
    return client, print_


def tells_clipping(parts: Parts) -> bool:
    """Whether clients say if their row was inside the bound: to a server that is trusted with it, never where their
    uploads are all that may be seen. Adaptive clipping needs it, for a count that the server noises."""
    privacy = parts.privacy
    if parts.decode_first or privacy.in_every_upload or not isinstance(parts.sums, PlainSums):
        return False
    return not privacy.in_shares or getattr(privacy, "adaptive", None) is not None


def padding_to(fixed_bits: int | None, payload: bytes) -> bytes:
    """Zeros up to the size that an upload is counted with, if its own would depend on data."""
    return b"" if fixed_bits is None else bytes(max(0, math.ceil(fixed_bits / 8) - len(payload)))


def arrays_of(broadcast: Tensor) -> ArrayRecord:
    return ArrayRecord({"broadcast": Array(np.ascontiguousarray(broadcast.detach().cpu().numpy()))})


def _record(reply: Message, name: str) -> dict[str, Any]:
    if reply.has_error():
        raise WireError(f"an error instead of an answer: {str(reply.error.reason)[:200]}")
    records = reply.content.config_records if reply.has_content() else {}
    if name not in records or len(reply.content) != 1:
        raise WireError(f"an answer without exactly the record {name!r}.")
    return dict(records[name])
