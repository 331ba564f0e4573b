"""Plans with integer noise: what a run sends, how large its noise shares are, and what a round of it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from accounting import require
from accounting.compose.twins import continuous, overflow
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers import fixed_point
from accounting.mechanisms import NoisyIntegers, SingleRelease, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.kinds import KINDS, account_of
from accounting.mechanisms.schedules import SCHEDULES
from accounting.mechanisms.slots import default_slots
from accounting.rounding import upwards

if TYPE_CHECKING:
    from accounting.budget.plan import Plan

# Shares with this standard deviation, in steps, are as good as continuous ones.
_GOOD_SHARE = 2.0


@dataclass(frozen=True, kw_only=True)
class IntegerRounds:
    """Rounds whose sum is one of integers, with discrete noise.

    Clients clip, rotate (`rotate`: one random-sign Hadamard, which fills `dimension` up to a power of two), scale to
    `scale` steps per clip norm, round at random and redraw until the norm is at most `l2_bound`
    (`integers.fixed_point`). The noise multiplier z is relative to the real clip norm: the noise on the sum has at
    least variance (z scale)^2 in squared steps, so epsilon includes what the rounding costs.

    placement "clients": each of K uploads carries a noise share of variance (z scale)^2 / (K - floor(dropout K)),
    rounded up to a whole number, so that the noise is enough with the fraction `dropout` of them missing (or known to
    colluding clients); the account is that of K - floor(dropout K) shares. K is the cohort under fixed and all; under
    poisson it is `slots` (default: exceeded with probability 1e-5 delta a round): clients that were not drawn send
    noise alone until K uploads are together. "server": the server adds all the noise, to the integers of the sum;
    under poisson a `secure` sum still holds `slots` uploads, those of clients that were not drawn being zeros, since
    whoever counts uploads must not learn how many were drawn. That more are drawn than there are slots is charged to
    delta in every round (`accountant.overflow` is the sum of it); nothing else here holds with a probability only.

    `scale` defaults to the least at which rounding lengthens the bound by 1% and shares at z >= 1/2 have a standard
    deviation of 2 steps. `adjacency` defaults to replace-one for fixed, zero-out for noise from clients, add-remove
    for noise from the server.
    """

    plan: Plan
    takes: ClassVar[frozenset[str]] = frozenset(
        {"dimension", "scale", "rotate", "placement", "dropout", "slots", "secure", "wrap_probability"}
    )
    has_noise_multiplier: ClassVar[bool] = True
    advice: ClassVar[str] = "Raise the noise multiplier or the target."

    def resolved(self) -> Mapping[str, Any]:
        """The adjacency and the scale."""
        plan = self.plan
        require.count(dimension=plan.dimension)
        require.open_probability(wrap_probability=plan.wrap_probability)
        if plan.placement not in ("clients", "server"):
            raise InvalidParameter(f"placement={plan.placement!r}: must be one of clients, server.")
        self._check_shares()
        adjacency = Adjacency.of(plan.adjacency or self._default_adjacency())
        uploads = self._slots_under(adjacency)[0]
        least = max(fixed_point.least_scale(self.padded), math.ceil(2 * _GOOD_SHARE * math.sqrt(uploads)))
        scale = require.positive(scale=least if plan.scale is None else plan.scale)
        if scale > 2**53:
            raise InvalidParameter(f"scale={scale}: must be at most 2^53, the whole numbers of a double.")
        return {"adjacency": adjacency, "scale": scale}

    def _check_shares(self) -> None:
        plan = self.plan
        if plan.sampling in SCHEDULES and (plan.placement == "clients" or plan.secure):
            raise UnsupportedMechanism(
                f"mechanism={plan.mechanism!r} with sampling={plan.sampling!r}, placement={plan.placement!r}: shares "
                "of noise and secure sums need a fixed number of uploads, which is proven for sampling 'poisson' and "
                "'fixed' alone. Use placement 'server' with a plain sum."
            )
        if not 0 <= require.real("a fraction in [0, 1)", dropout=plan.dropout) < 1:
            raise InvalidParameter(f"dropout={plan.dropout}: must be a fraction in [0, 1).")
        if plan.placement == "server" and plan.dropout:
            raise InvalidParameter(
                f"dropout={plan.dropout} with placement='server': noise added by the server does not drop out. Use "
                "placement 'clients', or dropout 0."
            )
        if plan.slots is not None and not self.filled:
            raise InvalidParameter(
                f"slots={plan.slots} with sampling={plan.sampling!r}, placement={plan.placement!r}: slots are for "
                "noise from the clients, or a secure sum, under Poisson sampling. Remove them."
            )
        if plan.slots is not None and require.count(slots=plan.slots) > plan.clients:
            raise InvalidParameter(f"slots={plan.slots}: every upload needs a client, so at most {plan.clients}.")

    def _default_adjacency(self) -> Adjacency:
        if self.plan.sampling == "fixed":
            return Adjacency.REPLACE_ONE
        return Adjacency.ZERO_OUT if self.plan.placement == "clients" else Adjacency.ADD_REMOVE

    @property
    def padded(self) -> int:
        """Integers that a client sends."""
        return fixed_point.padded_dimension(self._dimension, rotate=self.plan.rotate)

    @property
    def filled(self) -> bool:
        """Whether sums hold `slots` uploads however many clients were drawn."""
        return self.plan.sampling == "poisson" and (self.plan.placement == "clients" or self.plan.secure)

    @property
    def _dimension(self) -> int:
        return require.count(dimension=self.plan.dimension)

    @property
    def _scale(self) -> float:
        return float(self.plan.scale or 0)

    @property
    def _slots(self) -> tuple[int, float]:
        """Uploads of a round, and the probability that more clients are drawn."""
        return self._slots_under(self.plan.adjacency)

    def _slots_under(self, adjacency: Adjacency | None) -> tuple[int, float]:
        plan = self.plan
        if plan.sampling in ("fixed", "all"):
            return (plan.clients if plan.sampling == "all" else plan.cohort), 0.0
        return default_slots(
            plan.cohort, plan.clients, delta=float(plan.delta or 0), adjacency=adjacency, slots=plan.slots
        )

    @property
    def uploads(self) -> int:
        """Integer vectors in a round's sum: exactly, or (not `filled`, under Poisson sampling) hardly ever more."""
        return self._slots[0]

    @property
    def shares(self) -> int:
        """Noise shares that are accounted: those that arrive at the least."""
        return 1 if self.plan.placement == "server" else self.uploads - math.floor(self.plan.dropout * self.uploads)

    @property
    def l2_bound(self) -> float:
        """L2 norm of an upload without its noise, in steps."""
        return fixed_point.rounded_l2(self._scale, self.padded)

    @property
    def noise_kept(self) -> float:
        """All of the noise variance asked for, as shares are sized for the dropout."""
        return 1.0

    def noise(self, noise_multiplier: float | None) -> NoisyIntegers:
        """One round without its sampling: its `share_variance` is a whole number, for exact samplers."""
        assert self.plan.adjacency is not None
        wanted = (require.noise_multiplier(noise_multiplier) * self._scale) ** 2 / self.shares
        law: type[NoisyIntegers] = KINDS[self.plan.mechanism].description
        return law(
            dimension=self.padded,
            l2_bound=self.l2_bound,
            share_variance=float(math.ceil(wanted * (1 - 1e-12))),
            shares=self.shares,
            adjacency=self.plan.adjacency,
            overflow=self._slots[1] if self.filled else 0.0,
        )

    def round(self, noise_multiplier: float | None) -> SingleRelease:
        """The mechanism of one round: what its ledger line states."""
        return subsample(self.noise(noise_multiplier), self.plan.sampler)

    def bits(self, noise_multiplier: float | None) -> int:
        """Bits of the modulus: it wraps in a round with at most `wrap_probability`, all shares present."""
        noise = self.noise(noise_multiplier)
        return fixed_point.sum_bits(
            law=noise.kind,
            uploads=self.uploads,
            dimension=self.padded,
            scaled_clip=self._scale,
            noise_variance=noise.share_variance * (1 if self.plan.placement == "server" else self.uploads),
            rotate=self.plan.rotate,
            wrap_probability=self.plan.wrap_probability,
        )

    def details(self, noise_multiplier: float | None) -> Mapping[str, Any]:
        """What a budget's JSON has besides."""
        return {
            "dimension": self.plan.dimension,
            "scale": self.plan.scale,
            "shares": self.shares,
            "l2_bound": self.l2_bound,
            "bits_per_coordinate": self.bits(noise_multiplier),
        }

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Bits and wrap-around, rounding, shares, slots, and how near to continuous the noise is."""
        plan, noise = self.plan, self.noise(noise_multiplier)
        padding = f", d = {self._dimension:,} padded" if self.padded != self._dimension else ""
        lines = [
            f"{self.bits(noise_multiplier)} bits a coordinate for sums of {self.uploads:,} uploads of {self.padded:,} "
            f"integers{padding}; a round wraps around with probability at most {upwards(plan.wrap_probability)}, which "
            "costs accuracy and is no part of epsilon",
            f"{self._scale:g} steps per clip norm: rounding lengthens the bound by "
            f"{self.l2_bound / self._scale - 1:.2%}",
        ]
        if plan.placement == "clients":
            sized = "" if self.shares == self.uploads else f", enough with {self.shares:,} of {self.uploads:,} present"
            lines.append(f"each upload carries a noise share of variance {int(noise.share_variance):,}{sized}")
        if noise.overflow:
            sent = "noise alone" if plan.placement == "clients" else "zeros"
            charged = overflow(plan.run(noise_multiplier, rounds))
            lines.append(
                f"clients that are not drawn send {sent} until {self.uploads:,} uploads are together; more are drawn "
                f"with probability {upwards(noise.overflow)} a round: {upwards(charged)} of delta is charged for that"
            )
        words = account_of(noise).words
        if words is not None:
            lines.append(words(noise, continuous(plan.run(noise_multiplier, rounds)).closeness))
        return tuple(lines)
