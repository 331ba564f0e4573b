"""A scheme of `dpfed.compress` as the code of a round: every row really goes through bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress import from_bytes
from dpfed.compress.code import Arrived, OnIntegers
from dpfed.compress.dense import Dense
from dpfed.compress.error_feedback import ErrorFeedback
from dpfed.compress.payload import Payload, Scheme, most_bytes
from dpfed.errors import ConfigError, WireError
from dpfed.local.threads import one_thread
from dpfed.seeds import Seeds

_LARGEST_ENTRY = 1e20  # sums over a model's entries stay below what any field may carry
_LARGEST_HALF = 65_000.0

NOT_SENT, ZEROS = b"\x00", b"\x01"
"""What stands for a row that is not finite, and for zeros: a client without samples."""

_MOST_ERRORS = 250_000_000
"""Numbers that error feedback may remember: a gigabyte."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Upload:
    """Rows are encoded, written to bytes, parsed back, and decoded; the sum of what was decoded needs no decoding.

    A row of zeros arrives as zeros whatever the scheme makes of it: a client without samples sends no update.


    seed_purpose: clients' seeds are `seeds.integer(seed_purpose, round, client)`, or one for the round where the scheme
                  has a `shared_seed`
    dense:        entries [k] that are sent beside the scheme as float32 (statistics and scales of normalisation layers)
    scheme_of:    the scheme of a round where it changes (FedSparsify's sparsity); `scheme` is then that of round 0
    model:        what travels is origin + row, the client's model, not its move (FedSparsify)
    majority:     an entry of the models that fewer than half of them hold becomes 0 (FedSparsify's local variant)
    sizes_secret: a payload's length would tell about private data: it is counted with the largest it can have
    feedback:     error feedback (`dpfed.compress.error_feedback`) over so many clients
    """

    scheme: Scheme
    seeds: Seeds
    seed_purpose: str = "code"
    scheme_of: Callable[[int], Scheme] | None = None
    dense: Tensor | None = None
    model: bool = False
    majority: bool = False
    sizes_secret: bool = False
    feedback: int | None = None
    _errors: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _votes: list[Tensor] = field(default_factory=list, repr=False)

    @property
    def slots(self) -> None:
        return None

    @property
    def summed_as(self) -> torch.dtype:
        return torch.float32

    def width(self, size: int) -> int:
        return size

    def fixed_bits(self, size: int) -> int | None:
        if not self.sizes_secret:
            return None
        exempt = 0 if self.dense is None else len(self.dense)
        return 8 * (most_bytes(self.scheme, size - exempt) + (most_bytes(Dense(), exempt) if exempt else 0))

    def send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        return self.arrived(self.messages(rows, origin, clients, round), origin, clients, round)

    def messages(
        self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int, noise: OnIntegers | None = None
    ) -> list[bytes]:
        """A payload each, the exempt entries' in front; one byte in place of a row that cannot be sent or is zero."""
        with one_thread():
            wrong = ~(rows.abs().amax(dim=1) <= self._largest)
            rows = torch.where(wrong[:, None], 0.0, rows)
            contents = self._encoded(rows + origin if self.model else rows, clients, round)
        instead = [NOT_SENT if lost else None for lost in wrong.tolist()]
        if not self.model:
            moves = rows.any(dim=1).tolist()
            instead = [one or (None if moved else ZEROS) for one, moved in zip(instead, moves, strict=True)]
        return [content if one is None else one for one, content in zip(instead, contents, strict=True)]

    def arrived(self, messages: Sequence[bytes], origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        came = [place for place, message in enumerate(messages) if message not in (NOT_SENT, ZEROS)]
        rows = torch.zeros(len(messages), len(origin), device=origin.device)
        if came:
            with one_thread():
                decoded = self._decoded([messages[place] for place in came], clients[came], origin, round)
                if self.majority:
                    self._votes.append((decoded != 0).sum(dim=0))
                rows[came] = decoded - origin if self.model else decoded
        size = sum(map(len, messages))
        lost = sum(message == NOT_SENT for message in messages)
        return Arrived(rows=rows, uplink_bytes=None if self.sizes_secret else size, not_finite=lost)

    def decode(self, total: Tensor, origin: Tensor, uploads: int, round: int) -> Tensor:
        if not self.majority or not self._votes:
            return total
        votes = torch.stack(self._votes).sum(dim=0)
        self._votes.clear()
        return torch.where(2 * votes < uploads, -uploads * origin, total)

    def near_the_ends(self, total: Tensor) -> None:
        return None

    def keep(self) -> Mapping[str, Tensor]:
        return self._errors

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        self._errors.update(kept)

    @property
    def _largest(self) -> float:
        """An update beyond it has diverged and counts as zero, as one with NaN does: no client can stop a round."""
        half = isinstance(self.scheme, Dense) and self.scheme.bits == 16
        return _LARGEST_HALF if half else _LARGEST_ENTRY

    def _for_round(self, round: int, clients: NDArray[np.int64]) -> tuple[Scheme, list[int]]:
        seeds = [self.seeds.integer(self.seed_purpose, round, int(client)) for client in clients]
        if self.scheme_of is not None:
            return self.scheme_of(round), seeds
        if getattr(self.scheme, "shared_seed", None) is None:
            return self.scheme, seeds
        shared = self.seeds.integer(self.seed_purpose, round)
        # Schemes are dataclasses, which a Protocol cannot say.
        return replace(self.scheme, shared_seed=shared), seeds  # type: ignore[type-var]

    def _encoded(self, rows: Tensor, clients: NDArray[np.int64], round: int) -> list[bytes]:
        scheme, seeds = self._for_round(round, clients)
        if self.dense is None:
            return self._payloads(scheme, rows, clients, seeds)
        beside = [payload.to_bytes() for payload in Dense().encode(rows[:, self.dense], seed=seeds)]
        rest = self._payloads(scheme, rows[:, self._rest(rows.shape[1])], clients, seeds)
        return [exempt + content for exempt, content in zip(beside, rest, strict=True)]

    def _payloads(self, scheme: Scheme, rows: Tensor, clients: NDArray[np.int64], seeds: list[int]) -> list[bytes]:
        if self.feedback is None:
            return [payload.to_bytes() for payload in scheme.encode(rows, seed=seeds)]
        errors = self._remembered(rows)
        places = torch.from_numpy(clients).to(rows.device)
        payloads, error = ErrorFeedback(scheme=scheme).encode(rows, errors[places], seed=seeds)
        errors[places] = error
        return [payload.to_bytes() for payload in payloads]

    def _decoded(self, messages: list[bytes], clients: NDArray[np.int64], origin: Tensor, round: int) -> Tensor:
        scheme, _ = self._for_round(round, clients)
        if self.dense is None:
            return _parsed(scheme, messages, len(origin)).to(origin.device)
        exempt = most_bytes(Dense(), len(self.dense))
        rows = torch.empty(len(messages), len(origin), device=origin.device)
        rest = self._rest(len(origin))
        rows[:, self.dense] = _parsed(Dense(), [message[:exempt] for message in messages], len(self.dense)).to(rows)
        rows[:, rest] = _parsed(scheme, [message[exempt:] for message in messages], len(rest)).to(rows)
        return rows

    def _rest(self, size: int) -> Tensor:
        """The entries that go through the scheme."""
        assert self.dense is not None
        chosen = torch.ones(size, dtype=torch.bool, device=self.dense.device)
        chosen[self.dense] = False
        return chosen.nonzero()[:, 0]

    def _remembered(self, rows: Tensor) -> Tensor:
        assert self.feedback is not None
        if "errors" not in self._errors:
            count = self.feedback * rows.shape[1]
            if count > _MOST_ERRORS:
                raise ConfigError(
                    f"method.error_feedback with {self.feedback} clients and {rows.shape[1]} coordinates: remembers "
                    f"{count:.1e} numbers, more than {_MOST_ERRORS:.1e}. Use fewer clients or a smaller model."
                )
            self._errors["errors"] = torch.zeros(self.feedback, rows.shape[1], device=rows.device)
        return self._errors["errors"]


def _parsed(scheme: Scheme, messages: list[bytes], size: int) -> Tensor:
    """Rows [c, size] as decoded from payloads of this very scheme."""
    received: list[Payload] = [from_bytes(message, dimension=size) for message in messages]
    rows = scheme.decode(received)
    if not bool(rows.isfinite().all()):
        raise WireError(f"a payload of {scheme.name} that decodes to NaN or infinity; drop the client's message.")
    return rows
