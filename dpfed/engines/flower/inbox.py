"""The replies of a round, into its sum. Whoever fails, or sends what no client could have sent, is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from dpfed.aggregation.plain import PlainSum
from dpfed.compress.dense import Dense
from dpfed.engines.flower.conversation import Upload, read_upload, tells_clipping
from dpfed.engines.flower.losses import note_loss
from dpfed.engines.flower.secure_sum import NodeSum
from dpfed.errors import WireError
from dpfed.sending import Sent, Uploading
from dpfed.stages.client_level import NotPrivate
from dpfed.stages.integer_upload import IntegerUpload
from dpfed.stages.upload import Upload as PayloadUpload

NodesTotal = PlainSum | NodeSum
"""A sum of uploads that come as messages: as rows, or under masks."""


def sees_rows(uploading: Uploading[NodesTotal]) -> TypeGuard[Uploading[PlainSum]]:
    """Whether rows can be added to the sum as they are."""
    return isinstance(uploading.total, PlainSum)


def only_once(replies: Iterable[Message], asked: Mapping[int, int]) -> list[tuple[int, Message]]:
    """Replies of nodes that were asked, by node. Two answers of one contradict each other: neither counts."""
    came = [(reply.metadata.src_node_id, reply) for reply in replies]
    answers = Counter(node for node, _ in came)
    return [(node, reply) for node, reply in came if node in asked and answers[node] == 1]


class Inbox:
    """One round's uploads. `trained`: the clients of the cohort, as against those that only fill up."""

    def __init__(self, uploading: Uploading[NodesTotal], trained: Iterable[int]) -> None:
        self._uploading, self._trained = uploading, set(trained)
        self._told = tells_clipping(uploading.parts)
        sent, parts = uploading.sent, uploading.parts
        sent.clipping_known = self._told or parts.decode_first
        sent.noise_known = not parts.privacy.in_shares
        if not (parts.decode_first or self._bounds_seen or isinstance(parts.privacy, NotPrivate)):
            sent.largest_norm = None
        if parts.privacy.in_shares or not sees_rows(uploading):
            sent.longest_added = None

    def take(self, asked: Mapping[int, int], replies: Iterable[Message]) -> Sent:
        """Replies of the nodes asked (client by node), in the order of clients; the others are lost."""
        by_client = {asked[node]: reply for node, reply in only_once(replies, asked)}
        arrived = [client for client, reply in sorted(by_client.items()) if self._accept(client, reply)]
        missing = np.setdiff1d(np.array(sorted(asked.values()), dtype=np.int64), np.array(arrived, dtype=np.int64))
        self.lose(missing)
        return self._uploading.sent

    def lose(self, clients: NDArray[np.int64]) -> None:
        """These will not come."""
        self._uploading.total.lose(clients)

    def _accept(self, client: int, reply: Message) -> bool:
        uploading, group = self._uploading, np.array([client], dtype=np.int64)
        flags = self._told and client in self._trained
        try:
            upload = read_upload(reply, client=client, round=uploading.state.round, flags=flags)
            if isinstance(uploading.total, NodeSum):
                uploading.total.take(client, upload.payload)
                return True
            bounded, arrived = uploading.receive([upload.payload], group)
            self._require_bounded(arrived.rows)
        except WireError as error:
            note_loss(client, f"in round {uploading.state.round}", error)
            return False
        if sees_rows(uploading):
            uploading.add(arrived.rows, group)
        if client in self._trained:
            inside = upload.inside if bounded is None else bool(bounded.inside[0])
            lost = upload.finite is False if bounded is None else bounded.not_finite > 0
            self._count(upload, bool(inside), lost or arrived.not_finite > 0)
        if arrived.uplink_bytes is not None and client in self._trained:
            uploading.sent.uplink_bytes = (uploading.sent.uplink_bytes or 0) + arrived.uplink_bytes
        return True

    def _count(self, upload: Upload, inside: bool, not_finite: bool) -> None:
        sent = self._uploading.sent
        sent.not_finite += not_finite
        sent.counted += not not_finite
        sent.inside += inside

    @property
    def _bounds_seen(self) -> bool:
        """Whether what arrives is the very row that the client has bounded."""
        parts = self._uploading.parts
        dense = isinstance(parts.code, PayloadUpload) and isinstance(parts.code.scheme, Dense)
        return dense and not parts.privacy.in_shares and not parts.decode_first

    def _require_bounded(self, rows: Tensor) -> None:
        """WireError for a row beyond the bound, where rows arrive as they were bounded: the sum never holds one."""
        parts, norm = self._uploading.parts, self._uploading.state.clip_norm
        if parts.decode_first or parts.privacy.in_shares or isinstance(parts.privacy, NotPrivate):
            return
        code = parts.code
        if isinstance(code, IntegerUpload):
            squared = int((rows * rows).sum())
            if squared > code.fixed_point.largest_squared_norm(code.clip_norm):
                raise WireError(f"integers of squared norm {squared}: longer than a clipped row can be.")
        elif self._bounds_seen:
            length = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
            if length > norm:
                raise WireError(f"a row of norm {length:.6g}: longer than the clip norm {norm:.6g}.")
            self._uploading.sent.largest_norm = max(self._uploading.sent.largest_norm or 0.0, length / norm)
