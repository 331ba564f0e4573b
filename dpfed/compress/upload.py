"""A scheme of `dpfed.compress` as the code of a round: every row really goes through bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress import from_bytes
from dpfed.compress.code import Arrived
from dpfed.compress.dense import Dense
from dpfed.compress.error_feedback import ErrorFeedback
from dpfed.compress.payload import Payload, Scheme, most_bytes
from dpfed.errors import ConfigError
from dpfed.local.threads import one_thread
from dpfed.seeds import Seeds

_LARGEST_ENTRY = 1e20  # sums over a model's entries stay below what any field may carry
_LARGEST_HALF = 65_000.0

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
        with one_thread():
            return self._send(rows, origin, clients, round)

    def _send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        wrong = ~(rows.abs().amax(dim=1) <= self._largest)
        rows = torch.where(wrong[:, None], 0.0, rows)
        if self.model:
            rows = rows + origin
        scheme, seeds = self._for_round(round, clients)
        if self.dense is None:
            arrived, size = self._through(scheme, rows, clients, seeds)
        else:
            arrived, size = self._split(scheme, rows, clients, seeds)
        if self.majority:
            self._votes.append(((arrived != 0) & ~wrong[:, None]).sum(dim=0))
        nothing = wrong if self.model else ~rows.any(dim=1)
        arrived = torch.where(nothing[:, None], 0.0, arrived - origin if self.model else arrived)
        return Arrived(rows=arrived, uplink_bytes=None if self.sizes_secret else size, not_finite=int(wrong.sum()))

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

    def _split(self, scheme: Scheme, rows: Tensor, clients: NDArray[np.int64], seeds: list[int]) -> tuple[Tensor, int]:
        assert self.dense is not None
        chosen = torch.ones(rows.shape[1], dtype=torch.bool, device=rows.device)
        chosen[self.dense] = False
        rest = chosen.nonzero()[:, 0]
        arrived = torch.empty_like(rows)
        arrived[:, rest], size = self._through(scheme, rows[:, rest], clients, seeds)
        arrived[:, self.dense], beside = _in_bytes(Dense(), rows[:, self.dense], seeds)
        return arrived, size + beside

    def _through(
        self, scheme: Scheme, rows: Tensor, clients: NDArray[np.int64], seeds: list[int]
    ) -> tuple[Tensor, int]:
        if self.feedback is None:
            return _in_bytes(scheme, rows, seeds)
        errors = self._remembered(rows)
        places = torch.from_numpy(clients).to(rows.device)
        payloads, error = ErrorFeedback(scheme=scheme).encode(rows, errors[places], seed=seeds)
        errors[places] = error
        return _parsed(scheme, list(payloads), rows)

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


def _in_bytes(scheme: Scheme, rows: Tensor, seeds: list[int]) -> tuple[Tensor, int]:
    return _parsed(scheme, list(scheme.encode(rows, seed=seeds)), rows)


def _parsed(scheme: Scheme, payloads: list[Payload], rows: Tensor) -> tuple[Tensor, int]:
    """Rows as decoded from the bytes of payloads, and how many bytes."""
    messages = [payload.to_bytes() for payload in payloads]
    received = [from_bytes(message, dimension=rows.shape[1]) for message in messages]
    return scheme.decode(received).to(rows.device), sum(map(len, messages))
