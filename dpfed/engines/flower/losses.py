"""Who is lost in a round, for the operator who looks for it."""

from __future__ import annotations

from logging import DEBUG

from flwr.supercore import log

from dpfed.errors import WireError


def note_loss(client: int, where: str, error: WireError) -> None:
    """One line of Flower's log at its level DEBUG (FLWR_LOG_LEVEL=DEBUG). It names who took part in a round, which no
    epsilon covers: such a log must not be published, and by default it has no such lines. How many arrived is in
    diagnostics.jsonl."""
    log(DEBUG, "client %s is lost %s: %s", client, where, error)
