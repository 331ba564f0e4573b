"""Stages: the steps of an update on its way from a client into the model.

The client half of a stage runs where the client is, on rows [c, k] of several clients at once; the server half runs
where the sum is, in reverse order. A method is a chain of stages (`dpfed.stages.chain`) in the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.budget.noise_schedule import NoiseSchedule
from accounting.ledger import Release
from accounting.mechanisms import Composed, SingleRelease
from dpfed.aggregation.ranks import Ranks, Task
from dpfed.server.state import ServerState
from dpfed.stages.maps import Map


@dataclass(kw_only=True)
class Tally:
    """Numbers that are summed beside the rows, over the cohort's clients.

    trained:    clients that were trained; not_finite: of these, rows that held NaN or infinity and count as zero
    inside, outside: rows that were within the clip norm already, and rows that were scaled down to it. Zeros, such as
                the row of a client without samples, and rows that were not finite are neither.
    failed:     clients, or private records, whose training raised; clients among them are in not_finite, too
    uplink_bytes: of the uploads; None where the length of an upload is fixed beforehand
    mask_entropy: bits of masks by FedPM's measure, n times the entropy of the share of ones among n entries; None where
                uploads are not masks that travel one by one
    """

    trained: int = 0
    inside: int = 0
    outside: int = 0
    not_finite: int = 0
    failed: int = 0
    uplink_bytes: int | None = None
    mask_entropy: int | None = None

    @property
    def counted(self) -> int:
        """Rows of the cohort that are finite and not zero."""
        return self.inside + self.outside

    def gather(self, ranks: Ranks) -> None:
        """Add up the counts of all ranks: an adaptive clip norm follows the whole cohort's."""
        counts = [self.trained, self.inside, self.outside, self.not_finite, self.failed]
        sizes = [self.uplink_bytes or 0, self.mask_entropy or 0]
        measured = ranks.largest(float(self.uplink_bytes is not None)) > 0
        masks = ranks.largest(float(self.mask_entropy is not None)) > 0
        total = ranks.total(torch.tensor([*counts, *sizes])).tolist()
        self.trained, self.inside, self.outside, self.not_finite, self.failed, uplink, entropy = total
        self.uplink_bytes = uplink if measured else None
        self.mask_entropy = entropy if masks else None


class Observer(Protocol):
    """Observer of rows and sums as they enter and leave stages. It must not write into them.

    It depends on private data and is covered by no epsilon: for diagnostics.jsonl and audits alone.
    """

    def entering(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """See rows [c, k] before the client half of a stage."""

    def before_clip(self, norms: Tensor) -> None:
        """See the L2 norms [c] that the rows of a stage that clips had before."""

    def left(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """See rows after the client half of a stage."""

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """See rows as they go into the sum."""

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        """See the noise that a stage adds to a sum, the total of `draws` independent draws."""

    def summed(self, stage: Stage, total: Tensor) -> None:
        """See a sum before the server half of a stage."""


class Together:
    """Several observers at once."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def entering(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        for each in self._observers:
            each.entering(stage, rows, ids)

    def before_clip(self, norms: Tensor) -> None:
        for each in self._observers:
            each.before_clip(norms)

    def left(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        for each in self._observers:
            each.left(stage, rows, ids)

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        for each in self._observers:
            each.added(rows, ids)

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        for each in self._observers:
            each.noise(noise, draws)

    def summed(self, stage: Stage, total: Tensor) -> None:
        for each in self._observers:
            each.summed(stage, total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Public announcement of a round, and what its stages remember and count, which is not public.

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
        """Number of the round, from 0."""
        return self.task.state.round

    @property
    def broadcast(self) -> Tensor:
        """Broadcast parameters [d] that clients start from."""
        return self.task.state.broadcast

    @property
    def clip_norm(self) -> float:
        """Clip norm of this round; infinite where nothing is clipped."""
        return self.task.state.clip_norm


class Stage(Protocol):
    """One step of an update, with both halves. A class that derives from it states what it changes; rows, sum, width
    and state pass through all else. A custom class need not derive: its two halves are enough.

    summed_as: type of rows from here on, if this stage changes it to whole numbers
    """

    summed_as: ClassVar[torch.dtype | None] = None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return rows [c, k] of the clients `ids` [c] after this step, where the client is; may write into `rows`."""
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        """Return the sum of what `client` was given from the sum [k] of what it returned, where the sum is."""
        return total

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        """Return the state that the next round starts from, given the one after the server's step."""
        return state

    def width(self, size: int) -> int:
        """Return the numbers in a row that leaves, of `size` numbers that enter."""
        return size

    @property
    def ring_bits(self) -> int | None:
        """Bits b of the ring Z_{2^b} that sums of its rows are taken in; None: this stage has no ring."""
        return None

    @property
    def remembers_clients(self) -> bool:
        """True if something of single clients is carried from round to round, such as error feedback.

        An account of single rounds rests on the bound of this round's rows, which such a memory gets around.
        """
        return False


@runtime_checkable
class Wire(Protocol):
    """A stage whose client half ends in bytes: stages before it run on a node, stages after it where uploads arrive.

    `client` of the stage is both ends in one process: what `read` makes of `messages`.
    """

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        """Return the bytes that each client sends."""

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return rows from messages of strangers. WireError for any that no client of this round could have sent."""

    def fixed_bits(self, size: int) -> int | None:
        """Return the bits that an upload of `size` values is counted with; None if they depend on its content."""


class Private(Stage, Protocol):
    """A stage that makes a round private and is charged for it: the mechanism follows from the fields that draw.

    rests_on: stages that must stand right before this one, the bound that its charge rests on
    covers_memory: True if the charge covers clients that are remembered between rounds; no stage of dpfed has one
    """

    rests_on: ClassVar[tuple[type[Stage], ...]] = ()
    covers_memory: ClassVar[bool] = False

    @property
    def in_rows(self) -> bool:
        """True if clients add noise of their own to their rows."""
        return False

    @property
    def in_every_upload(self) -> bool:
        """True if each upload is a release by itself."""
        return False

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """Return the release of one round, for the accountant; `uploads`: rows in the sum, if the charge depends on
        them."""

    def release(self, now: Round) -> Release:
        """Return the ledger line of a round whose sum holds `now.uploads` rows."""

    @property
    def schedule(self) -> NoiseSchedule | None:
        """Factors of the noise over the rounds, each of which is charged as it is; None: all rounds are alike."""
        return None

    def in_round(self, number: int, uploads: int | None = None) -> SingleRelease:
        """Return the release of round `number`, counted from 0."""
        return self.mechanism(uploads)

    def run(self, rounds: int, uploads: int | None = None) -> Composed:
        """Return the releases of all rounds, each with `uploads` rows in its sum."""
        return Composed(parts=((self.mechanism(uploads), rounds),))

    @property
    def charged(self) -> bool:
        """True if a round is charged with the noise that arrived."""
        return False

    def require_bound(self, stages: Sequence[Stage]) -> None:
        """Raise ConfigError for a chain whose bound is not the one that is charged."""
        return


def is_private(stage: object) -> TypeGuard[Private]:
    """Return true for a stage that is charged: it states its mechanism, its release and where the noise is."""
    return all(hasattr(stage, name) for name in ("mechanism", "release", "in_rows", "in_every_upload"))


def part(stage: object, name: str) -> Any:
    """Return a part of a stage, or the default of `Stage` and `Private` for a custom class that does not derive."""
    if hasattr(stage, name):
        return getattr(stage, name)
    default = getattr(Private, name)
    return default.__get__(stage) if hasattr(default, "__get__") else default
