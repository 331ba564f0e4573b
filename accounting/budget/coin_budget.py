"""Budgets of coin uploads: masks under secure aggregation, or seen one by one. The privacy is in the coins (and in
`noise_std`), so there is no noise multiplier to solve for: epsilon from rounds, or rounds from epsilon."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from accounting import require
from accounting.bernoulli.sums import LARGEST_COHORT
from accounting.budget import calibrate
from accounting.budget.solve import Budget, spent_before
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.exceeded import no_round_fits
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
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.slots import default_slots
from accounting.rounding import upwards

_CLIP_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class CoinPlan:
    """Rounds of coin uploads as the accountant sees them.

    mechanism "bernoulli-aggregate": the server sees sums of exactly K coins; K is the cohort under fixed and all, and
    `slots` under poisson (default: exceeded with probability 1e-5 delta a round), where the server pads with coins of
    the public probabilities. "bernoulli-channel": every upload is seen by itself, so sampling hides nothing and
    `rounds` counts the uploads of one client.
    `edge` is c: probabilities lie in [c, 1-c]. `clip_norm` and `linf_clip` bound a client's move from the public
    probabilities; the sensitivity is that (zero-out) or twice that (replace-one). `before` is what was released on the
    same clients already: every epsilon is then of that and the plan together.
    """

    clients: int
    cohort: int
    dimension: int
    edge: float
    mechanism: str = "bernoulli-aggregate"
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    delta: float | None = None
    clip_norm: float | None = None
    linf_clip: float | None = None
    noise_std: float = 0.0
    slots: int | None = None
    before: Composed | None = None

    def __post_init__(self) -> None:
        clients, cohort = require.count(clients=self.clients), require.count(cohort=self.cohort)
        if cohort > clients:
            raise InvalidParameter(f"cohort={cohort} of clients={clients}: must be at most the number of clients.")
        if self.sampling not in ("poisson", "fixed", "all"):
            raise InvalidParameter(f"sampling={self.sampling!r}: must be poisson, fixed or all.")
        if self.mechanism == "bernoulli-channel" and self.sampling != "all":
            raise UnsupportedMechanism(
                f"mechanism='bernoulli-channel' with sampling={self.sampling!r}: the server sees who uploads, so "
                "sampling hides nothing. Use sampling 'all' and count a client's uploads as rounds."
            )
        default = Adjacency.REPLACE_ONE if self.sampling == "fixed" else Adjacency.ZERO_OUT
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency or default))
        object.__setattr__(self, "delta", clients**-1.1 if self.delta is None else self.delta)
        require.open_probability(delta=self.delta)
        for name in ("clip_norm", "linf_clip"):
            if getattr(self, name) is not None:
                require.clip_norm(**{name: getattr(self, name)})
        self.round()  # refuses what has no account

    @property
    def sampler(self) -> Sampling:
        if self.sampling == "fixed":
            return FixedSizeSampling(cohort=self.cohort, clients=self.clients)
        if self.sampling == "all":
            return FullParticipation()
        return PoissonSampling(probability=self.cohort / self.clients)

    def coins(self) -> BernoulliAggregate | BernoulliChannel:
        """One round without its sampling."""
        assert self.adjacency is not None
        common: dict[str, Any] = {
            "dimension": self.dimension,
            "floor": self.edge,
            "adjacency": self.adjacency,
            "l2_clip": self.clip_norm,
            "linf_clip": self.linf_clip,
        }
        if self.mechanism == "bernoulli-channel":
            return BernoulliChannel(**common, noise_std=self.noise_std)
        if self.mechanism != "bernoulli-aggregate":
            raise InvalidParameter(
                f"mechanism={self.mechanism!r}: must be 'bernoulli-channel' or 'bernoulli-aggregate'."
            )
        if self.sampling != "poisson":
            cohort = self.clients if self.sampling == "all" else self.cohort
            return BernoulliAggregate(**common, noise_std=self.noise_std, cohort=cohort)
        slots, overflow = default_slots(
            self.cohort, self.clients, delta=float(self.delta or 0), adjacency=self.adjacency, slots=self.slots
        )
        return BernoulliAggregate(**common, noise_std=self.noise_std, cohort=slots, overflow=overflow)

    def round(self) -> SingleRelease:
        """The mechanism of one round."""
        coins = self.coins()
        return coins if isinstance(coins, BernoulliChannel) else subsample(coins, self.sampler)

    def run(self, rounds: int) -> Composed:
        """The mechanism of all rounds, and of what was released before."""
        return repeated(self.round(), rounds, before=self.before)


def epsilon(plan: CoinPlan, *, rounds: int, accountant: Accountant = "best") -> Budget:
    """What `rounds` rounds cost: an upper bound (Renyi, the coins' own bounds amplified by the plan's sampling; or, for
    few coordinates seen one by one, the exact law)."""
    stated = accountants.guarantee(
        plan.run(rounds), delta=float(plan.delta or 0), accountant=accountant, units=plan.clients
    )
    coins = plan.coins()
    notes = stated.notes
    if isinstance(coins, BernoulliAggregate) and plan.sampling == "poisson":
        charged = accountants.overflow(plan.run(rounds))
        notes += (
            f"padded to {coins.cohort} slots; more are drawn with probability {upwards(coins.overflow)} a round: "
            f"{upwards(charged)} of delta is charged for that",
        )
    if isinstance(coins, BernoulliAggregate) and coins.cohort > LARGEST_COHORT:
        notes += (f"of {coins.cohort:,} uploads in a sum {LARGEST_COHORT:,} are counted, an upper bound",)
    return Budget(
        plan=plan,
        noise_multiplier=None,
        rounds=rounds,
        epsilon=stated.epsilon,
        accountant=stated.method,
        conversion=stated.conversion,
        order=stated.order,
        lower_bound=stated.lower_bound,
        valid=stated.valid,
        notes=notes,
    )


def rounds(plan: CoinPlan, *, epsilon_target: float, accountant: Accountant = "best") -> Budget:
    """The largest number of rounds within the target."""
    target = require.positive(epsilon=epsilon_target)

    def cost(count: int) -> float:
        return accountants.epsilon(plan.run(count), delta=float(plan.delta or 0), accountant=accountant)

    count = calibrate.largest_count(cost, target, name="rounds")
    if count == 0:
        raise CalibrationError(
            no_round_fits(
                f"epsilon={target}",
                allowed=target,
                after=cost(1),
                spent=spent_before(plan.before, delta=float(plan.delta or 0)),
                delta=float(plan.delta or 0),
                advice="Lower the clip or raise the cohort.",
            )
        )
    return epsilon(plan, rounds=count, accountant=accountant)


def clip_norm(plan: CoinPlan, *, epsilon_target: float, rounds: int, accountant: Accountant = "best") -> float:
    """The largest L2 clip with which `rounds` rounds stay within the target, to 1e-3 relative and never above.

    `plan.clip_norm` is ignored; the other fields hold. Raises CalibrationError if not even a clip of 1e-9 does, or if a
    clip that cannot bind any more (the whole range in every coordinate) is still within it.
    """
    target = require.positive(epsilon=epsilon_target)
    widest = (1 - 2 * plan.edge) * math.sqrt(plan.dimension)

    @cache
    def cost(inverse: float) -> float:
        run = replace(plan, clip_norm=min(1 / inverse, widest)).run(rounds)
        return accountants.epsilon(run, delta=float(plan.delta or 0), accountant=accountant)

    first = max(1.0, 1 / widest)
    if cost(first) <= target and cost(1 / widest) <= target:
        raise CalibrationError(
            f"epsilon={target}: met without any L2 clip. Give linf_clip alone, or a smaller epsilon."
        )
    # The cost grows with a power of the clip between 1 and 2.
    guess = first * min(max(cost(first) / target, 1e-4), 1e4) ** 0.8
    try:
        return 1 / calibrate.smallest(cost, target, name="1/clip", start=guess, tolerance=_CLIP_TOLERANCE)
    except CalibrationError:
        raise CalibrationError(
            f"epsilon={target}: even a clip of 1e-9 costs more. Raise epsilon or the cohort."
        ) from None
