"""Addition of a round's replies to its sum; a client that fails, or sends an invalid message, drops out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeGuard

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from dpfed.aggregation.sums import PlainSum
from dpfed.engines.flower.conversation import UploadMessage, log_dropout, read_upload, reports_clipping
from dpfed.engines.flower.secure_sum import NodeSum
from dpfed.errors import WireError
from dpfed.mechanisms.integers import Integers
from dpfed.round import OpenRound
from dpfed.stages.chain import Stages, client_halves
from dpfed.stages.stage import Tally

NodesTotal = PlainSum | NodeSum
"""Sum to which uploads are added as they arrive, as plain or as masked rows."""


def server_sees_rows(opened: OpenRound[NodesTotal]) -> TypeGuard[OpenRound[PlainSum]]:
    """Return True if the server sees single rows: uploads are decoded and added to the sum as rows."""
    return isinstance(opened.total, PlainSum)


def single_replies(replies: Iterable[Message], asked: Mapping[int, int]) -> list[tuple[int, Message]]:
    """Return the replies by node, for nodes that were asked and replied once. Neither of two replies of a node
    counts."""
    came = [(reply.metadata.src_node_id, reply) for reply in replies]
    answers = Counter(node for node, _ in came)
    return [(node, reply) for node, reply in came if node in asked and answers[node] == 1]


class RoundInbox:
    """Uploads of one round, which are parsed, validated, decoded by the chain's stages, and added to the sum.

    Its counts are those of the cohort's clients, without clients that only fill the sum up. `heads` are the last lines
    of ledgers that nodes keep, by client.
    """

    def __init__(self, opened: OpenRound[NodesTotal]) -> None:
        stages, watch = opened.method.stages, opened.watch
        self._opened, self._told = opened, reports_clipping(opened.method)
        self._trained, self.heads = set(opened.now.task.cohort.tolist()), dict[int, str]()
        watch.clipping_known = self._told or stages.decodes_before_the_clip
        watch.noise_known = not stages.noise_in_rows
        as_bounded = _arrives_without_noise(stages) and stages.lossless
        if not (stages.decodes_before_the_clip or as_bounded or stages.private is None):
            watch.largest_norm = None
        if stages.noise_in_rows or not server_sees_rows(opened):
            watch.longest_added = None

    def take_replies(self, asked: Mapping[int, int], replies: Iterable[Message], *, at_once: int) -> None:
        """Add the replies of the asked nodes, given by node with their clients; clients without a reply drop out.

        If at most `at_once` clients were asked, their rows are added in the order of clients, so that the sum does not
        depend on the order of arrival, to the last bit. Otherwise rows are added as they arrive and are not kept.
        """
        arrived: set[int] = set()
        for some in [replies] if len(asked) <= at_once else ([reply] for reply in replies):
            by_client = {
                asked[node]: reply for node, reply in single_replies(some, asked) if asked[node] not in arrived
            }
            arrived |= {client for client, reply in sorted(by_client.items()) if self._accept_reply(client, reply)}
        missing = np.array(sorted(set(asked.values()) - arrived), dtype=np.int64)
        self._opened.total.record_dropouts(missing)

    def _accept_reply(self, client: int, reply: Message) -> bool:
        opened, stages, ids = self._opened, self._opened.method.stages, np.array([client], dtype=np.int64)
        now, trained = replace(opened.now, tally=Tally()), client in self._trained
        try:
            upload = read_upload(reply, client=client, number=now.number, flags=self._told and trained)
            self.heads |= {client: upload.head[:200]} if upload.head else {}
            if isinstance(opened.total, NodeSum):
                opened.total.take(client, upload.payload)
                return True
            rows = stages.wire.read([upload.payload], ids, now)
            self._require_bounded_rows(rows)
        except WireError as error:
            log_dropout(client, f"in round {now.number}", error)
            return False
        assert server_sees_rows(opened)
        opened.arrived(client_halves(stages.after_wire, rows, ids, now), ids)
        if trained:
            self._add_to_counts(upload, now.tally)
        return True

    def _add_to_counts(self, upload: UploadMessage, read: Tally) -> None:
        """Add one client's clipping report, and its count of training errors, to the counts of the round."""
        tally = self._opened.now.tally
        tally.trained += 1
        tally.inside += read.inside if upload.inside is None else upload.inside
        tally.outside += read.outside if upload.outside is None else upload.outside
        tally.not_finite += upload.finite is False or read.not_finite > 0
        if read.uplink_bytes is not None:
            tally.add_traffic(read.uplink_bytes, read.mask_entropy)

    def _require_bounded_rows(self, rows: Tensor) -> None:
        """Raise WireError for a row that is longer than a clipped row can be, before it enters the sum.

        Rows are checked only if they arrive exactly as clients have clipped them.
        """
        stages, norm, watch = self._opened.method.stages, self._opened.now.clip_norm, self._opened.watch
        if not _arrives_without_noise(stages):
            return
        if (integers := stages.find(Integers)) is not None:
            require_bounded_norm(rows, integers.fixed_point.largest_squared_norm(integers.clip_norm))
        elif stages.lossless:
            length = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
            if length > norm:
                raise WireError(f"a row of norm {length:.6g}: longer than the clip norm {norm:.6g}.")
            watch.largest_norm = max(watch.largest_norm or 0.0, length / norm)


def require_bounded_norm(rows: Tensor, largest: int) -> None:
    """Raise WireError for int64 rows whose squared norm is above `largest`; `largest` is below 2^62.

    Squared norms that could exceed 64 bits are compared as floats.
    """
    squared = float(rows.double().square().sum())
    if squared > 1.5 * largest or int((rows * rows).sum()) > largest:
        raise WireError(f"integers of squared norm {squared:.6g}: longer than a clipped row can be.")


def _arrives_without_noise(stages: Stages) -> bool:
    """Return True if clients clip their rows and add no noise to them."""
    return stages.private is not None and not (stages.noise_in_rows or stages.decodes_before_the_clip)
