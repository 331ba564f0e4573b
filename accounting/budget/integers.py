"""Integer noise of a plan: encoding of uploads, variance of the noise shares, and mechanism of a round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, get_args

from accounting import require
from accounting.budget.gaussians import DROPOUT, Noise, PlannedMechanism, Setting, most_uploads
from accounting.compose.twins import continuous
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers import fixed_point
from accounting.mechanisms import Adjacency, Composed, NoisyIntegers, SingleRelease, subsample
from accounting.mechanisms.kinds import account_of
from accounting.options import option
from accounting.rounding import upwards

Placement = Literal["clients", "server"]
"""Place where the noise is added: at the clients, in shares, or at the server."""

DIMENSION = "Integer noise and Bernoulli uploads: number of coordinates, d."


@dataclass(frozen=True, kw_only=True)
class IntegerNoise(Noise):
    """Base class of discrete noise on a sum of integers, for secure aggregation.

    Clients clip, rotate (`rotate`: one random-sign Hadamard transform, which pads `dimension` to a power of two) and
    scale to `scale` steps per clip norm. Then they round at random, and redraw until the norm is at most `l2_bound`
    (`integers.fixed_point`). The noise multiplier z is relative to the clip norm before scaling: the noise on the sum
    has at least variance (z scale)^2 in squared steps. Epsilon includes the effect of rounding.

    placement "clients": each of K uploads carries a noise share of variance (z scale)^2 / (K - floor(dropout K)),
    rounded up to an integer. So the noise suffices if the fraction `dropout` of the shares is missing, or known to
    colluding clients; the account assumes K - floor(dropout K) shares. K is the cohort under fixed and all, the cohort
    cap under poisson (`Plan.cohort_cap`): clients that were not drawn send noise alone until there are K uploads.
    "server": the server adds all the noise to the integer sum. Under poisson a `secure` sum also holds K uploads:
    clients that were not drawn send zeros, because the number of uploads must not reveal how many were drawn.

    `scale` defaults to the smallest scale at which rounding lengthens the bound by at most 1%, and shares at z >= 1/2
    have a standard deviation of at least 2 steps. The adjacency defaults to replace-one for fixed, zero-out for noise
    from clients, add-remove for noise from the server.
    """

    dimension: int = option(DIMENSION)
    scale: float | None = option(
        "Integer noise: steps per clip norm. Default: the smallest with which rounding lengthens the bound by at "
        "most 1%.",
        None,
    )
    rotate: bool = option(
        "Integer noise: a random Hadamard rotation before rounding (the default) saves bits and pads d to a power of "
        "two.",
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

    def validated_for(self, setting: Setting) -> Self:
        """Return the validated noise with its scale. Errors: InvalidParameter, UnsupportedMechanism if the setting has
        no account.
        """
        require.count(dimension=self.dimension)
        require.open_probability(wrap_probability=self.wrap_probability)
        require.one_of(get_args(Placement), placement=self.placement)
        self._check_shares(setting)
        scale = require.positive(scale=self.default_scale(setting) if self.scale is None else self.scale)
        if scale > 2**53:
            raise InvalidParameter(
                f"scale={scale}: must be at most 2^53, the largest range of exact integers in a double."
            )
        return replace(self, scale=scale)

    def default_scale(self, setting: Setting) -> int:
        """Return the default of `scale`: one draw of noise of a client with records has no shares."""
        if setting.unit == "record":
            return fixed_point.least_scale(self.padded_dimension)
        return fixed_point.default_scale(self.padded_dimension, most_uploads(setting))

    def _check_shares(self, setting: Setting) -> None:
        sampling = setting.sampling
        if sampling.is_schedule and (self.placement == "clients" or self.secure):
            raise UnsupportedMechanism(
                f"mechanism={self.name!r} with sampling={sampling.name!r}, placement={self.placement!r}: shares of "
                "noise and secure sums need a fixed number of uploads, which is proven for sampling 'poisson' and "
                "'fixed' alone. Use placement 'server' with a plain sum."
            )
        require.fraction(dropout=self.dropout)
        if self.placement == "server" and self.dropout:
            raise InvalidParameter(
                f"dropout={self.dropout} with placement='server': noise added by the server does not drop out. Use "
                "placement 'clients', or dropout 0."
            )
        if self.sums_have_fixed_size(sampling.name) and (setting.cohort_cap or 0) > setting.clients:
            raise InvalidParameter(
                f"cohort_cap={setting.cohort_cap}: every upload needs a client, so the cap must be at most "
                f"{setting.clients}."
            )

    @property
    def padded_dimension(self) -> int:
        """Number of integers that a client sends."""
        return fixed_point.padded_dimension(self.dimension, rotate=self.rotate)

    @property
    def l2_bound(self) -> float:
        """Largest L2 norm of an upload without its noise, in steps."""
        return fixed_point.rounded_l2(self._scale, self.padded_dimension)

    @property
    def _scale(self) -> float:
        return float(self.scale or 0)

    def sums_have_fixed_size(self, sampling: str) -> bool:
        """Return True if the number of uploads in a sum does not depend on the number of drawn clients."""
        return sampling == "poisson" and (self.placement == "clients" or self.secure)

    def _shares(self, uploads: int) -> int:
        """Return the number of noise shares that the account assumes: the smallest number that can arrive."""
        return 1 if self.placement == "server" else uploads - math.floor(self.dropout * uploads)

    def release(self, setting: Setting, noise_multiplier: float | None) -> NoisyIntegers:
        """Return one round without its sampling. Its `share_variance` is an integer, as exact samplers require."""
        return fixed_point.sized_noise(
            self.name,
            noise_multiplier,
            scale=self._scale,
            dimension=self.padded_dimension,
            shares=self._shares(most_uploads(setting)),
            adjacency=setting.adjacency,
        )

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one round, as a ledger line states it."""
        return subsample(self.release(setting, noise_multiplier), setting.sampler)

    def bits(self, setting: Setting, noise_multiplier: float | None) -> int:
        """Return the bits of the modulus, for which a round wraps around with probability at most `wrap_probability`,
        even with all shares present.
        """
        noise, uploads = self.release(setting, noise_multiplier), most_uploads(setting)
        return fixed_point.sum_bits(
            law=self.name,
            uploads=uploads,
            dimension=self.padded_dimension,
            scaled_clip=self._scale,
            noise_variance=noise.share_variance * (1 if self.placement == "server" else uploads),
            rotate=self.rotate,
            wrap_probability=self.wrap_probability,
        )

    def details(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Mapping[str, object]:
        """Return dimension, scale and shares of the integers, for the JSON of a budget."""
        found, bound = {"dimension": self.dimension, "scale": self.scale}, {"l2_bound": self.l2_bound}
        if setting.unit == "record":
            return found | bound
        bits = {"bits_per_coordinate": self.bits(setting, noise_multiplier)}
        return {**found, "shares": self._shares(most_uploads(setting)), **bound, **bits}

    def notes(self, setting: Setting, run: Composed, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return notes on bits and wrap-around, rounding, shares, caps, and closeness to continuous noise."""
        if setting.unit == "record":
            return (
                f"{self._scale:g} steps per clip norm, d = {self.dimension:,} integers: rounding lengthens the "
                f"bound by {self.l2_bound / self._scale - 1:.2%}",
            )
        noise, bits = self.release(setting, noise_multiplier), self.bits(setting, noise_multiplier)
        uploads = most_uploads(setting)
        padding = f", d = {self.dimension:,} padded" if self.padded_dimension != self.dimension else ""
        lines = [
            f"{bits} bits a coordinate for sums of {uploads:,} uploads of {self.padded_dimension:,} "
            f"integers{padding}; a round wraps around with probability at most {upwards(self.wrap_probability)}, "
            "which lowers accuracy and does not affect epsilon",
            f"{self._scale:g} steps per clip norm: rounding lengthens the bound by "
            f"{self.l2_bound / self._scale - 1:.2%}",
        ]
        if self.placement == "clients":
            lines.append(f"each upload carries a noise share of variance {int(noise.share_variance):,}")
            if noise.shares < uploads:  # a condition, stated apart from what depends on the noise
                lines.append(f"holds if at least {noise.shares:,} of {uploads:,} noise shares are present")
        if self.sums_have_fixed_size(setting.sampling.name):
            filler = "noise alone" if self.placement == "clients" else "zeros"
            lines.append(
                f"clients that are not drawn send {filler} to fill a sum of {uploads:,} uploads; if more clients are "
                "drawn, a random part is left out, as accounted"
            )
        remark = account_of(noise).note
        if remark is not None:
            lines.append(remark(noise, continuous(run).closeness))
        return tuple(lines)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianNoise(IntegerNoise):
    """Discrete Gaussian noise on a sum of integers, in shares of the clients or added by the server.

    Claim: each round is `mechanisms.DiscreteGaussian`.
    Source: Kairouz, Liu, Steinke 2021; docs/theory.md, section 7.
    Units: `scale` in steps per clip norm; the noise multiplier over the clip norm.
    Adjacency: any but add-remove for shares.
    Errors: InvalidParameter for a field outside its domain; UnsupportedMechanism for shares under a schedule.

    >>> from accounting import Plan, budget
    >>> plan = Plan(clients=600, sampling="all", mechanism=budget.DiscreteGaussianNoise(dimension=100))
    >>> plan.round(1.0).shares
    600
    """

    name: ClassVar[str] = "discrete-gaussian"
    words: ClassVar[str] = "integers: discrete Gaussian noise"

    def for_records(self) -> PlannedMechanism:
        return replace(self, placement="server", rotate=False)


@dataclass(frozen=True, kw_only=True)
class SkellamNoise(IntegerNoise):
    """Skellam noise on a sum of integers: differences of Poisson variables, in shares or added by the server.

    Claim: each round is `mechanisms.Skellam`.
    Source: Agarwal, Kairouz, Liu 2021.
    Units: `scale` in steps per clip norm; the noise multiplier over the clip norm.
    Adjacency: any but add-remove for shares.
    Errors: as `DiscreteGaussianNoise`.

    >>> from accounting import Plan, budget
    >>> plan = Plan(clients=600, sampling="all", mechanism=budget.SkellamNoise(dimension=100))
    >>> plan.round(1.0).kind
    'skellam'
    """

    name: ClassVar[str] = "skellam"
    words: ClassVar[str] = "integers: Skellam noise"
