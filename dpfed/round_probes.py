"""Probes of a round from the rows in the sum to the server's state: was what was released what moved the model?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dpfed.parts import Parts
from dpfed.sending import Sent
from dpfed.server.state import ServerState
from dpfed.stages.maps import Map
from dpfed.stages.probes import number, probe_of


def of_sum(
    state: ServerState, parts: Parts, sent: Sent, total: Tensor, released: Tensor, chosen: Map
) -> dict[str, Any] | None:
    """Before the server's step; None where nothing is bounded.

    added:    of the rows where they go into the sum
    summed:   of their sum, equal to it, modulo 2^bits if there are bits
    released: of what the round releases, in the units of updates
    moved:    of the same as a move of the model
    before, before_norm: of what the clients started from
    """
    if not math.isfinite(state.clip_norm):
        return None
    return {
        "added": None if sent.added is None else number(sent.added),
        "summed": probe_of(total),
        "bits": getattr(parts.code, "bits", None),
        "released": probe_of(released),
        "moved": probe_of(chosen.adjoint(released)),
        "before": probe_of(state.broadcast),
        "before_norm": float(torch.linalg.vector_norm(state.broadcast, dtype=torch.float64)),
    }


def after_step(probes: dict[str, Any] | None, state: ServerState) -> dict[str, Any] | None:
    """With the probe of what the next round starts from."""
    return None if probes is None else probes | {"after": probe_of(state.broadcast)}
