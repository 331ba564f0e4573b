"""Sign schemes, one bit per coordinate: the sign, deterministic or random.

signsgd (Bernstein et al., arXiv:1802.04434; scaled as in Karimireddy et al., arXiv:1901.09847):

    b = sign(x), sign(0) = +1;   decoded to S b,   S = ||x||_1 / d, which minimises the error, or ||x||_2 / sqrt(d)

biased. One bit cannot encode zero: an unchanged entry, as of a weight without gradient, decodes to +S. With
S = ||x||_1 / d the error is ||x||² - ||x||_1² / d: 1 - 2/π of ||x||² for a Gaussian x.

stochastic-sign (Safaryan, Richtárik, arXiv:1805.12491; Jin et al., arXiv:2002.10940):

    P(b = +1) = 1/2 + x/(2B); decoded to B b

unbiased if and only if B >= max |x|; the error is d B² - ||x||². B = ||x||_2 (Safaryan and Richtárik), ||x||_inf (the
least noise of an unbiased sign, the default), or a public constant, to which coordinates are then clamped and which is
not sent.

`majority` makes the mean a vote: (mean of the scales) · sign(Σ b), where a tie counts as +1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dpfed.compress.counter import at_least, client_seeds, coins
from dpfed.compress.fields import Floats, SymbolField
from dpfed.compress.payload import Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates
from dpfed.compress.threads import row_sums
from dpfed.errors import ConfigError

_LARGEST_BOUND = 1e30


@dataclass(frozen=True, kw_only=True)
class SignSgd(Scheme):
    """S sign(x), with S = ||x||_1 / d or ||x||_2 / sqrt(d)."""

    name: ClassVar[str] = "signsgd"
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    scale: Literal["l1", "l2"] = "l1"
    majority: bool = False

    def layout(self, dimension: int) -> Layout:
        return {"scale": Floats(count=1, signed=False), "bits": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        dimension = x.shape[1]
        if self.scale == "l1":
            scale = row_sums(x.abs()) / dimension
        else:
            scale = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) / dimension**0.5
        return Payloads.of(self, dimension, scale=scale.to(torch.float32), bits=at_least(x, 0.0).view(torch.uint8))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        return sent["scale"] * signs_of(sent["bits"])

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        if not self.majority:
            return super().mean(payloads)
        sent = batch(payloads, self)
        return sent["scale"].mean() * majority_of(sent["bits"])


@dataclass(frozen=True, kw_only=True)
class StochasticSign(Scheme):
    """B times a random sign of mean x/B. `bound`: "linf", "l2", or a public constant.

    With a constant the sum of the bits decodes to the sum of decoded updates. Its bits are then randomised responses,
    but the random numbers here are not cryptographic: no differential privacy may be claimed for them.
    """

    name: ClassVar[str] = "stochastic-sign"

    bound: Literal["l2", "linf"] | float = "linf"
    majority: bool = False

    def __post_init__(self) -> None:
        if self._constant_bound is not None and not 0 < self._constant_bound <= _LARGEST_BOUND:
            raise ConfigError(f"bound={self.bound} of stochastic-sign: must be 'l2', 'linf' or in (0, 1e30].")

    @property
    def unbiased(self) -> bool:
        return not self.linear

    @property
    def linear(self) -> bool:
        return self._constant_bound is not None

    @property
    def _constant_bound(self) -> float | None:
        """Public constant bound, equal for all clients; None if each client sends its bound."""
        return None if isinstance(self.bound, str) else self.bound

    def layout(self, dimension: int) -> Layout:
        bits = SymbolField(alphabet=2, count=dimension)
        return {"bits": bits} if self.linear else {"scale": Floats(count=1, signed=False), "bits": bits}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = checked_updates(x)
        seeds = client_seeds(seed, len(x)).to(x.device)
        bounds = self._client_bounds(x)
        return Payloads.of(self, x.shape[1], scale=bounds, bits=random_signs(x, bounds, seeds))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        scale = sent["scale"] if self._constant_bound is None else self._constant_bound
        return scale * signs_of(sent["bits"])

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        if self.majority:
            scale = sent["scale"].mean() if self._constant_bound is None else self._constant_bound
            return scale * majority_of(sent["bits"])
        if self._constant_bound is None:
            return super().mean(payloads)
        return self._constant_bound * (2 * sent["bits"].mean(dim=0, dtype=torch.float32) - 1)

    def _client_bounds(self, x: Tensor) -> Tensor:
        """Return B of every client, [c, 1]: a constant, or at least max |x| after rounding to float32."""
        largest = x.abs().amax(dim=1, keepdim=True)
        if self.bound == "linf":
            return largest
        if self.bound == "l2":
            length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
            return length.to(x.dtype).maximum(largest)
        return torch.full_like(largest, float(self.bound))


def random_signs(x: Tensor, bounds: Tensor, seeds: Tensor) -> Tensor:
    """Return bits [c, d], uint8: 1 with probability 1/2 + x/(2B), clamped to [0, 1], B [c, 1]; 1/2 if B = 0."""
    mean = x / torch.where(bounds > 0, bounds, torch.inf)
    return coins(mean.mul_(0.5).add_(0.5), seeds, "stochastic-sign").view(torch.uint8)


def signs_of(bits: Tensor) -> Tensor:
    """Return bits 0, 1 as float32 -1, +1."""
    return bits.to(torch.float32).mul_(2).sub_(1)


def majority_of(bits: Tensor) -> Tensor:
    """Return the sign [d] of the majority of bits [c, d], float32; a tie is +1."""
    return signs_of(2 * bits.sum(dim=0, dtype=torch.int32) >= len(bits))
