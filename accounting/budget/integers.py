"""Integer noise of a plan: the encoding of uploads, the size of the noise shares, and the mechanism of a round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from accounting import require
from accounting.budget.gaussians import DROPOUT, Noise
from accounting.budget.options import option
from accounting.budget.samplings import Setting, most_uploads
from accounting.compose.twins import continuous
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers import fixed_point
from accounting.mechanisms import Composed, NoisyIntegers, SingleRelease, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.kinds import account_of
from accounting.rounding import upwards

Placement = Literal["clients", "server"]
"""Origin of the noise: shares of the clients, or the server."""

DIMENSION = "Integer noise and Bernoulli uploads: number of coordinates, d."


@dataclass(frozen=True, kw_only=True)
class IntegerNoise(Noise):
    """Discrete noise on a sum of integers, for secure aggregation: fields of both distributions.

    Clients clip, rotate (`rotate`: one random-sign Hadamard, which fills `dimension` up to a power of two), scale to
    `scale` steps per clip norm, round at random and redraw until the norm is at most `l2_bound`
    (`integers.fixed_point`). The noise multiplier z is relative to the real clip norm: the noise on the sum has at
    least variance (z scale)^2 in squared steps, so epsilon includes the effect of rounding.

    placement "clients": each of K uploads carries a noise share of variance (z scale)^2 / (K - floor(dropout K)),
    rounded up to a whole number, so the noise suffices with the fraction `dropout` of them missing (or known to
    colluding clients); the account is that of K - floor(dropout K) shares. K is the cohort under fixed and all, the
    cohort cap under poisson (`Plan.cohort_cap`): clients that were not drawn send noise alone until there are K
    uploads. "server": the server adds all the noise, to the integers of the sum; under poisson a `secure` sum still
    holds K uploads, those of clients that were not drawn being zeros, because the number of uploads must not reveal how
    many were drawn.

    `scale` defaults to the least at which rounding lengthens the bound by 1% and shares at z >= 1/2 have a standard
    deviation of 2 steps. The adjacency defaults to replace-one for fixed, zero-out for noise from clients, add-remove
    for noise from the server.
    """

    dimension: int = option(DIMENSION)
    scale: float | None = option(
        "Integer noise: steps per clip norm. Default: the least with which rounding lengthens the bound by 1%.", None
    )
    rotate: bool = option(
        "Integer noise: a random Hadamard rotation before rounding (the default) saves bits and fills d up to a power "
        "of two.",
        True,
    )
    placement: Placement = option(
        "Integer noise: in shares by the clients (the default), or added by the server.", "clients"
    )
    dropout: float = option(DROPOUT, 0.0)
    secure: bool = False
    wrap_probability: float = 1e-6

    def default_adjacency(self, sampling: str) -> Adjacency:
        """Return replace-one for fixed-size sampling, zero-out for shares, add-remove for noise of the server."""
        if sampling != "fixed" and self.placement == "clients":
            return Adjacency.ZERO_OUT
        return super().default_adjacency(sampling)

    def fitted(self, setting: Setting) -> Self:
        """Return the noise with its scale. InvalidParameter, UnsupportedMechanism for a setting without an account."""
        require.count(dimension=self.dimension)
        require.open_probability(wrap_probability=self.wrap_probability)
        if self.placement not in ("clients", "server"):
            raise InvalidParameter(f"placement={self.placement!r}: must be one of clients, server.")
        self._check_shares(setting)
        uploads = self.uploads(setting)
        least = fixed_point.default_scale(self.padded, uploads)
        scale = require.positive(scale=least if self.scale is None else self.scale)
        if scale > 2**53:
            raise InvalidParameter(f"scale={scale}: must be at most 2^53, the whole numbers of a double.")
        return replace(self, scale=scale)

    def _check_shares(self, setting: Setting) -> None:
        sampling = setting.sampling
        if sampling.is_schedule and (self.placement == "clients" or self.secure):
            raise UnsupportedMechanism(
                f"mechanism={self.name!r} with sampling={sampling.name!r}, placement={self.placement!r}: shares of "
                "noise and secure sums need a fixed number of uploads, which is proven for sampling 'poisson' and "
                "'fixed' alone. Use placement 'server' with a plain sum."
            )
        if not 0 <= require.real("a fraction in [0, 1)", dropout=self.dropout) < 1:
            raise InvalidParameter(f"dropout={self.dropout}: must be a fraction in [0, 1).")
        if self.placement == "server" and self.dropout:
            raise InvalidParameter(
                f"dropout={self.dropout} with placement='server': noise added by the server does not drop out. Use "
                "placement 'clients', or dropout 0."
            )
        if self.has_fixed_uploads(sampling.name) and (setting.cohort_cap or 0) > setting.clients:
            raise InvalidParameter(
                f"cohort_cap={setting.cohort_cap}: every upload needs a client, so at most {setting.clients}."
            )

    @property
    def padded(self) -> int:
        """Integers that a client sends."""
        return fixed_point.padded_dimension(self.dimension, rotate=self.rotate)

    @property
    def l2_bound(self) -> float:
        """L2 norm of an upload without its noise, in steps."""
        return fixed_point.rounded_l2(self._scale, self.padded)

    @property
    def _scale(self) -> float:
        return float(self.scale or 0)

    def has_fixed_uploads(self, sampling: str) -> bool:
        """Return True if every sum holds the same number of uploads, for any drawn clients."""
        return sampling == "poisson" and (self.placement == "clients" or self.secure)

    def uploads(self, setting: Setting) -> int:
        """Return the uploads in a round's sum: exactly, or (under poisson without a cap) hardly ever more."""
        return most_uploads(setting)

    def _shares(self, uploads: int) -> int:
        """Return the accounted noise shares: the least number that arrives."""
        return 1 if self.placement == "server" else uploads - math.floor(self.dropout * uploads)

    def release(self, setting: Setting, noise_multiplier: float | None) -> NoisyIntegers:
        """Return one round without its sampling: `share_variance` is a whole number, for exact samplers."""
        return fixed_point.sized_noise(
            self.name,
            noise_multiplier,
            scale=self._scale,
            dimension=self.padded,
            shares=self._shares(self.uploads(setting)),
            adjacency=setting.adjacency,
        )

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one round: the content of its ledger line."""
        return subsample(self.release(setting, noise_multiplier), setting.sampler)

    def bits(self, setting: Setting, noise_multiplier: float | None) -> int:
        """Return the bits of the modulus: it wraps in a round with at most `wrap_probability`, all shares present."""
        noise, uploads = self.release(setting, noise_multiplier), self.uploads(setting)
        return fixed_point.sum_bits(
            law=self.name,
            uploads=uploads,
            dimension=self.padded,
            scaled_clip=self._scale,
            noise_variance=noise.share_variance * (1 if self.placement == "server" else uploads),
            rotate=self.rotate,
            wrap_probability=self.wrap_probability,
        )

    def details(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Mapping[str, object]:
        """Return size, scale and shares of the integers."""
        if setting.unit == "record":
            return {"dimension": self.dimension, "scale": self.scale, "l2_bound": self.l2_bound}
        return {
            "dimension": self.dimension,
            "scale": self.scale,
            "shares": self._shares(self.uploads(setting)),
            "l2_bound": self.l2_bound,
            "bits_per_coordinate": self.bits(setting, noise_multiplier),
        }

    def notes(self, setting: Setting, run: Composed, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return remarks on bits and wrap-around, rounding, shares, caps, and closeness to continuous noise."""
        if setting.unit == "record":
            return (
                f"{self._scale:g} steps per clip norm of d = {self.dimension:,} whole numbers: rounding lengthens the "
                f"bound by {self.l2_bound / self._scale - 1:.2%}",
            )
        noise, uploads, bits = (
            self.release(setting, noise_multiplier),
            self.uploads(setting),
            self.bits(setting, noise_multiplier),
        )
        padding = f", d = {self.dimension:,} padded" if self.padded != self.dimension else ""
        lines = [
            f"{bits} bits a coordinate for sums of {uploads:,} uploads of {self.padded:,} integers{padding}; a round "
            f"wraps around with probability at most {upwards(self.wrap_probability)}, which lowers accuracy and is no "
            "part of epsilon",
            f"{self._scale:g} steps per clip norm: rounding lengthens the bound by "
            f"{self.l2_bound / self._scale - 1:.2%}",
        ]
        if self.placement == "clients":
            sized = "" if noise.shares == uploads else f", enough with {noise.shares:,} of {uploads:,} present"
            lines.append(f"each upload carries a noise share of variance {int(noise.share_variance):,}{sized}")
        if self.has_fixed_uploads(setting.sampling.name):
            sent = "noise alone" if self.placement == "clients" else "zeros"
            lines.append(
                f"clients that are not drawn send {sent} until {uploads:,} uploads are together; if more are drawn, "
                "some are left out by lot, which the account is of"
            )
        words = account_of(noise).words
        if words is not None:
            lines.append(words(noise, continuous(run).closeness))
        return tuple(lines)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianNoise(IntegerNoise):
    """Discrete Gaussian noise on a sum of integers, in shares of the clients or added by the server.

    Claim: each round is `mechanisms.DiscreteGaussian`. Source: Kairouz, Liu, Steinke 2021; docs/theory.md, section 7.
    Units: `scale` in steps per clip norm; the noise multiplier over the clip norm. Adjacency: any but add-remove for
    shares.
    Errors: InvalidParameter for a field outside its domain; UnsupportedMechanism for shares under a schedule.

    >>> from accounting import Plan, budget
    >>> plan = Plan(clients=600, sampling="all", mechanism=budget.DiscreteGaussianNoise(dimension=100))
    >>> plan.round(1.0).shares
    600
    """

    name: ClassVar[str] = "discrete-gaussian"


@dataclass(frozen=True, kw_only=True)
class SkellamNoise(IntegerNoise):
    """Skellam noise on a sum of integers: differences of Poisson variables, in shares or added by the server.

    Claim: each round is `mechanisms.Skellam`. Source: Agarwal, Kairouz, Liu 2021.
    Units: `scale` in steps per clip norm; the noise multiplier over the clip norm. Adjacency: any but add-remove for
    shares.
    Errors: as `DiscreteGaussianNoise`.

    >>> from accounting import Plan, budget
    >>> plan = Plan(clients=600, sampling="all", mechanism=budget.SkellamNoise(dimension=100))
    >>> plan.round(1.0).kind
    'skellam'
    """

    name: ClassVar[str] = "skellam"
