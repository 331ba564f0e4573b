"""Budgets of coin uploads: masks under secure aggregation, or seen one by one. The privacy is in the coins (and in
`noise_std`), so there is no noise multiplier to solve for: epsilon from rounds, or rounds from epsilon."""

from dataclasses import dataclass
from typing import Any

from accounting import accountant as accountants
from accounting import calibrate, require
from accounting.adjacency import Adjacency
from accounting.budget import Budget
from accounting.coins import BernoulliAggregate, BernoulliChannel, slots_for
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import (
    Composed,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
    SingleRelease,
    subsample,
)

# The share of delta that a Poisson cohort too large for its slots may cost in one round.
_OVERFLOW_SHARE = 1e-5


@dataclass(frozen=True, kw_only=True)
class CoinPlan:
    """Rounds of coin uploads as the accountant sees them.

    mechanism "bernoulli-aggregate": the server sees sums of exactly K coins; K is the cohort under fixed and all, and
    `slots` under poisson (default: exceeded with probability 1e-5 delta a round), where the server pads with coins of
    the public probabilities. "bernoulli-channel": every upload is seen by itself, so sampling hides nothing and
    `rounds` counts the uploads of one client.
    `edge` is c: probabilities lie in [c, 1-c]. `clip_norm` and `linf_clip` bound a client's move from the public
    probabilities; the sensitivity is that (zero-out) or twice that (replace-one).
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
        if self.mechanism == "bernoulli-aggregate" and self.noise_std:
            raise InvalidParameter(
                f"noise_std={self.noise_std} with mechanism='bernoulli-aggregate': its account is of coins alone. Use "
                "0 (noise would only add privacy), or 'bernoulli-channel'."
            )
        default = Adjacency.REPLACE_ONE if self.sampling == "fixed" else Adjacency.ZERO_OUT
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency or default))
        object.__setattr__(self, "delta", clients**-1.1 if self.delta is None else self.delta)
        require.open_probability(delta=self.delta)
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
            return BernoulliAggregate(**common, cohort=self.clients if self.sampling == "all" else self.cohort)
        allowed = _OVERFLOW_SHARE * float(self.delta or 0)
        slots, overflow = slots_for(self.cohort, self.clients, allowed=allowed, slots=self.slots)
        return BernoulliAggregate(**common, cohort=slots, overflow=overflow)

    def round(self) -> SingleRelease:
        """The mechanism of one round."""
        coins = self.coins()
        return coins if isinstance(coins, BernoulliChannel) else subsample(coins, self.sampler)

    def run(self, rounds: int) -> Composed:
        """The mechanism of all rounds."""
        return Composed(parts=((self.round(), require.count(rounds=rounds)),))


def epsilon(plan: CoinPlan, *, rounds: int) -> Budget:
    """What `rounds` rounds cost: an upper bound (Renyi; the coins' own bounds, amplified by the plan's sampling)."""
    stated = accountants.guarantee(plan.run(rounds), delta=float(plan.delta or 0))
    coins = plan.coins()
    notes = stated.notes
    if isinstance(coins, BernoulliAggregate) and plan.sampling == "poisson":
        notes += (f"padded to {coins.cohort} slots; more are drawn with probability {coins.overflow:.2g} a round",)
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


def rounds(plan: CoinPlan, *, epsilon_target: float) -> Budget:
    """The largest number of rounds within the target."""
    target = require.positive(epsilon=epsilon_target)

    def cost(count: int) -> float:
        return accountants.epsilon(plan.run(count), delta=float(plan.delta or 0))

    count = calibrate.largest_count(cost, target, name="rounds")
    if count == 0:
        raise CalibrationError(
            f"epsilon={target}: not even one round fits (it costs {cost(1):.4g}). Lower the clip or raise the cohort."
        )
    return epsilon(plan, rounds=count)
