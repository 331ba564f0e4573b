"""Plans with integer noise: what a run sends, how large its noise shares are, and what a round of it costs.

`Plan` and `IntegerPlan` offer the same to `accounting.budget`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from accounting import require
from accounting.compose.accountant import overflow
from accounting.errors import InvalidParameter
from accounting.integers import fixed_point
from accounting.integers.discrete_gaussian import continuous, shares_distortion
from accounting.integers.fixed_point import NoiseLaw
from accounting.mechanisms import (
    Composed,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
    SingleRelease,
    repeated,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.integers import DiscreteGaussian, Skellam
from accounting.mechanisms.slots import default_slots
from accounting.rounding import upwards

Placement = Literal["clients", "server"]

# Shares with this standard deviation, in steps, are as good as continuous ones.
_GOOD_SHARE = 2.0


@dataclass(frozen=True, kw_only=True)
class IntegerPlan:
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
    deviation of 2 steps. `before` is what was released on the same clients already: every epsilon is then of that and
    the plan together. `delta` defaults to clients^-1.1; `adjacency` to replace-one for fixed, zero-out for noise
    from clients, add-remove for noise from the server.
    """

    clients: int
    cohort: int
    dimension: int
    mechanism: NoiseLaw = "discrete-gaussian"
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    delta: float | None = None
    scale: float | None = None
    rotate: bool = True
    placement: Placement = "clients"
    dropout: float = 0.0
    slots: int | None = None
    wrap_probability: float = 1e-6
    secure: bool = False
    before: Composed | None = None

    def __post_init__(self) -> None:
        clients, cohort = require.count(clients=self.clients), require.count(cohort=self.cohort)
        require.count(dimension=self.dimension)
        require.open_probability(wrap_probability=self.wrap_probability)
        if cohort > clients:
            raise InvalidParameter(f"cohort={cohort} of clients={clients}: must be at most the number of clients.")
        for name, value, allowed in (
            ("mechanism", self.mechanism, get_args(NoiseLaw)),
            ("sampling", self.sampling, ("poisson", "fixed", "all")),
            ("placement", self.placement, get_args(Placement)),
        ):
            if value not in allowed:
                raise InvalidParameter(f"{name}={value!r}: must be one of {', '.join(allowed)}.")
        if self.delta is None and clients == 1:
            raise InvalidParameter("clients=1: the default delta n^-1.1 would be 1. Give --delta.")
        object.__setattr__(self, "delta", clients**-1.1 if self.delta is None else self.delta)
        require.open_probability(delta=self.delta)
        self._check_shares()
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency or self._default_adjacency()))
        least = max(fixed_point.least_scale(self.padded), math.ceil(2 * _GOOD_SHARE * math.sqrt(self.uploads)))
        object.__setattr__(self, "scale", require.positive(scale=least if self.scale is None else self.scale))
        if float(self.scale or 0) > 2**53:
            raise InvalidParameter(f"scale={self.scale}: must be at most 2^53, the whole numbers of a double.")
        self.round(1.0)  # refuses what has no account

    def _check_shares(self) -> None:
        if not 0 <= require.real("a fraction in [0, 1)", dropout=self.dropout) < 1:
            raise InvalidParameter(f"dropout={self.dropout}: must be a fraction in [0, 1).")
        if self.placement == "server" and self.dropout:
            raise InvalidParameter(
                f"dropout={self.dropout} with placement='server': noise added by the server does not drop out. Use "
                "placement 'clients', or dropout 0."
            )
        if self.slots is not None and not self.filled:
            raise InvalidParameter(
                f"slots={self.slots} with sampling={self.sampling!r}, placement={self.placement!r}: slots are for "
                "noise from the clients, or a secure sum, under Poisson sampling. Remove them."
            )
        if self.slots is not None and require.count(slots=self.slots) > self.clients:
            raise InvalidParameter(f"slots={self.slots}: every upload needs a client, so at most {self.clients}.")

    def _default_adjacency(self) -> Adjacency:
        if self.sampling == "fixed":
            return Adjacency.REPLACE_ONE
        return Adjacency.ZERO_OUT if self.placement == "clients" else Adjacency.ADD_REMOVE

    @property
    def sampler(self) -> Sampling:
        if self.sampling == "fixed":
            return FixedSizeSampling(cohort=self.cohort, clients=self.clients)
        if self.sampling == "all":
            return FullParticipation()
        return PoissonSampling(probability=self.cohort / self.clients)

    @property
    def padded(self) -> int:
        """Integers that a client sends."""
        return fixed_point.padded_dimension(self.dimension, rotate=self.rotate)

    @property
    def filled(self) -> bool:
        """Whether sums hold `slots` uploads however many clients were drawn."""
        return self.sampling == "poisson" and (self.placement == "clients" or self.secure)

    @property
    def _slots(self) -> tuple[int, float]:
        """Uploads of a round, and the probability that more clients are drawn."""
        if self.sampling != "poisson":
            return (self.clients if self.sampling == "all" else self.cohort), 0.0
        return default_slots(
            self.cohort, self.clients, delta=float(self.delta or 0), adjacency=self.adjacency, slots=self.slots
        )

    @property
    def uploads(self) -> int:
        """Integer vectors in a round's sum: exactly, or (not `filled`, under Poisson sampling) hardly ever more."""
        return self._slots[0]

    @property
    def shares(self) -> int:
        """Noise shares that are accounted: those that arrive at the least."""
        return 1 if self.placement == "server" else self.uploads - math.floor(self.dropout * self.uploads)

    @property
    def l2_bound(self) -> float:
        """L2 norm of an upload without its noise, in steps."""
        return fixed_point.rounded_l2(float(self.scale or 0), self.padded)

    @property
    def noise_kept(self) -> float:
        """Fraction of the noise variance asked for that is accounted: all, as shares are sized for the dropout."""
        return 1.0

    def noise(self, noise_multiplier: float) -> DiscreteGaussian | Skellam:
        """One round without its sampling: its `share_variance` is a whole number, for exact samplers."""
        assert self.adjacency is not None
        wanted = (require.noise_multiplier(noise_multiplier) * float(self.scale or 0)) ** 2 / self.shares
        law = DiscreteGaussian if self.mechanism == "discrete-gaussian" else Skellam
        return law(
            dimension=self.padded,
            l2_bound=self.l2_bound,
            share_variance=float(math.ceil(wanted * (1 - 1e-12))),
            shares=self.shares,
            adjacency=self.adjacency,
            overflow=self._slots[1] if self.filled else 0.0,
        )

    def round(self, noise_multiplier: float) -> SingleRelease:
        """The mechanism of one round: what its ledger line states."""
        return subsample(self.noise(noise_multiplier), self.sampler)

    def run(self, noise_multiplier: float, rounds: int) -> Composed:
        """The mechanism of all rounds, and of what was released before."""
        return repeated(self.round(noise_multiplier), rounds, before=self.before)

    def bits(self, noise_multiplier: float) -> int:
        """Bits of the modulus: it wraps in a round with at most `wrap_probability`, all shares present."""
        noise = self.noise(noise_multiplier)
        return fixed_point.sum_bits(
            law=self.mechanism,
            uploads=self.uploads,
            dimension=self.padded,
            scaled_clip=float(self.scale or 0),
            noise_variance=noise.share_variance * (1 if self.placement == "server" else self.uploads),
            rotate=self.rotate,
            wrap_probability=self.wrap_probability,
        )

    def details(self, noise_multiplier: float) -> Mapping[str, Any]:
        """What a budget's JSON has besides."""
        return {
            "dimension": self.dimension,
            "scale": self.scale,
            "shares": self.shares,
            "l2_bound": self.l2_bound,
            "bits_per_coordinate": self.bits(noise_multiplier),
        }

    def notes(self, noise_multiplier: float, rounds: int) -> tuple[str, ...]:
        """What a reader of the epsilon should know."""
        noise, scale = self.noise(noise_multiplier), float(self.scale or 0)
        padding = f", d = {self.dimension:,} padded" if self.padded != self.dimension else ""
        lines = [
            f"{self.bits(noise_multiplier)} bits a coordinate for sums of {self.uploads:,} uploads of {self.padded:,} "
            f"integers{padding}; a round wraps around with probability at most {upwards(self.wrap_probability)}, which "
            "costs accuracy and is no part of epsilon",
            f"{scale:g} steps per clip norm: rounding lengthens the bound by {self.l2_bound / scale - 1:.2%}",
        ]
        if self.placement == "clients":
            sized = "" if self.shares == self.uploads else f", enough with {self.shares:,} of {self.uploads:,} present"
            lines.append(f"each upload carries a noise share of variance {int(noise.share_variance):,}{sized}")
        if noise.overflow:
            sent = "noise alone" if self.placement == "clients" else "zeros"
            charged = overflow(self.run(noise_multiplier, rounds))
            lines.append(
                f"clients that are not drawn send {sent} until {self.uploads:,} uploads are together; more are drawn "
                f"with probability {upwards(noise.overflow)} a round: {upwards(charged)} of delta is charged for that"
            )
        if isinstance(noise, DiscreteGaussian):
            tau = shares_distortion(noise.share_variance, noise.shares)
            near = continuous(self.run(noise_multiplier, rounds)).closeness
            lines.append(
                f"tau {_size(tau)}: a coordinate's sum of shares is within e^±tau of a discrete Gaussian; the whole "
                f"run is within e^±{upwards(near)} of one with continuous noise"
            )
        return tuple(lines)


def _size(tau: float) -> str:
    return f"= {upwards(tau)}" if tau > 1e-300 else "below 1e-300"
