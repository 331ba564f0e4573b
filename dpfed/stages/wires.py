"""Wire formats of integers: symbols that can be summed, integers modulo 2^b in b bits each, range-coded masks.

Bytes of uploads that a simulation only counts are counted on a GPU by other processes, while the next clients train.
Symbols are packed on the device, in one, two or four bits if they fit, so that no more than the uncoded bytes of the
uploads is copied. Entropy coding holds Python's lock, so that threads would stop the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fields import Floats, SymbolField
from dpfed.compress.fixed_point import centre_residues, ring_from_bytes, ring_to_bytes
from dpfed.compress.mask_schemes import MaskCoder
from dpfed.compress.payload import Payloads, Scheme, header_bytes
from dpfed.errors import ConfigError, WireError
from dpfed.seeds import Seeds
from dpfed.stages.clip import largest_magnitudes
from dpfed.stages.stage import Round, Stage

Traffic = tuple[int, int | None]
"""Bytes of uploads, and their bits by FedPM's measure if they are masks."""

_PROCESSES = 8


def counting_processes() -> Executor:
    """Return the processes that count, which end after five idle minutes."""
    workers: Executor = get_reusable_executor(max_workers=min(_PROCESSES, cpu_count()), timeout=300)
    return workers


def count_beside(count: Callable[..., Traffic], packed: NDArray[np.generic], *given: object) -> list[Future[Traffic]]:
    """Return the results of count(rows, *given) for a part of the packed rows [c, ...] in each process."""
    workers = counting_processes()
    parts = np.array_split(packed, min(len(packed), _PROCESSES))
    return [workers.submit(count, part, *given) for part in parts]


def count_payloads_beside(payloads: Payloads) -> tuple[int, list[Future[Traffic]]]:
    """Return the bytes of the fields whose length is fixed, with headers, and the counts of all other fields."""
    if not len(payloads):
        return 0, []
    fixed, counts = header_bytes(payloads.scheme, payloads.dimension), list[Future[Traffic]]()
    for name, part in payloads.scheme.layout(payloads.dimension).items():
        if isinstance(part, Floats):
            fixed += part.most_bytes
            continue
        bits = (part.alphabet - 1).bit_length() if isinstance(part, SymbolField) else None
        counts += count_beside(coded_bytes, pack_rows(payloads.fields[name], bits), part, bits)
    return fixed * len(payloads), counts


def coded_bytes(packed: NDArray[np.generic], part: Any, bits: int | None) -> Traffic:
    """Return the bytes of a field of these packed rows."""
    rows = unpack_rows(packed, bits, part.count)
    return sum(len(part.write(row.astype(part.dtype, copy=False)).content) for row in rows), None


def _per_byte(bits: int | None) -> int:
    """Return the number of entries in a byte, 1 if they are not packed."""
    return 8 // next((size for size in (1, 2, 4) if bits is not None and bits <= size), 8)


def pack_rows(rows: Tensor, bits: int | None) -> NDArray[Any]:
    """Return rows [c, n] on the CPU; whole numbers of at most eight bits are packed on their device before."""
    together, packed = _per_byte(bits), rows if bits is None or bits > 8 else rows.to(torch.uint8)
    if together > 1:
        filled = torch.nn.functional.pad(packed, (0, -rows.shape[1] % together))
        packed = filled[:, ::together].clone()
        for place in range(1, together):
            packed |= filled[:, place::together] << (8 // together * place)
    return packed.cpu().numpy()


def unpack_rows(packed: NDArray[Any], bits: int | None, count: int) -> NDArray[Any]:
    """Return the rows [c, count] of `pack_rows`."""
    together = _per_byte(bits)
    if together == 1:
        return packed
    size = 8 // together
    shifts = np.arange(0, 8, size, dtype=np.uint8)
    rows: NDArray[Any] = packed[:, :, None] >> shifts & np.uint8((1 << size) - 1)
    return rows.reshape(len(packed), -1)[:, :count]


@dataclass(frozen=True, kw_only=True, eq=False)
class Symbols(Stage):
    """Sum of the one symbol field of a linear scheme; the mean of symbols decodes to the mean of the updates.

    Not private: symbols are drawn from the public seed, and the methods refuse them under [privacy].
    """

    scheme: Scheme
    seeds: Seeds
    seed_purpose: str = "code"
    summed_as = torch.int64

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        wrong = ~largest_magnitudes(rows).isfinite()
        scheme = self._round_scheme(now.number)
        own = [self.seeds.integer(self.seed_purpose, now.number, int(client)) for client in ids]
        payloads = scheme.encode(torch.where(wrong[:, None], 0.0, rows), seed=own)
        (symbols,) = payloads.fields.values()
        now.tally.not_finite += int(wrong.sum())
        return symbols.to(torch.int64)

    def server(self, total: Tensor, now: Round) -> Tensor:
        scheme = self._round_scheme(now.number)
        (name,) = scheme.layout(len(now.reference))
        mean = (total.double() / now.uploads).to(now.reference.dtype)
        seeds = torch.zeros(1, dtype=torch.int64, device=mean.device)
        together = Payloads(scheme=scheme, dimension=len(mean), seeds=seeds, fields={name: mean[None]})
        return now.uploads * scheme.decode(together)[0]

    def _round_scheme(self, number: int) -> Scheme:
        return scheme_of_round(self.scheme, self.seeds, self.seed_purpose, number)


def scheme_of_round(scheme: Scheme, seeds: Seeds, purpose: str, number: int) -> Scheme:
    """Return the scheme with the round's seed, if its clients share one."""
    if getattr(scheme, "shared_seed", None) is None:
        return scheme
    # mypy does not know that schemes are dataclasses, since a Protocol cannot state it.
    return replace(scheme, shared_seed=seeds.integer(purpose, number))  # type: ignore[type-var]


def alphabet_of(scheme: Scheme, size: int) -> int:
    """Return the number of symbols of a scheme; raise ConfigError for a scheme that cannot be summed."""
    fields = list(scheme.layout(size).values())
    if not scheme.linear or len(fields) != 1 or not isinstance(fields[0], SymbolField):
        raise ConfigError(
            f"aggregation.kind with {scheme.name}: a sum of its uploads cannot be decoded. Use method.shared=true "
            "(fedmrn, fedmrns, fedscalar), a public method.options.bound (stochastic-sign), or kind 'plain'."
        )
    return fields[0].alphabet


@dataclass(frozen=True, kw_only=True)
class Words(Stage):
    """Rows [c, size] are sent as residues. In one process they are unchanged: the sum reduces them.

    largest: largest value of an entry, if rows are symbols or Bernoulli samples; None: any residue, read as centred
             about 0
    """

    size: int
    bits: int
    largest: int | None = None
    dtype: torch.dtype = torch.int64

    @property
    def ring_bits(self) -> int | None:
        return None if self.dtype.is_floating_point else self.bits  # for floats the previous stage defines the ring

    def fixed_bits(self, size: int) -> int:
        return self.size * self.bits

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        return ring_to_bytes(rows, self.bits)

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        residues = ring_from_bytes(messages, size=self.size, bits=self.bits)
        if self.largest is None:
            return centre_residues(residues, self.bits).to(now.reference.device)
        if residues.numel() and int(residues.max()) > self.largest:
            raise WireError(
                f"an entry {int(residues.max())} of an upload: must be from 0 to {self.largest}. Drop the client's "
                "message."
            )
        return residues.to(now.reference.device, self.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskWire(Stage):
    """Rows of zeros and ones are sent in about their entropy under the round's reference. Lossless: in one process they
    are coded only to count their bytes."""

    def fixed_bits(self, size: int) -> None:
        return None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if rows.device.type == "cpu":
            _count_bits(now, self.messages(rows, ids, now), rows)
        elif len(rows):
            packed = pack_rows(rows != 0, 1)
            now.tally.counts += count_beside(mask_traffic, packed, now.reference.cpu().numpy().tobytes())
        return rows

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        coder = _mask_coder(now.reference.cpu().numpy().tobytes())
        return [coder.encode(mask.cpu().numpy() != 0) for mask in rows]

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        coder = _mask_coder(now.reference.cpu().numpy().tobytes())
        masks = torch.empty(len(messages), len(now.reference), dtype=now.reference.dtype)
        for mask, message in zip(masks, messages, strict=True):
            mask.copy_(torch.from_numpy(coder.decode(message)))
        _count_bits(now, messages, masks)
        return masks.to(now.reference.device)


def mask_traffic(packed: NDArray[np.uint8], probabilities: bytes) -> tuple[int, int]:
    """Return the bytes of packed masks, range-coded with float32 `probabilities`, and their bits by FedPM's measure."""
    coder = _mask_coder(probabilities)
    masks = unpack_rows(packed, 1, len(coder.probabilities))
    entropy = sum(entropy_of_ones(torch.from_numpy(mask)) for mask in masks)
    return sum(len(coder.encode(mask != 0)) for mask in masks), entropy


def entropy_of_ones(mask: Tensor) -> int:
    """Return the bits of a mask [n] by FedPM's measure (Section 3.1): n H(fraction of ones), rounded to an integer.

    This is the length of an ideal code that knows only the fraction. `MaskWire` sends fewer bits, since client and
    server know the probability of each entry.
    """
    ones = int(torch.count_nonzero(mask))
    shares = [count / len(mask) for count in (ones, len(mask) - ones) if count]
    return round(-len(mask) * sum(share * math.log2(share) for share in shares))


def _count_bits(now: Round, messages: Sequence[bytes], masks: Tensor) -> None:
    """Add the uploads' bytes, and their bits by FedPM's measure, to the round's tally."""
    now.tally.add_traffic(sum(map(len, messages)), sum(map(entropy_of_ones, masks)))


@lru_cache(maxsize=1)
def _mask_coder(probabilities: bytes) -> MaskCoder:
    """Return the coder of a round's public float32 probabilities, kept for the clients of that round."""
    return MaskCoder(probabilities=np.frombuffer(probabilities, dtype=np.float32))
