"""A round of a ClientLevelStrategy: the nodes that were asked to train, and their updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import WARNING

import torch
from flwr.app import ArrayRecord, Message
from flwr.supercore import log
from torch import Tensor

from dpfed.engines.flower.client_mod import RECORD, update_in_reply
from dpfed.engines.flower.conversation import log_dropout
from dpfed.engines.flower.inbox import single_replies
from dpfed.engines.round_terms import RoundTerms
from dpfed.errors import WireError
from dpfed.runs.client_level import Step


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedRound:
    """A round and the nodes that were asked to train.

    nodes, terms: node id and terms of each client of the cohort, by the client's number, in the order of the cohort"""

    step: Step
    start: ArrayRecord
    example: Message
    key: str
    nodes: Mapping[int, int]
    terms: Mapping[int, RoundTerms]

    def heads(self, replies: Iterable[Message]) -> dict[int, str]:
        """Return the heads of the ledgers that nodes keep, by client, for the terms of later rounds."""
        asked, found = {node: client for client, node in self.nodes.items()}, {}
        for node, reply in single_replies(replies, asked):
            sent = None if reply.has_error() else reply.content.config_records.get(RECORD)
            if sent is not None and isinstance(head := sent.get("head"), str):
                found[asked[node]] = head[:200]
        return found

    def updates(self, replies: Iterable[Message], size: int) -> Iterator[Tensor]:
        """Return one update [size] per client, in the order of the cohort; a missing or unreadable update is zeros."""
        asked = {node: client for client, node in self.nodes.items()}
        came = {asked[node]: reply for node, reply in single_replies(replies, asked)}
        unread = 0
        for client, terms in self.terms.items():
            try:
                if client not in came:
                    raise WireError("no reply, or more than one.")
                yield _update_in_reply(came[client], terms, self.start)
            except WireError as error:
                log_dropout(client, f"in round {terms.round}", error)
                unread += 1
                yield torch.zeros(size)
        if unread == len(self.terms):
            needs = (
                "" if next(iter(self.terms.values())).sends_all else " Do the nodes have ClientApp(mods=[client_mod])?"
            )
            log(
                WARNING,
                "dpfed: no update of round %s could be read, so the model moves by noise alone.%s FLWR_LOG_LEVEL=DEBUG "
                "says why. No epsilon covers this line.",
                self.step.round,
                needs,
            )


def _update_in_reply(reply: Message, terms: RoundTerms, start: ArrayRecord) -> Tensor:
    """Return the update [d] in a reply; raises WireError for an error reply, or one that does not follow the terms."""
    if reply.has_error():
        raise WireError(f"the node failed: {reply.error.reason}")
    sent = reply.content.config_records.get(RECORD)
    if sent is not None:
        payload = sent.get("payload")
        if sent.get("round") != terms.round or not isinstance(payload, bytes):
            raise WireError(f"an update of round {sent.get('round')!r}: expected round {terms.round}, in bytes.")
        return terms.decode(payload)
    if not terms.sends_all:
        raise WireError(f"arrays where {terms.scheme} of {terms.kept} coordinates were asked for.")
    return update_in_reply(start, reply.content)
