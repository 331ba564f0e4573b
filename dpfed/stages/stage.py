"""Stages: steps that an update passes on its way from a client into the model.

The client half of a stage runs where the client is, on rows [c, k] of several clients at once; the server half runs
where the sum is, in reverse order. A method is a chain of stages (`dpfed.stages.chain`) in the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.budget.gaussians import NoiseSchedule
from accounting.ledger import Release
from accounting.mechanisms import Composed, SingleRelease
from dpfed.aggregation.ranks import Ranks, Task
from dpfed.errors import ConfigError
from dpfed.randomness import DrawnAhead
from dpfed.server.rules import ServerState


class Map(Protocol):
    """Linear map of one round. `sent` is the number of values that `forward` returns for a client."""

    @property
    def sent(self) -> int: ...

    @property
    def description(self) -> dict[str, Any] | None:
        """Record of a map that was chosen from public data; None for any other map."""
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        """Return the values to send [c, sent] of updates [c, d]; may overwrite its argument."""

    def adjoint(self, total: Tensor) -> Tensor:
        """Return the adjoint's vector [d] of a sum [sent]."""

    def restrict(self, broadcast: Tensor) -> Tensor:
        """Return the entries [sent] of the broadcast [d] at the sent coordinates, without scaling."""


@dataclass(kw_only=True)
class Tally:
    """Counts over the cohort's clients, summed over groups and ranks like the rows.

    trained:         clients that were trained
    not_finite:      rows of trained clients with NaN or infinity, which count as zero
    inside, outside: rows that were already within the clip norm, and rows that were scaled down to it. Rows of zeros,
                     such as that of a client without samples, and rows that were not finite are in neither count
    failed:          clients, or private records, whose training raised an error; clients among them are in
                     not_finite, too
    failing:         ids of the clients in `failed` that this process trains, or whose records are in it
    uplink_bytes:    bytes of the uploads; None if the length of an upload is fixed beforehand
    mask_entropy:    bits of masks by FedPM's measure, n times the entropy of the fraction of ones among n entries;
                     None if uploads are not masks that are sent individually
    counts:          traffic that other processes still count (`dpfed.stages.wires`)
    """

    trained: int = 0
    inside: int = 0
    outside: int = 0
    not_finite: int = 0
    failed: int = 0
    failing: list[int] = field(default_factory=list)
    uplink_bytes: int | None = None
    mask_entropy: int | None = None
    counts: list[Future[tuple[int, int | None]]] = field(default_factory=list)

    def add_traffic(self, uplink: int, entropy: int | None = None) -> None:
        """Add the bytes of uploads, and their bits by FedPM's measure if they are masks."""
        self.uplink_bytes = (self.uplink_bytes or 0) + uplink
        if entropy is not None:
            self.mask_entropy = (self.mask_entropy or 0) + entropy

    def settle(self) -> None:
        """Wait for the counts of other processes, and add them."""
        while self.counts:
            self.add_traffic(*self.counts.pop().result())

    @property
    def counted(self) -> int:
        """Number of rows of the cohort that are finite and not zero."""
        return self.inside + self.outside

    def gather(self, ranks: Ranks) -> None:
        """Add up the counts of all ranks, since an adaptive clip norm follows the whole cohort's count."""
        self.settle()
        counts = [self.trained, self.inside, self.outside, self.not_finite, self.failed]
        sizes = [self.uplink_bytes or 0, self.mask_entropy or 0]
        measured = ranks.largest_over_ranks(float(self.uplink_bytes is not None)) > 0
        masks = ranks.largest_over_ranks(float(self.mask_entropy is not None)) > 0
        total = ranks.sum_over_ranks(torch.tensor([*counts, *sizes])).tolist()
        self.trained, self.inside, self.outside, self.not_finite, self.failed, uplink, entropy = total
        self.uplink_bytes = uplink if measured else None
        self.mask_entropy = entropy if masks else None


class Observer(Protocol):
    """Observer of rows and sums as they enter and leave stages. It must not write into them.

    Its records depend on private data and no epsilon covers them: they are for diagnostics.jsonl and audits only.
    """

    def entering(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Observe rows [c, k] before the client half of a stage."""

    def norms_before_clip(self, norms: Tensor) -> None:
        """Observe the L2 norms [c] of rows before they are clipped."""

    def left(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Observe rows after the client half of a stage."""

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Observe rows as they are added to the sum."""

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        """Observe the noise that a stage adds to a sum, the total of `draws` independent draws."""

    def summed(self, stage: Stage, total: Tensor) -> None:
        """Observe a sum before the server half of a stage."""


class ManyObservers:
    """Observer that passes every call to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call_all(*given: object, **more: object) -> None:
            for each in self._observers:
                getattr(each, name)(*given, **more)

        return call_all


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Public announcement of a round, with the memory and counts of its stages, which are not public.

    task:       state from which clients start; also the drawn clients and participants, which stages do not use
    projection: the round's public linear map, from R^d to the k values that are sent
    reference:  [k], the broadcast under that map, relative to which a row is a move
    memory:     tensors that stages remember from round to round, by name; written in place
    votes:      number of models with a nonzero entry, for each entry [d], if a stage counts them
    uploads:    number of rows in the sum, once the sum is closed
    ahead:      draws of the round's clients that were started before training, by purpose
    """

    task: Task
    projection: Map
    reference: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)
    votes: list[Tensor] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    observer: Observer | None = None
    uploads: int = 0
    ahead: dict[str, DrawnAhead[Any]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Number of the round, from 0."""
        return self.task.state.round

    @property
    def broadcast(self) -> Tensor:
        """Broadcast parameters [d], from which clients start."""
        return self.task.state.broadcast

    @property
    def clip_norm(self) -> float:
        """Clip norm of this round; infinite if nothing is clipped."""
        return self.task.state.clip_norm


class Stage(Protocol):
    """One step of an update, with both halves. A derived class defines only what it changes; rows, sum, width and state
    pass through the inherited methods unchanged. A custom class need not derive: both halves are enough.

    summed_as: type of rows after this stage, if the stage changes it to integers
    """

    summed_as: ClassVar[torch.dtype | None] = None

    def start_draws(self, ids: NDArray[np.int64], now: Round) -> None:
        """Start what the CPU draws for these clients, while a GPU trains them."""
        return None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return rows [c, k] of the clients `ids` [c] after this step, on the client's side; may write into `rows`."""
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        """Return the sum of `client`'s inputs from the sum [k] of its outputs, on the side of the sum."""
        return total

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        """Return the state that the next round starts from, given the state after the server's step."""
        return state

    def width(self, size: int) -> int:
        """Return the number of values in a row after this stage, for `size` values before it."""
        return size

    @property
    def ring_bits(self) -> int | None:
        """Bits b of the ring Z_{2^b} of sums of its rows; None: this stage has no ring."""
        return None

    @property
    def remembers_clients(self) -> bool:
        """True if data of single clients are carried from round to round, as in error feedback.

        An account of single rounds needs the bound of this round's rows, which such a memory circumvents.
        """
        return False


def rows_of_clients(memory: dict[str, Tensor], name: str, *, clients: int, like: Tensor) -> Tensor:
    """Return the memory `name` with one row per client, [clients, k] as rows [c, k] of `like`; zeros at first."""
    if name not in memory:
        memory[name] = like.new_zeros(clients, like.shape[1])
    return memory[name]


def require_room_for_memory(key: str, clients: int, width: int) -> None:
    """Raise ConfigError if a memory of `width` numbers per client, for the setting `key`, is larger than a gigabyte."""
    if clients * width > _MOST_REMEMBERED:
        raise ConfigError(
            f"{key} with {clients} clients and {width} coordinates: remembers {clients * width:.1e} numbers, more than "
            f"{_MOST_REMEMBERED:.1e}. Use fewer clients or a smaller model."
        )


_MOST_REMEMBERED = 250_000_000


@runtime_checkable
class Wire(Protocol):
    """A stage whose client half ends in bytes: stages before it run on a node, stages after it where uploads arrive.

    In one process the stage's `client` does both: it returns the rows that `read` makes of `messages`.
    """

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        """Return the bytes that each client sends."""

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        """Return rows from untrusted messages. Raise WireError for any that no client of this round could have sent."""

    def fixed_bits(self, size: int) -> int | None:
        """Return the bits that an upload of `size` values is counted with; None if they depend on its content."""


class Private(Stage, Protocol):
    """A stage that makes a round private and is charged for it; its mechanism is derived from the fields that draw.

    rests_on:      types of stages that must be directly before this one and ensure the bound of its charge
    covers_memory: True if the charge covers clients that are remembered between rounds; False in all stages of dpfed
    """

    rests_on: ClassVar[tuple[type[Stage], ...]] = ()
    covers_memory: ClassVar[bool] = False

    @property
    def in_rows(self) -> bool:
        """True if clients add noise to their rows."""
        return False

    @property
    def in_every_upload(self) -> bool:
        """True if each upload alone is a release."""
        return False

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """Return the release of one round, for the accountant. `uploads`: number of rows in the sum, if the charge
        depends on it."""

    def release(self, now: Round) -> Release:
        """Return the ledger line of a round whose sum has `now.uploads` rows."""

    @property
    def schedule(self) -> NoiseSchedule | None:
        """Factors of the noise over the rounds, with which each round is charged; None: all rounds have equal noise."""
        return None

    @property
    def slots(self) -> int | None:
        """Fixed number of uploads that the account of a round relies on; None if it does not rely on one."""
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
    """Return True for a stage that is charged: it states its mechanism, its release and where the noise is."""
    return all(hasattr(stage, name) for name in ("mechanism", "release", "in_rows", "in_every_upload"))


def stage_attribute(stage: object, name: str) -> Any:
    """Return an attribute of a stage, or the default of `Stage` and `Private` for a custom class that does not
    derive."""
    if hasattr(stage, name):
        return getattr(stage, name)
    default = getattr(Private, name)
    return default.__get__(stage) if hasattr(default, "__get__") else default
