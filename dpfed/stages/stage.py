"""A stage: one step of an update on its way from a client into the model.

Each has a half that runs where the client is, on rows [c, k] of several clients at once, and a half that runs where the
sum is; the halves at the sum run in reverse order. A method is a chain of stages (`dpfed.stages.chain`): its order is
the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Release
from accounting.mechanisms import SingleRelease
from dpfed.aggregation.ranks import Ranks, Task
from dpfed.server.state import ServerState
from dpfed.stages.maps import Map
from dpfed.stages.observer import Observer


@dataclass(kw_only=True)
class Tally:
    """Numbers that are summed beside the rows, over the cohort's clients.

    trained:    clients that were trained; not_finite: of these, rows that held NaN or infinity and count as zero
    inside, outside: rows that were within the clip norm already, and rows that were scaled down to it. Zeros, such as
                the row of a client without samples, and rows that were not finite are neither.
    failed:     clients, or private records, whose training raised; clients among them are in not_finite, too
    uplink_bytes: of the uploads; None where the length of an upload is fixed beforehand
    """

    trained: int = 0
    inside: int = 0
    outside: int = 0
    not_finite: int = 0
    failed: int = 0
    uplink_bytes: int | None = None

    @property
    def counted(self) -> int:
        """Rows of the cohort that are finite and not zero."""
        return self.inside + self.outside

    def gather(self, ranks: Ranks) -> None:
        """What every rank has counted, added up: an adaptive clip norm follows the whole cohort's."""
        counts = [self.trained, self.inside, self.outside, self.not_finite, self.failed, self.uplink_bytes or 0]
        measured = ranks.largest(float(self.uplink_bytes is not None)) > 0
        total = ranks.total(torch.tensor(counts)).tolist()
        self.trained, self.inside, self.outside, self.not_finite, self.failed, uplink = total
        self.uplink_bytes = uplink if measured else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """What a round announces, which is public, and what its stages remember and count, which is not.

    task:       the state that clients start from; who was drawn and who takes part, which stages do not look at
    projection: the round's public linear map, from R^d to the k values that are sent
    reference:  [k], the broadcast under that map: the point that a row is a move from
    memory:     what stages remember from round to round, by name; written in place
    votes:      models that hold each entry [d], where a stage counts them
    uploads:    rows in the sum, once it is closed
    """

    task: Task
    projection: Map
    reference: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)
    votes: list[Tensor] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    observer: Observer | None = None
    uploads: int = 0

    @property
    def number(self) -> int:
        """Of the round, from 0."""
        return self.task.state.round

    @property
    def broadcast(self) -> Tensor:
        """[d], what clients start from."""
        return self.task.state.broadcast

    @property
    def clip_norm(self) -> float:
        """The bound of this round; infinite where nothing is clipped."""
        return self.task.state.clip_norm


class Stage(Protocol):
    """One step, with both halves."""

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        """Where the client is: rows [c, k] of the clients `ids` [c]; may write into its argument."""

    def server(self, total: Tensor, now: Round) -> Tensor:
        """Where the sum is: the sum [k] of what `client` returned, back to the sum of what it was given."""


@runtime_checkable
class Wire(Protocol):
    """A stage whose client half ends in bytes: stages before it run on a node, stages after it where uploads arrive.

    `client` of the stage is both ends in one process: what `read` makes of `messages`.
    """

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor: ...

    def server(self, total: Tensor, now: Round) -> Tensor: ...

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        """What each client sends."""

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        """Rows from messages of strangers. WireError for any that no client of this round could have sent."""

    def fixed_bits(self, size: int) -> int | None:
        """Bits that an upload of `size` values is counted with; None where the content decides."""


@runtime_checkable
class Private(Protocol):
    """A stage that makes a round private. It is what is charged: the mechanism comes from the fields that draw."""

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor: ...

    def server(self, total: Tensor, now: Round) -> Tensor: ...

    @property
    def in_rows(self) -> bool:
        """Whether clients add noise of their own to their rows."""

    @property
    def in_every_upload(self) -> bool:
        """Whether each upload is a release by itself, whoever sees it."""

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """One round, for the accountant; `uploads`: rows in the sum, where the charge depends on them."""

    def release(self, now: Round) -> Release:
        """The ledger's line of a round whose sum holds `now.uploads` rows."""


@runtime_checkable
class Stateful(Protocol):
    """A stage that changes what the next round starts from."""

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        """The state of the next round after that of the server's step: state in, state out."""


@runtime_checkable
class Resizing(Protocol):
    """A stage whose rows leave in another width."""

    def width(self, size: int) -> int:
        """Numbers in what leaves, of `size` that enter."""


@runtime_checkable
class Whole(Protocol):
    """A stage after which rows are of another type: whole numbers."""

    @property
    def summed_as(self) -> torch.dtype: ...
