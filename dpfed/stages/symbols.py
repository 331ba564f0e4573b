"""Symbols: quantised uploads as integers that can be summed (shared noise of FedMRN, a public bound of signs)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fields import SymbolField
from dpfed.compress.payload import Payloads, Scheme
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds
from dpfed.stages.clip import largest_magnitudes
from dpfed.stages.stage import Round, Stage


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
        if not now.uploads:
            return torch.zeros_like(now.reference)
        scheme = self._round_scheme(now.number)
        (name,) = scheme.layout(len(now.reference))
        mean = (total.double() / now.uploads).to(now.reference.dtype)
        seeds = torch.zeros(1, dtype=torch.int64, device=mean.device)
        together = Payloads(scheme=scheme, dimension=len(mean), seeds=seeds, fields={name: mean[None]})
        return now.uploads * scheme.decode(together)[0]

    def _round_scheme(self, number: int) -> Scheme:
        if getattr(self.scheme, "shared_seed", None) is None:
            return self.scheme
        # mypy does not know that schemes are dataclasses, since a Protocol cannot state it.
        return replace(self.scheme, shared_seed=self.seeds.integer(self.seed_purpose, number))  # type: ignore[type-var]


def alphabet_of(scheme: Scheme, size: int) -> int:
    """Return the number of symbols of a scheme; raise ConfigError for a scheme that cannot be summed."""
    fields = list(scheme.layout(size).values())
    if not scheme.linear or len(fields) != 1 or not isinstance(fields[0], SymbolField):
        raise ConfigError(
            f"aggregation.kind with {scheme.name}: a sum of its uploads cannot be decoded. Use method.shared=true "
            "(fedmrn, fedmrns, fedscalar), a public method.options.bound (stochastic-sign), or kind 'plain'."
        )
    return fields[0].alphabet
