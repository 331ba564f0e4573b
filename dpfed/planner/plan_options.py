"""Plan that the options of `dpfed budget` describe, and the one of its three numbers that is solved for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from accounting import budget
from accounting.budget import Budget, Placement, Plan
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from accounting.integers.fixed_point import NoiseLaw
from accounting.mechanisms import Composed
from accounting.mechanisms.adjacency import Adjacency
from dpfed.errors import ConfigError

Mechanism = Literal[
    "gaussian", "distributed-gaussian", "discrete-gaussian", "skellam", "bernoulli-channel", "bernoulli-aggregate"
]

Sampling = Literal["poisson", "fixed", "all", "balls-and-bins", "allocation", "min-separation", "cyclic"]


Solved = Literal["epsilon", "noise_multiplier", "rounds"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the command line that describe a plan; None and 0 where not given."""

    clients: int
    cohort: int | None
    sampling: str
    noise: str
    bands: int | None
    buffers: int | None
    factorisation: str
    server_momentum: float
    server_decay: float
    participations: int | None
    separation: int | None
    rounds: int | None
    adjacency: str | None
    delta: float | None
    mechanism: Mechanism
    dropout: float
    dimension: int | None
    scale: float | None
    rotate: bool | None
    placement: Placement | None
    edge: float | None
    clip_norm: float | None
    l2_sensitivity: float | None
    linf_clip: float | None
    noise_std: float
    clip_metric: str | None
    others: str | None
    slots: int | None
    before: Composed | None = None
    noise_schedule: tuple[float, ...] | None = None

    def plan(self) -> Plan:
        """ConfigError for an option that has no meaning for this mechanism, or that it needs."""
        if self.noise != "independent" and self.sampling == "poisson" and self.separation is not None:
            public = replace(self, sampling="cyclic", cohort=self.cohort or max(self.clients // self.separation, 1))
            return public.plan()
        if self.cohort is None and self.participations is not None and self.rounds is not None:
            return replace(self, cohort=self._cohort_of(self.participations, self.rounds)).plan()
        if self.cohort is None and self.sampling != "all":
            raise ConfigError("--cohort is missing: how many clients take part in a round.")
        if self.mechanism in ("bernoulli-channel", "bernoulli-aggregate"):
            return self._coins()
        if self.mechanism in get_args(NoiseLaw):
            return self._integers()
        refuse(
            f"--mechanism {self.mechanism}: for coins (bernoulli-channel, bernoulli-aggregate) or integer noise "
            "(discrete-gaussian, skellam). With Gaussian noise the sensitivity follows from the adjacency, in units of "
            "the clip norm",
            **self._coin_options, **self._integer_options, dimension=self.dimension, slots=self.slots,
        )  # fmt: skip
        return self._plan(dropout=self.dropout)

    def _plan(self, **more: Any) -> Plan:
        return Plan(
            clients=self.clients,
            cohort=self.clients if self.sampling == "all" or self.cohort is None else self.cohort,
            mechanism=self.mechanism,
            sampling=self.sampling,
            delta=self.delta,
            before=self.before,
            noise=self.noise,
            bands=self.bands,
            buffers=(self.buffers or 3) if self.noise == "blt" else self.buffers,
            factorisation=self.factorisation,
            server_momentum=self.server_momentum,
            server_decay=self.server_decay,
            participations=self.participations,
            separation=self.separation,
            noise_schedule=self.noise_schedule,
            **{"adjacency": Adjacency(self.adjacency) if self.adjacency else None, **more},
        )

    def _cohort_of(self, participations: int, rounds: int) -> int:
        """Return the cohort, in whole clients, that follows from participations and rounds."""
        if participations < 1 or rounds % participations or self.clients * participations < rounds:
            raise ConfigError(
                f"--participations {participations} in --rounds {rounds} of --clients {self.clients}: rounds must be a "
                "multiple of it, and every round needs a client. Change one of them, or give --cohort."
            )
        return round(self.clients * participations / rounds)

    @property
    def _integer_options(self) -> dict[str, object]:
        return {"scale": self.scale, "rotate": self.rotate, "placement": self.placement}

    @property
    def _coin_options(self) -> dict[str, object]:
        return {
            "edge": self.edge,
            "clip_norm": self.clip_norm,
            "l2_sensitivity": self.l2_sensitivity,
            "linf_clip": self.linf_clip,
            "noise_std": self.noise_std or None,
            "clip_metric": self.clip_metric,
            "others": self.others,
        }

    def _integers(self) -> Plan:
        refuse(f"--mechanism {self.mechanism}: for coins", **self._coin_options)
        if self.dimension is None:
            raise ConfigError(f"--mechanism {self.mechanism} needs --dimension: rounding costs depend on it.")
        return self._plan(
            dimension=self.dimension,
            scale=self.scale,
            rotate=self.rotate is not False,
            placement=self.placement or "clients",
            dropout=self.dropout,
            slots=self.slots,
        )

    def _coins(self) -> Plan:
        refuse(f"--mechanism {self.mechanism}: for integer noise", **self._integer_options)
        refuse(f"--mechanism {self.mechanism}: for noise in shares of the clients", dropout=self.dropout or None)
        if self.dimension is None or self.edge is None:
            raise ConfigError(f"--mechanism {self.mechanism} needs --dimension and --edge.")
        if self.clip_norm is not None and self.l2_sensitivity is not None:
            raise ConfigError("--clip-norm and --l2-sensitivity: give one; the sensitivity follows from the clip norm.")
        default = Adjacency.REPLACE_ONE if self.sampling == "fixed" else Adjacency.ZERO_OUT
        chosen = Adjacency(self.adjacency) if self.adjacency else default
        clip_norm = self.clip_norm
        if self.l2_sensitivity is not None:
            clip_norm = self.l2_sensitivity / chosen.sensitivity_in_clips
        return self._plan(
            dimension=self.dimension,
            edge=self.edge,
            adjacency=chosen,
            clip_norm=clip_norm,
            linf_clip=self.linf_clip,
            noise_std=self.noise_std,
            clip_metric=self.clip_metric or "euclidean",
            others=self.others or "anywhere",
            slots=self.slots,
        )


def after(options: PlanOptions, before: Composed | None) -> PlanOptions:
    """Return the options after earlier releases, with their adjacency unless another is given."""
    adjacency = str(before.adjacency) if before is not None and options.adjacency is None else options.adjacency
    return replace(options, before=before, adjacency=adjacency)


def wanted(plan: Plan, *, rounds: int | None, noise_multiplier: float | None, epsilon: float | None) -> Solved:
    """Return the one of the three numbers that follows from the others; with coins, from rounds or epsilon.

    ConfigError unless exactly one is left to solve for.
    """
    given = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "rounds": rounds}
    if not plan.has_noise_multiplier:
        refuse("coins: it is for Gaussian noise", noise_multiplier=noise_multiplier)
        if (rounds is None) == (epsilon is None):
            raise ConfigError(
                "coins: give --rounds to get epsilon, or --epsilon to get the rounds; exactly one of them."
            )
        return "rounds" if rounds is None else "epsilon"
    lacking = [name for name in get_args(Solved) if given[name] is None]
    if len(lacking) != 1:
        named = ", ".join(flag(name) for name in reversed(given) if given[name] is not None)
        raise ConfigError(
            f"given {named or 'none of them'}: give exactly two of --rounds, --noise-multiplier and --epsilon; the "
            "third is what you get."
        )
    solved: Solved = lacking[0]
    return solved


def solve(
    plan: Plan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
    precise: bool = False,
) -> Budget:
    """Return the budget with the third of the three numbers. ConfigError unless exactly one of them lacks."""
    wanted(plan, rounds=rounds, noise_multiplier=noise_multiplier, epsilon=epsilon)
    if not plan.has_noise_multiplier and accountant not in ("best", "rdp", "exact"):
        raise ConfigError(f"--accountant {accountant} with coins: use best, rdp, or exact (few coordinates).")
    return budget.solve(
        plan,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        accountant=accountant,
        conversion=conversion,
        precise=precise,
    )


def refuse(why: str, **given: object) -> None:
    """ConfigError naming the options that were given and must not be."""
    named = [flag(name) for name, value in given.items() if value is not None]
    if named:
        raise ConfigError(f"{', '.join(named)} with {why}. Remove it.")


def flag(name: str) -> str:
    """Return the option of the command line for this name."""
    return f"--{name.replace('_', '-')}"
