"""Quantisers of single coordinates: floats of 32 or 16 bits, few levels by random rounding, signs.

terngrad (Wen et al., arXiv:1705.07878): B = max |x|, t = sign(x) Bern(|x| / B), decoded to B t. Unbiased, with error
B ||x||_1 - ||x||². With `clip` the coordinates are first clamped to ±clip·σ, σ the root mean square of x: the error is
smaller, but decoding is unbiased for the clamped vector only.

qsgd (Alistarh et al., arXiv:1610.02132): in buckets of consecutive coordinates with norm v and s levels

    u = s |x| / v, q = floor(u) + Bern(u - floor(u)), decoded to v sign(x) q / s

unbiased, with error at most min(b/s², sqrt(b)/s) of the bucket's ||x||² for the L2 norm and buckets of b.

Sign schemes, one bit per coordinate: the sign, deterministic or random.

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

import numpy as np
import torch
from torch import Tensor

from dpfed.compress.counter import at_least, client_seeds, coins
from dpfed.compress.fields import Floats, SymbolField
from dpfed.compress.payload import LARGEST_ENTRY, Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates
from dpfed.compress.rotation import row_sums
from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Dense(Scheme):
    """All d coordinates in float32, or in float16 (relative error 2^-11; ConfigError for entries above 65,504)."""

    name: ClassVar[str] = "dense"
    linear: ClassVar[bool] = True

    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in (16, 32):
            raise ConfigError(f"bits={self.bits} of dense: must be 16 or 32.")

    @property
    def unbiased(self) -> bool:
        return self.bits == 32

    @property
    def largest_entry(self) -> float:
        return LARGEST_ENTRY if self.bits == 32 else 65_000.0

    def layout(self, dimension: int) -> Layout:
        return {"values": Floats(count=dimension, half=self.bits == 16)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        values = x.to(torch.float16) if self.bits == 16 else x.clone()
        return Payloads.of(self, x.shape[1], values=values)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return batch(payloads, self)["values"].to(torch.float32)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        return batch(payloads, self)["values"].mean(dim=0, dtype=torch.float32)


_MOST_LEVELS = 1 << 14


@dataclass(frozen=True, kw_only=True)
class TernGrad(Scheme):
    """Quantiser of each coordinate to B times -1, 0 or +1."""

    name: ClassVar[str] = "terngrad"
    linear: ClassVar[bool] = False

    clip: float | None = None

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip <= 1e6:
            raise ConfigError(f"clip={self.clip} of terngrad: must be a number of standard deviations in (0, 1e6].")

    @property
    def unbiased(self) -> bool:
        return self.clip is None

    def layout(self, dimension: int) -> Layout:
        return {"scale": Floats(count=1, signed=False), "trits": SymbolField(alphabet=3, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = checked_updates(x)
        seeds = client_seeds(seed, len(x)).to(x.device)
        if self.clip is not None:
            x = clamp_coordinates(x, self.clip)
        scale = x.abs().amax(dim=1, keepdim=True)
        up = coins(x.abs().div_(_divisors(scale)), seeds, "terngrad").view(torch.uint8)
        trits = 1 - up + 2 * (up & at_least(x, 0.0).view(torch.uint8))
        return Payloads.of(self, x.shape[1], scale=scale, trits=trits)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        return sent["trits"].to(torch.float32).sub_(1).mul_(sent["scale"])


@dataclass(frozen=True, kw_only=True)
class Qsgd(Scheme):
    """Quantiser to `levels` steps on each side of zero; `bucket` coordinates share a norm, None: the whole vector."""

    name: ClassVar[str] = "qsgd"
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    levels: int = 16
    bucket: int | None = 512
    norm: Literal["l2", "linf"] = "l2"

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= _MOST_LEVELS:
            raise ConfigError(f"levels={self.levels} of qsgd: must be from 1 to {_MOST_LEVELS}.")
        if self.bucket is not None and self.bucket < 1:
            raise ConfigError(f"bucket={self.bucket} of qsgd: must be at least 1, or none for the whole vector.")

    def layout(self, dimension: int) -> Layout:
        return {
            "norms": Floats(count=-(-dimension // self._bucket(dimension)), signed=False),
            "levels": SymbolField(alphabet=2 * self.levels + 1, count=dimension),
        }

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = checked_updates(x)
        seeds = client_seeds(seed, len(x)).to(x.device)
        norms = self._norms(x)
        spread = self._spread_buckets(_divisors(norms), x.shape[1])
        return Payloads.of(self, x.shape[1], norms=norms, levels=rounded_levels(x, spread, self.levels, seeds, "qsgd"))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        steps = sent["levels"].to(torch.float32).sub_(self.levels)
        return steps.div_(self.levels).mul_(self._spread_buckets(sent["norms"], sent.dimension))

    def _bucket(self, dimension: int) -> int:
        return min(self.bucket or dimension, dimension)

    def _norms(self, x: Tensor) -> Tensor:
        """Return the norm of every bucket, float32 [c, buckets], at least the bucket's largest coordinate after
        rounding."""
        bucket = self._bucket(x.shape[1])
        full = torch.nn.functional.pad(x, (0, -x.shape[1] % bucket)).view(len(x), -1, bucket)
        largest = full.abs().amax(dim=2)
        if self.norm == "linf":
            return largest
        lengths: Tensor = torch.linalg.vector_norm(full, dim=2, dtype=torch.float64)
        return lengths.to(x.dtype).maximum(largest)

    def _spread_buckets(self, norms: Tensor, dimension: int) -> Tensor:
        """Return [c, d] with the norm of each coordinate's bucket."""
        return norms.repeat_interleave(self._bucket(dimension), dim=1)[:, :dimension]


def rounded_levels(x: Tensor, norms: Tensor, levels: int, seeds: Tensor, purpose: str) -> Tensor:
    """Return levels + sign(x) q [c, d], q the random rounding of u = levels |x| / norm. norm >= |x|; infinite for
    zeros.

    Results are in 0 .. 2 levels: uint8 up to 127 levels, else int32. Rounding up is a Bernoulli sample of u's fraction,
    not floor(u + U): the sum u + U would itself be rounded.
    """
    steps = x.abs().div_(norms).mul_(levels)
    whole = steps.floor()
    up = coins(steps.sub_(whole), seeds, purpose).view(torch.uint8)
    signed = whole.add_(up.to(torch.float32)).copysign_(x).add_(levels)
    return _whole_numbers(signed, torch.uint8 if levels <= 127 else torch.int32)


def _divisors(norms: Tensor) -> Tensor:
    """Return the norms with infinity in place of 0, so that quotients of a zero bucket are zero."""
    return torch.where(norms > 0, norms, torch.inf)


def _whole_numbers(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return small whole numbers as integers: by numpy on a CPU, where numpy is several times as fast."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().astype(np.uint8 if dtype == torch.uint8 else np.int32))
    return values.to(dtype)


def clamp_coordinates(x: Tensor, deviations: float) -> Tensor:
    """Return coordinates clamped to ±deviations·σ, σ = sqrt(mean x²) of each row of [c, d].

    σ is computed about zero, not about the mean: a constant vector (as any with d = 1) must not become zero.
    """
    sigma = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64) / x.shape[1] ** 0.5
    edge = (deviations * sigma).to(x.dtype)
    return x.clamp(-edge, edge)


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
