"""One round again and again, through the package's own steps: map, bound, noise, code, bytes, sum, decoding, noise."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.mechanisms import FullParticipation
from dpfed.clients.training import LocalTraining
from dpfed.parts import Parts
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.sending import Uploading
from dpfed.server.state import ServerState
from dpfed.stages.client_level import Privacy
from dpfed.stages.code import Code
from dpfed.stages.maps import Map

PUBLIC_SEEDS = 16
"""So many different public seeds of clients; trials go through them in turn."""


class CollectedRows:
    """What arrives at the sum, kept row by row instead of added up."""

    def __init__(self, clients: NDArray[np.int64]) -> None:
        self.senders = self.arriving = clients
        self.rows: list[Tensor] = []

    def add(self, clients: NDArray[np.int64], rows: Tensor, weights: Tensor | None = None) -> None:
        self.rows.append(rows if weights is None else weights.to(rows.dtype)[:, None] * rows)


class Quiet:
    """A privacy without its noise; the bound stays."""

    def __init__(self, privacy: Privacy) -> None:
        self._privacy = privacy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._privacy, name)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        return total

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        adaptive = getattr(self._privacy, "adaptive", None)
        if adaptive is None:
            return norm
        return float(adaptive.next_norm(norm, centred_count, 0.0, self._privacy.sampler.expected))  # type: ignore[attr-defined]


class Witness:
    """A code that remembers what it was given, what it made of it, and which sum it decoded."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self.given = self.arrived = self.total = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._code, name)

    def send(self, rows: Tensor, *rest: Any) -> Any:
        self.given = rows.clone()
        sent = self._code.send(rows, *rest)
        self.arrived = sent.rows
        return sent

    def decode(self, total: Tensor, *rest: Any) -> Any:
        self.total = total.clone()
        return self._code.decode(total, *rest)


class Given:
    """Local training that comes to given moves [clients, d]."""

    def __init__(self, local: LocalTraining, moves: Tensor) -> None:
        self._local, self._moves = local, moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def train(self, weights: Tensor, clients: NDArray[np.int64], *, round: int, seeds: Seeds) -> Tensor:
        return self._moves[torch.from_numpy(clients)].clone()


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """Of n uploads: bounded rows [n, sent], rows as the code got them [n, sent], rows as they arrive [n, width]."""

    bounded: Tensor
    coded: Tensor
    arrived: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class OneRound:
    """Round `state.round` of these parts, with `clients` uploads in the sum.

    Uploads of several trials go together: client i of trial t has the id t * clients + i, so that whatever depends on a
    client's public seed differs between them. Secret draws come from `parts` as they are; see `with_randomness`. A
    trial whose number comes again has the same public seeds.
    """

    parts: Parts
    state: ServerState
    seeds: Seeds
    clients: int

    @cached_property
    def map(self) -> Map:
        return self.parts.map.for_round(self.state.broadcast, self.state.round, self.seeds)

    @cached_property
    def origin(self) -> Tensor:
        return self.map.restrict(self.state.broadcast)

    @property
    def quiet(self) -> OneRound:
        """Without noise; coins are still tossed."""
        return replace(self, parts=replace(self.parts, privacy=cast(Privacy, Quiet(self.parts.privacy))))

    def with_randomness(self, randomness: Randomness) -> OneRound:
        """The same round with every secret draw from this source. TypeError for a part that cannot be given one: its
        noise would be the same in every trial."""
        parts = self.parts
        privacy, code = (_drawing_from(part, randomness) for part in (parts.privacy, parts.code))
        return replace(self, parts=replace(parts, privacy=privacy, code=code, randomness=randomness))

    def upload(self, updates: Tensor, ids: NDArray[np.int64]) -> Uploaded:
        """Updates [n, d] of these clients, through map, bound, noise, code and bytes."""
        witness, total = Witness(self.parts.code), CollectedRows(ids)
        uploading = Uploading(
            state=self.state,
            parts=replace(self.parts, code=cast(Code, witness)),
            map=self.map,
            origin=self.origin,
            total=total,
            seeds=self.seeds,
        )
        bounded, _ = uploading.upload(self.map.forward(updates.clone(), ids), ids)
        return Uploaded(bounded=bounded.rows, coded=witness.given, arrived=total.rows[0])

    @property
    def sampled(self) -> bool:
        """Whether the sampler draws a cohort; otherwise all of `clients` take part."""
        return not isinstance(self.parts.sampler.law, FullParticipation)

    def own(self, update: Tensor | None, trials: NDArray[np.int64]) -> Tensor:
        """What arrives [n, width] of the client under test, once a trial; None: it sends nothing."""
        if update is None:
            return torch.zeros(len(trials), self.parts.code.width(self.map.sent), device=self.origin.device)
        return self.upload(update.expand(len(trials), -1), trials * self.clients).arrived


def _drawing_from(part: Any, randomness: Randomness) -> Any:
    if not hasattr(part, "randomness"):
        return part
    if not is_dataclass(part) or all(field.name != "randomness" for field in fields(part)):
        raise TypeError(f"{type(part).__name__}: draws, but cannot be given another source of randomness.")
    return replace(cast(Any, part), randomness=randomness)
