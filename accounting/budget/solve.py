"""Budget before training: epsilon, noise multiplier or rounds, whichever is missing, for a plan of sampled rounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accounting import require
from accounting.budget import calibrate
from accounting.budget.integer_plan import IntegerPlan
from accounting.caveats import caveats
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.compose.rdp import Conversion
from accounting.compose.second_opinion import SecondOpinion, second_opinion
from accounting.errors import AccountingError, CalibrationError, InvalidParameter
from accounting.exceeded import no_round_fits
from accounting.mechanisms import (
    Composed,
    FixedSizeSampling,
    FullParticipation,
    Gaussian,
    PoissonSampling,
    Sampling,
    repeated,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency

SAMPLINGS = ("poisson", "fixed", "all")
_DEFAULT_ADJACENCY = {
    "poisson": Adjacency.ADD_REMOVE,
    "fixed": Adjacency.REPLACE_ONE,
    "all": Adjacency.ADD_REMOVE,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Rounds of a federated run as the accountant sees them.

    `delta` defaults to clients^-1.1; `adjacency` to add-remove for poisson and all, replace-one for fixed; zero-out for
    all with noise in shares of the clients, where a client more would be a share more.
    `dropout` is the fraction of noise shares that may be missing where the clients add the noise in shares
    (mechanism distributed-gaussian); the account is that of the worst case.
    `before` is what was released on the same clients already: every epsilon is then of that and the plan together.
    """

    clients: int
    cohort: int
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    delta: float | None = None
    mechanism: str = "gaussian"
    dropout: float = 0.0
    before: Composed | None = None

    def __post_init__(self) -> None:
        require.count(clients=self.clients)
        require.count(cohort=self.cohort)
        if self.cohort > self.clients:
            raise InvalidParameter(
                f"cohort={self.cohort} of clients={self.clients}: must be at most the number of clients."
            )
        if self.sampling not in SAMPLINGS:
            raise InvalidParameter(f"sampling={self.sampling!r}: must be one of {', '.join(SAMPLINGS)}.")
        if self.delta is None and self.clients == 1:
            raise InvalidParameter("clients=1: the default delta n^-1.1 would be 1. Give --delta.")
        in_shares = self.mechanism == "distributed-gaussian"
        default = Adjacency.ZERO_OUT if in_shares and self.sampling == "all" else _DEFAULT_ADJACENCY[self.sampling]
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency or default))
        object.__setattr__(self, "delta", self.clients**-1.1 if self.delta is None else self.delta)
        require.open_probability(delta=self.delta)
        if self.mechanism not in ("gaussian", "distributed-gaussian"):
            raise InvalidParameter(
                f"mechanism={self.mechanism!r}: must be 'gaussian' or 'distributed-gaussian'. Integer noise has a plan "
                "of its own, IntegerPlan."
            )
        if not 0 <= require.real("a fraction in [0, 1)", dropout=self.dropout) < 1:
            raise InvalidParameter(f"dropout={self.dropout}: must be a fraction in [0, 1).")
        if self.dropout and self.mechanism == "gaussian":
            raise InvalidParameter(
                f"dropout={self.dropout} with mechanism='gaussian': centrally added noise does not drop out. "
                "Use mechanism 'distributed-gaussian' where the clients add noise shares."
            )
        if self.mechanism == "distributed-gaussian" and self.sampling == "poisson":
            raise InvalidParameter(
                "mechanism='distributed-gaussian' with sampling='poisson': the noise of the sum would depend on the "
                "secret cohort size. Use sampling 'fixed' or 'all', or let the server add the noise."
            )
        if in_shares and self.adjacency is Adjacency.ADD_REMOVE:
            raise InvalidParameter(
                "mechanism='distributed-gaussian' with adjacency='add-remove': a client more or less is a share of "
                "noise more or less, which no account covers. Use 'zero-out' or 'replace-one'."
            )
        self.round(1.0)  # refuses a combination of sampling and adjacency that has no account

    @property
    def sampler(self) -> Sampling:
        if self.sampling == "fixed":
            return FixedSizeSampling(cohort=self.cohort, clients=self.clients)
        if self.sampling == "all":
            return FullParticipation()
        return PoissonSampling(probability=self.cohort / self.clients)

    @property
    def noise_kept(self) -> float:
        """Fraction of the noise variance asked for that is accounted."""
        return 1 - self.dropout

    def round(self, noise_multiplier: float) -> Any:
        """The mechanism of one round."""
        assert self.adjacency is not None
        z = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(self.noise_kept)
        return subsample(Gaussian(noise_multiplier=z, adjacency=self.adjacency), self.sampler)

    def run(self, noise_multiplier: float, rounds: int) -> Composed:
        """The mechanism of all rounds, and of what was released before."""
        return repeated(self.round(noise_multiplier), rounds, before=self.before)

    def details(self, noise_multiplier: float) -> Mapping[str, Any]:
        """What a budget's JSON has besides."""
        return {}

    def notes(self, noise_multiplier: float, rounds: int) -> tuple[str, ...]:
        """What a reader of the epsilon should know."""
        return (f"at most {self.dropout:.0%} of the noise shares missing",) if self.dropout else ()


NoisePlan = Plan | IntegerPlan
"""What has a noise multiplier to solve for."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One line of a budget: the plan, the three numbers, and what they guarantee. `to_dict` is the JSON contract."""

    plan: Any
    noise_multiplier: float | None
    rounds: int
    epsilon: float
    accountant: str
    conversion: str | None = None
    order: float | None = None
    lower_bound: float | None = None
    valid: bool = True
    notes: tuple[str, ...] = ()
    sensitivity_in_clips: float | None = None
    second_opinion: SecondOpinion | None = None

    @property
    def mechanism(self) -> Composed:
        """All that the epsilon is about."""
        noise = () if self.noise_multiplier is None else (self.noise_multiplier,)
        run: Composed = self.plan.run(*noise, self.rounds)
        return run

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of one budget; infinities become null."""
        plan = self.plan
        assert plan.adjacency is not None
        sensitivity = self.sensitivity_in_clips or plan.adjacency.sensitivity_in_clips
        record = {
            "epsilon": self.epsilon,
            "delta": plan.delta,
            "noise_multiplier": self.noise_multiplier,
            "rounds": self.rounds,
            "clients": plan.clients,
            "cohort": plan.clients if plan.sampling == "all" else plan.cohort,
            "sampling": plan.sampling,
            "sampling_probability": plan.sampler.probability,
            "adjacency": str(plan.adjacency),
            "unit": "client",
            "sensitivity_in_clips": sensitivity,
            "mechanism": plan.mechanism,
            "accountant": self.accountant,
            "conversion": self.conversion,
            "order": self.order,
            "lower_bound": self.lower_bound,
            "valid": self.valid,
            "notes": list(self.notes),
            **self._details(),
        }
        if self.second_opinion is not None:
            record["second_opinion"] = self.second_opinion.epsilon
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}

    def _details(self) -> Mapping[str, Any]:
        """What a plan of integer noise or of coin uploads has besides."""
        if isinstance(self.plan, NoisePlan):
            return self.plan.details(float(self.noise_multiplier or 0))
        names = ("dimension", "edge", "clip_norm", "linf_clip", "noise_std")
        return {name: getattr(self.plan, name) for name in names}


def epsilon(
    plan: NoisePlan,
    *,
    noise_multiplier: float,
    rounds: int,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    with_lower_bound: bool = True,
) -> Budget:
    """What `rounds` rounds at this noise multiplier cost: an upper bound for the plan's sampler and adjacency."""
    stated = accountants.guarantee(
        plan.run(noise_multiplier, rounds),
        delta=float(plan.delta or 0),
        accountant=accountant,
        conversion=conversion,
        units=plan.clients,
        with_lower_bound=with_lower_bound,
    )
    return Budget(
        plan=plan,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        epsilon=stated.epsilon,
        accountant=stated.method,
        conversion=stated.conversion,
        order=stated.order,
        lower_bound=stated.lower_bound,
        valid=stated.valid,
        notes=stated.notes + plan.notes(noise_multiplier, rounds),
    )


def noise_multiplier(
    plan: NoisePlan,
    *,
    epsilon_target: float,
    rounds: int,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    with_lower_bound: bool = True,
) -> Budget:
    """The smallest noise multiplier whose epsilon stays within the target (at most 1e-6 relative above it)."""
    require.positive(epsilon=epsilon_target)
    require.count(rounds=rounds)

    def cost(z: float) -> float:
        return _epsilon_only(plan, z, rounds, accountant, conversion)

    z = calibrate.smallest(cost, epsilon_target, name="noise multiplier", start=_guess(plan, epsilon_target, rounds))
    return epsilon(
        plan,
        noise_multiplier=z,
        rounds=rounds,
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=with_lower_bound,
    )


def rounds(
    plan: NoisePlan,
    *,
    epsilon_target: float,
    noise_multiplier: float,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    with_lower_bound: bool = True,
) -> Budget:
    """The largest number of rounds whose epsilon stays within the target."""
    require.positive(epsilon=epsilon_target)

    def cost(count: int) -> float:
        return _epsilon_only(plan, noise_multiplier, count, accountant, conversion)

    count = calibrate.largest_count(cost, epsilon_target, name="rounds")
    if count == 0:
        raise CalibrationError(
            no_round_fits(
                f"epsilon={epsilon_target} with noise_multiplier={noise_multiplier}",
                allowed=epsilon_target,
                after=cost(1),
                spent=spent_before(plan.before, delta=float(plan.delta or 0)),
                delta=float(plan.delta or 0),
                advice="Raise the noise multiplier or the target.",
            )
        )
    return epsilon(
        plan,
        noise_multiplier=noise_multiplier,
        rounds=count,
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=with_lower_bound,
    )


def with_second_opinion(rows: Sequence[Budget]) -> list[Budget]:
    """The same, each with what dp-accounting states for its mechanism (`compose.second_opinion`), in its notes besides:
    where that is no number, and of rows that have a lower bound. Direction of error: upper bounds; the notes say which
    contradict a lower bound. Loads dp-accounting."""
    known: dict[tuple[Composed, float], SecondOpinion] = {}
    found = []
    for row in rows:
        asked = row.mechanism, float(row.plan.delta)
        if asked not in known:
            known[asked] = second_opinion(asked[0], delta=asked[1])
        opinion = known[asked]
        said = row.lower_bound is not None or opinion.epsilon is None
        remarks = opinion.remarks(epsilon=row.epsilon, lower_bound=row.lower_bound) if said else ()
        found.append(replace(row, second_opinion=opinion, notes=(*row.notes, *remarks)))
    return found


def spent_before(before: Composed | None, *, delta: float) -> float | None:
    """Epsilon of what was released already; None where nothing was."""
    return None if before is None else accountants.epsilon(before, delta=delta)


def _epsilon_only(plan: NoisePlan, z: float, count: int, accountant: Accountant, conversion: Conversion) -> float:
    return accountants.guarantee(
        plan.run(z, count),
        delta=float(plan.delta or 0),
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=False,
    ).epsilon


def _guess(plan: NoisePlan, epsilon_target: float, rounds: int) -> float:
    """A noise multiplier near the answer, from the central limit: mu = q sqrt(T (e^(s^2/z^2) - 1)). Speed only."""
    delta, sampler = float(plan.delta or 0), plan.sampler
    wanted = 1 / _std_for(epsilon_target, delta)
    assert plan.adjacency is not None
    shift = 2.0 if plan.sampling == "fixed" else plan.adjacency.sensitivity_in_clips
    per_round = math.log1p((wanted / sampler.probability) ** 2 / rounds)
    return min(max(shift / math.sqrt(per_round) / math.sqrt(plan.noise_kept), 1e-3), 1e6)


def _std_for(epsilon_target: float, delta: float) -> float:
    from accounting.gaussian import noise_std

    return noise_std(epsilon_target, delta, l2_sensitivity=1.0)


def compare(plan: Plan, *, noise_multiplier: float, rounds: int) -> list[Budget]:
    """A row for every accountant and reading that applies to these numbers, each naming the sampler it is for.

    The plan's own sampler comes first. Rows of the Fed-SMP paper keep its sensitivity C beside the 2C that its
    sampling needs; a row that is not a guarantee says so in `valid` and `notes`. Noise in shares that may be missing
    is counted as noise added centrally, so much less: each row's noise multiplier is what is left; rows in whose
    setting shares have no account are no guarantees.
    """
    kept = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(plan.noise_kept)
    missing = plan.notes(noise_multiplier, rounds)
    in_shares = plan.mechanism == "distributed-gaussian"
    order = sorted(SAMPLINGS, key=lambda name: (name != plan.sampling, SAMPLINGS.index(name)))
    rows: list[Budget] = []
    for sampling in order:
        for adjacency in Adjacency:
            if sampling == "fixed" and adjacency is Adjacency.ADD_REMOVE:
                continue
            if adjacency is Adjacency.ZERO_OUT and sampling != "fixed" and not (in_shares and sampling == "all"):
                continue  # the same numbers as add-remove there
            other = replace(plan, sampling=sampling, adjacency=adjacency, mechanism="gaussian", dropout=0.0)
            against = _no_account_of_shares(plan, sampling, adjacency)
            rows += [
                replace(row, valid=row.valid and not against, notes=(*row.notes, *missing, *against))
                for row in _rows(other, kept, rounds)
            ]
    return rows


def _no_account_of_shares(plan: Plan, sampling: str, adjacency: Adjacency) -> tuple[str, ...]:
    """Why the plan's noise has no account in this setting, as `Plan` says it; nothing if it has one."""
    try:
        replace(plan, sampling=sampling, adjacency=adjacency)
    except AccountingError as refusal:
        return (f"not a guarantee: {refusal}",)
    return ()


def _rows(plan: Plan, z: float, count: int) -> list[Budget]:
    rows = []
    if plan.sampling != "all" and not (plan.sampling == "poisson" and plan.adjacency is Adjacency.REPLACE_ONE):
        for conversion in ("classical", "improved"):
            rows.append(
                epsilon(
                    plan,
                    noise_multiplier=z,
                    rounds=count,
                    accountant="rdp",
                    conversion=conversion,
                    with_lower_bound=False,
                )
            )
    rows.append(epsilon(plan, noise_multiplier=z, rounds=count, accountant="pld" if plan.sampling != "all" else "best"))
    if plan.sampling == "fixed" and plan.adjacency is Adjacency.REPLACE_ONE:
        rows += _paper_rows(plan, z, count)
    return rows


def _paper_rows(plan: Plan, z: float, count: int) -> list[Budget]:
    """The Fed-SMP paper's readings, with its sensitivity C and with the 2C that its sampling needs."""
    sampler, delta = plan.sampler, float(plan.delta or 0)
    assert isinstance(sampler, FixedSizeSampling)
    rows = []
    for sensitivity in (1.0, 2.0):
        readings: list[tuple[str, str | None, Any]] = [
            (
                "fed-smp-theorem",
                None,
                theorem_1(z, count, sampler, delta=delta, sensitivity_in_clips=sensitivity),
            )
        ]
        for conversion in ("classical", "improved"):
            reading = lemma_3(z, count, sampler, delta=delta, sensitivity_in_clips=sensitivity, conversion=conversion)
            readings.append(("fed-smp-lemma", conversion, reading))
        for accountant, used, reading in readings:
            violated = list(reading.violated)
            if sensitivity == 1.0:
                violated.insert(0, "the paper inserts sensitivity C where fixed-size sampling needs 2C")
            rows.append(
                Budget(
                    plan=plan,
                    noise_multiplier=z,
                    rounds=count,
                    epsilon=reading.epsilon,
                    accountant=accountant,
                    conversion=used,
                    order=reading.order,
                    valid=not violated,
                    notes=(
                        *(f"not a guarantee: {reason}" for reason in violated),
                        *caveats(epsilon=reading.epsilon, delta=delta, units=plan.clients),
                    ),
                    sensitivity_in_clips=sensitivity,
                )
            )
    return rows
