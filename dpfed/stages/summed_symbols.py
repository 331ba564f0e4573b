"""Quantised uploads as whole numbers that can be summed: shared noise (FedMRN), a public bound (stochastic signs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fields import Symbols
from dpfed.compress.payload import Payloads, Scheme
from dpfed.compress.ring_bytes import ring_from_bytes, ring_to_bytes
from dpfed.errors import ConfigError, WireError
from dpfed.seeds import Seeds
from dpfed.stages.code import Arrived, OnIntegers


@dataclass(frozen=True, kw_only=True, eq=False)
class SummedSymbols:
    """The one field of symbols of a linear scheme, summed by itself; its mean decodes to the mean of what was sent.

    bits: of the ring, which holds every upload's largest symbol with certainty. Not private: symbols are tossed from
          the public seed, and `dpfed.methods.uploads` refuses them under [privacy].
    """

    scheme: Scheme
    bits: int
    seeds: Seeds
    seed_purpose: str = "code"

    @property
    def slots(self) -> None:
        return None

    @property
    def summed_as(self) -> torch.dtype:
        return torch.int64

    def width(self, size: int) -> int:
        return size

    def fixed_bits(self, size: int) -> int:
        return size * self.bits

    def send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        wrong = ~rows.isfinite().all(dim=1)
        scheme = self._of_round(round)
        own = [self.seeds.integer(self.seed_purpose, round, int(client)) for client in clients]
        payloads = scheme.encode(torch.where(wrong[:, None], 0.0, rows), seed=own)
        (symbols,) = payloads.fields.values()
        return Arrived(rows=symbols.to(torch.int64), uplink_bytes=None, not_finite=int(wrong.sum()))

    def messages(
        self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int, noise: OnIntegers | None = None
    ) -> list[bytes]:
        return ring_to_bytes(self.send(rows, origin, clients, round).rows, self.bits)

    def arrived(self, messages: Sequence[bytes], origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        symbols = ring_from_bytes(messages, size=len(origin), bits=self.bits)
        (part,) = self._of_round(round).layout(len(origin)).values()
        assert isinstance(part, Symbols)
        if len(symbols) and int(symbols.max()) >= part.alphabet:
            raise WireError(
                f"symbol {int(symbols.max())} of an alphabet of {part.alphabet}; drop the client's message."
            )
        return Arrived(rows=symbols.to(origin.device), uplink_bytes=None)

    def decode(self, total: Tensor, origin: Tensor, uploads: int, round: int) -> Tensor:
        if not uploads:
            return torch.zeros_like(origin)
        scheme = self._of_round(round)
        (name,) = scheme.layout(len(origin))
        mean = (total.double() / uploads).to(origin.dtype)
        seeds = torch.zeros(1, dtype=torch.int64, device=mean.device)
        together = Payloads(scheme=scheme, dimension=len(origin), seeds=seeds, fields={name: mean[None]})
        return uploads * scheme.decode(together)[0]

    def near_the_ends(self, total: Tensor) -> None:
        return None

    def keep(self) -> Mapping[str, Tensor]:
        return {}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        pass

    def _of_round(self, round: int) -> Scheme:
        if getattr(self.scheme, "shared_seed", None) is None:
            return self.scheme
        # Schemes are dataclasses, which a Protocol cannot say.
        return replace(self.scheme, shared_seed=self.seeds.integer(self.seed_purpose, round))  # type: ignore[type-var]


def symbol_bits(scheme: Scheme, size: int, uploads: int) -> int:
    """Bits that a sum of so many uploads' symbols needs; ConfigError for a scheme that cannot be summed."""
    fields = list(scheme.layout(size).values())
    if not scheme.linear or len(fields) != 1 or not isinstance(fields[0], Symbols):
        raise ConfigError(
            f"aggregation.kind with {scheme.name}: a sum of its uploads cannot be decoded. Use method.shared=true "
            "(fedmrn, fedmrns, fedscalar), a public method.options.bound (stochastic-sign), or kind 'plain'."
        )
    return ((fields[0].alphabet - 1) * uploads).bit_length()
