"""Solver for epsilon, noise multiplier and rounds of a plan: two are given, the third is computed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from accounting import require
from accounting.budget import calibrate
from accounting.budget.advice import with_lanes
from accounting.budget.calibrate import Target, target_of
from accounting.budget.plan import Plan
from accounting.caveats import few_clients_note, no_round_fits_message
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from accounting.compose.readings import READING_KEYS, Readings, readings
from accounting.compose.second_opinion import SecondOpinion, require_library, second_opinion
from accounting.errors import CalibrationError, InvalidParameter
from accounting.gaussian import noise_std
from accounting.mechanisms import Composed, Schedule
from accounting.mechanisms.samplings.independent import shift_in_clips
from accounting.rounding import html_table, upwards


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Privacy budget of a plan: epsilon, noise multiplier, rounds and the guarantee. `to_dict` is the JSON contract.

    Claim: if `valid`, `mechanism` is (epsilon, plan.delta)-DP under the plan's adjacency.
    Direction of error: epsilon upwards, `lower_bound` downwards.
    Units: noise_multiplier is the noise standard deviation over the clip norm.

    >>> from accounting import Plan, budget
    >>> row = budget.solve(Plan(clients=6000, sampling="all"), noise_multiplier=20.0, rounds=10)
    >>> row.accountant, row.valid
    ('analytic-gaussian', True)
    """

    plan: Plan
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
        """The composed mechanism that this epsilon bounds."""
        return self.plan.run(self.noise_multiplier, self.rounds)

    def _repr_html_(self) -> str:
        """Return a table for notebooks; epsilon, delta and noise are rounded upwards."""
        plan = self.plan
        rows = [
            ("epsilon, at most" if self.valid else "epsilon (NOT a guarantee)", upwards(self.epsilon)),
            ("delta", upwards(plan.delta)),
            ("noise multiplier", upwards(self.noise_multiplier)),
            ("rounds", f"{self.rounds:,}"),
            ("sampling", f"{plan.sampling.name}, {plan.cohort:,} of {plan.clients:,} clients"),
            ("neighbours", str(plan.adjacency)),
            ("accountant", self.accountant),
        ]
        return html_table("Budget", rows, self.notes)

    @property
    def readings(self) -> Readings | None:
        """Membership-test and Gaussian DP readings of the best account; None if the epsilon is not a guarantee."""
        delta = self.plan.delta
        return readings(self.mechanism, delta, (self.epsilon, delta)) if self.valid else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of one budget; infinities become null."""
        plan = self.plan
        sensitivity = self.sensitivity_in_clips or plan.adjacency.sensitivity_in_clips
        record = {
            "epsilon": self.epsilon,
            "delta": plan.delta,
            "noise_multiplier": self.noise_multiplier,
            "rounds": self.rounds,
            "clients": plan.clients,
            "cohort": plan.cohort,
            "sampling": plan.sampling.name,
            "sampling_probability": plan.sampler.probability,
            "adjacency": str(plan.adjacency),
            "unit": plan.unit,
            "sensitivity_in_clips": sensitivity,
            "mechanism": plan.mechanism.name,
            "accountant": self.accountant,
            "conversion": self.conversion,
            "order": self.order,
            "lower_bound": self.lower_bound,
            "valid": self.valid,
            **(self.readings.to_dict() if self.readings else dict.fromkeys(READING_KEYS)),
            "notes": list(self.notes),
            **plan.mechanism.details(plan, self.noise_multiplier, self.rounds),
        }
        if plan.cohort_cap is not None:
            record["cohort_cap"] = plan.cohort_cap
        record |= plan.sampling.details()
        if plan.noise_schedule is not None:
            record["noise_schedule"] = list(plan.noise_schedule)
        if isinstance(plan.sampler, Schedule):
            record["participations"] = plan.sampler.most_participations(self.rounds * plan.sampling.steps)
            record["separation"] = plan.options.get("separation")
        if self.second_opinion is not None:
            record["second_opinion"] = self.second_opinion.epsilon
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


@dataclass(frozen=True, kw_only=True)
class _Solver:
    """Solver with a fixed accountant and conversion."""

    accountant: Accountant
    conversion: Conversion
    precise: bool = False

    def stated_budget(
        self, plan: Plan, noise_multiplier: float | None, rounds: int, *, with_lower_bound: bool
    ) -> Budget:
        stated = accountants.guarantee(
            plan.run(noise_multiplier, rounds),
            delta=plan.delta,
            accountant=self.accountant,
            conversion=self.conversion,
            unit=plan.unit,
            units=plan.units,
            with_lower_bound=with_lower_bound,
            precise=self.precise,
        )
        few = few_clients_note(clients=plan.clients, cohort=plan.cohort, noise_multiplier=noise_multiplier)
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
            notes=stated.notes + plan.notes(noise_multiplier, rounds) + (few if plan.unit == "client" else ()),
        )

    def epsilon(self, run: Composed, delta: float) -> float:
        """Return only the epsilon of a run, for solvers."""
        return accountants.epsilon(
            run, delta=delta, accountant=self.accountant, conversion=self.conversion, precise=self.precise
        )

    def readings(
        self, run: Callable[[Any], Composed], delta: float, target: Target, *, first: float
    ) -> tuple[Callable[[Any], float], Callable[[Any], float] | None]:
        """Return the quantity of `run(x)` that the target bounds (epsilon, advantage or true-positive rate) as a
        function of x, and a fast approximation of it; None if the exact computation is fast enough at x = `first`.
        """

        @cache
        def reading(x: float) -> float:
            return self.epsilon(run(x), delta) if target.epsilon is not None else target.reading(run(x), delta)

        @cache
        def approximation(x: float) -> float | None:
            has_quick = target.epsilon is not None and self.accountant in ("best", "adaptive")
            return accountants.quick_epsilon(run(x), delta=delta) if has_quick else None

        def quick_reading(x: float) -> float:
            found = approximation(x)
            return reading(x) if found is None else found

        return reading, None if approximation(first) is None else quick_reading

    def noise_multiplier(self, plan: Plan, target: Target, rounds: int) -> float:
        if not plan.has_noise_multiplier:
            raise InvalidParameter(
                f"mechanism={plan.mechanism.name!r}: its Bernoulli samples are the noise, so there is no noise "
                "multiplier to solve for. Give rounds or epsilon alone, or solve for the clip norm (budget.clip_norm)."
            )
        return smallest_multiplier(
            lambda z: plan.run(z, rounds),
            target=target,
            delta=plan.delta,
            solver=self,
            start=_starting_multiplier_of(plan, target.near_epsilon(plan.delta), rounds),
        )

    def rounds(self, plan: Plan, target: Target, noise_multiplier: float | None) -> int:
        if plan.noise_schedule is not None:
            raise InvalidParameter(
                "noise_schedule without rounds: the parts of the schedule are fractions of the number of rounds. Give "
                "rounds, and solve for epsilon or the noise multiplier."
            )

        def run(count: int) -> Composed:
            return plan.run(noise_multiplier, count)

        reading, quick = self.readings(run, plan.delta, target, first=1)

        def reading_within_schedule(count: int) -> float:
            return math.inf if plan.most_rounds is not None and count > plan.most_rounds else reading(count)

        limit = target.largest_reading
        if quick is None:
            count = calibrate.largest_count(reading_within_schedule, limit, name="rounds")
        else:
            count = calibrate.certified_largest_count(reading_within_schedule, quick, limit, name="rounds")
        if count == 0 and target.epsilon is None:
            raise CalibrationError(
                f"{target}: not even one round fits; after one round the {target.name} may be {upwards(reading(1))}. "
                f"{plan.mechanism.advice}"
            )
        if count == 0:
            beside = f" with noise_multiplier={noise_multiplier}" if noise_multiplier is not None else ""
            raise CalibrationError(
                no_round_fits_message(
                    f"epsilon={limit}{beside}",
                    allowed=limit,
                    after=reading(1),
                    spent=None if plan.before is None else accountants.epsilon(plan.before, delta=plan.delta),
                    delta=plan.delta,
                    advice=plan.mechanism.advice,
                )
            )
        return count


def smallest_multiplier(
    run: Callable[[float], Composed], *, target: Target, delta: float, solver: _Solver, start: float
) -> float:
    """Return the smallest noise multiplier z for which the composition of all rounds, `run(z)`, meets the target."""

    reading, quick = solver.readings(run, delta, target, first=start)
    if quick is None:
        return calibrate.smallest(reading, target.largest_reading, name="noise multiplier", start=start)
    return calibrate.certified_smallest(reading, quick, target.largest_reading, name="noise multiplier", start=start)


def multiplier_for(
    run: Callable[[float], Composed],
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    shift: float,
    probability: float,
    accountant: Accountant = "best",
) -> float:
    """Return the smallest noise multiplier for a custom run, in each round of which a client shifts the sum by at most
    `shift` clip norms.

    The search starts at the central-limit approximation of `rounds` rounds with this shift and sampling probability.
    Claim: epsilon of `run(z)` is at most `epsilon`; z is at most 1e-6 relative above the threshold.
    Source: `compose.accountant.guarantee`; start: Dong, Roth, Su 2022.
    Units: z is a noise standard deviation over the clip norm.
    Adjacency: that of `run(z)`.
    Direction of error: upwards.
    Errors: CalibrationError if no z from 1e-6 to 1e9 meets epsilon.

    >>> from accounting import Composed, Gaussian, budget
    >>> def run(z):
    ...     return Composed(parts=((Gaussian(noise_multiplier=z, adjacency="add-remove"), 10),))
    >>> round(budget.multiplier_for(run, epsilon=1.0, delta=1e-5, rounds=10, shift=1.0, probability=1.0), 3)
    11.797
    """
    solver = _Solver(accountant=accountant, conversion="improved")
    start = starting_multiplier(epsilon, delta, rounds=rounds, shift=shift, probability=probability)
    target = Target(name="epsilon", largest_reading=epsilon)
    return smallest_multiplier(run, target=target, delta=delta, solver=solver, start=start)


def solve(
    plan: Plan,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    with_lower_bound: bool = True,
    precise: bool = False,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> Budget:
    """Solve for the one of epsilon, noise multiplier and rounds that is not given, and return the complete budget.

    Claim: epsilon is an upper bound for the plan's sampler and adjacency. Noise: the smallest multiplier whose epsilon
    is within the target, at most 1e-6 relative above it. Rounds: the largest number within the target. Bernoulli
    uploads have no noise multiplier: give one of epsilon and rounds. precise: finer grid and finer cover under
    fixed-size sampling, which takes longer. advantage, or tpr at fpr: targets in place of epsilon. They bound every
    membership test, by the best account (`compose.readings`).
    Source: `compose.accountant.guarantee`.
    Units: the noise multiplier is a noise standard deviation over the clip norm.
    Adjacency: that of the plan.
    Direction of error: epsilon and noise upwards, rounds downwards.
    Errors: InvalidParameter unless exactly one number is missing and none differs from that of the plan;
    CalibrationError if no value meets the target.

    >>> from accounting import Plan, budget
    >>> row = budget.solve(Plan(clients=6000, sampling="all"), epsilon=2.0, noise_multiplier=20.0)
    >>> row.rounds
    126
    """
    noise_multiplier, rounds = _given_numbers(plan, noise_multiplier=noise_multiplier, rounds=rounds)
    solver = _Solver(accountant=accountant, conversion=conversion, precise=precise)
    lacks_noise = noise_multiplier is None and plan.has_noise_multiplier
    target = _checked_target(solver, epsilon=epsilon, advantage=advantage, tpr=tpr, fpr=fpr)
    if (target is None) + lacks_noise + (rounds is None) != 1:
        names = "epsilon, noise_multiplier and rounds" if plan.has_noise_multiplier else "epsilon and rounds"
        raise InvalidParameter(f"{names}: give all but one of them; the missing one is computed.")
    plan = with_lanes(plan, epsilon=epsilon if lacks_noise else None, rounds=rounds, stated_by=accountant)
    if rounds is None and target is not None:
        rounds = solver.rounds(plan, target, noise_multiplier)
    elif lacks_noise and target is not None:
        noise_multiplier = solver.noise_multiplier(plan, target, require.count(rounds=rounds))
    rounds = require.count(rounds=rounds)
    return solver.stated_budget(plan, noise_multiplier, rounds, with_lower_bound=with_lower_bound)


def epsilon(
    plan: Plan,
    *,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    precise: bool = False,
) -> float:
    """Return the epsilon of all rounds of a plan.

    Noise multiplier (none for Bernoulli uploads) and rounds are given in the plan or as arguments.
    Claim: the run is (epsilon, plan.delta)-DP; with `fed-smp-theorem` only if the budget of `solve` is valid.
    Source: `compose.accountant.guarantee`.
    Units: the noise multiplier is a noise standard deviation over the clip norm.
    Adjacency: that of the plan.
    Direction of error: upper bound.
    Errors: those of `solve`.

    >>> from accounting import Plan, budget
    >>> plan = Plan(clients=6000, cohort=100)
    >>> round(budget.epsilon(plan, noise_multiplier=1.4, rounds=180), 4)
    0.6303
    """
    solver = _Solver(accountant=accountant, conversion=conversion, precise=precise)
    noise_multiplier, rounds = _given_numbers(plan, noise_multiplier=noise_multiplier, rounds=rounds)
    return solver.epsilon(plan.run(noise_multiplier, require.count(rounds=rounds)), plan.delta)


def noise_multiplier(
    plan: Plan,
    *,
    epsilon: float | None = None,
    rounds: int | None = None,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    precise: bool = False,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> float:
    """Return the smallest noise multiplier that meets `epsilon`, at most 1e-6 relative above the exact threshold.

    advantage, or tpr at fpr: targets in place of epsilon, as for `solve`.
    Claim: the run with this noise multiplier is (epsilon, plan.delta)-DP.
    Source: `compose.accountant.guarantee`.
    Adjacency: that of the plan.
    Direction of error: upwards.
    Errors: CalibrationError if no multiplier meets epsilon; InvalidParameter for Bernoulli uploads, which have none.

    >>> from accounting import Plan, budget
    >>> round(budget.noise_multiplier(Plan(clients=6000, cohort=100), epsilon=1.0, rounds=180), 3)
    1.09
    """
    solver = _Solver(accountant=accountant, conversion=conversion, precise=precise)
    planned, rounds = _given_numbers(plan, rounds=rounds)
    if planned is not None:
        raise InvalidParameter(
            f"noise_multiplier={planned} in the plan: noise_multiplier() solves for it, so leave it out of the plan."
        )
    target = _required_target(solver, epsilon=epsilon, advantage=advantage, tpr=tpr, fpr=fpr)
    plan = with_lanes(plan, epsilon=epsilon, rounds=rounds, stated_by=accountant)
    return solver.noise_multiplier(plan, target, require.count(rounds=rounds))


def rounds(
    plan: Plan,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
    precise: bool = False,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> int:
    """Return the largest number of rounds that meets `epsilon`.

    advantage, or tpr at fpr: targets in place of epsilon, as for `solve`.
    Claim: these rounds are (epsilon, plan.delta)-DP.
    Source: `compose.accountant.guarantee`.
    Units: as `epsilon`.
    Adjacency: that of the plan.
    Direction of error: downwards.
    Errors: CalibrationError if not even one round fits.

    >>> from accounting import Plan, budget
    >>> budget.rounds(Plan(clients=6000, cohort=100), epsilon=1.01, noise_multiplier=1.4)
    451
    """
    solver = _Solver(accountant=accountant, conversion=conversion, precise=precise)
    noise_multiplier, planned = _given_numbers(plan, noise_multiplier=noise_multiplier)
    if planned is not None:
        raise InvalidParameter(
            f"rounds={planned} in the plan: rounds() solves for them, so leave them out of the plan."
        )
    target = _required_target(solver, epsilon=epsilon, advantage=advantage, tpr=tpr, fpr=fpr)
    return solver.rounds(plan, target, noise_multiplier)


def _checked_target(solver: _Solver, **given: float | None) -> Target | None:
    """Return the target. Errors: InvalidParameter for a membership-test target with an accountant other than "best"."""
    target = target_of(**given)
    if target is not None and target.epsilon is None and solver != _Solver(accountant="best", conversion="improved"):
        raise InvalidParameter(
            f"{target.name} with accountant={solver.accountant!r}: bounds on membership tests use the best account. "
            "Leave accountant, conversion and precise out."
        )
    return target


def _required_target(solver: _Solver, **given: float | None) -> Target:
    target = _checked_target(solver, **given)
    if target is None:
        raise InvalidParameter("epsilon is missing: give it, or advantage, or tpr and fpr.")
    return target


def _given_numbers(
    plan: Plan, *, noise_multiplier: float | None = None, rounds: int | None = None
) -> tuple[float | None, int | None]:
    """Return noise multiplier and rounds from the arguments or the plan. Errors: InvalidParameter if the two differ."""
    for name, given, planned in (
        ("noise_multiplier", noise_multiplier, plan.noise_multiplier),
        ("rounds", rounds, plan.rounds),
    ):
        if given is not None and planned is not None and given != planned:
            raise InvalidParameter(f"{name}={given} with a plan of {name}={planned}: give it once.")
    return (
        plan.noise_multiplier if noise_multiplier is None else noise_multiplier,
        plan.rounds if rounds is None else rounds,
    )


def with_second_opinion(rows: Sequence[Budget]) -> list[Budget]:
    """Return the rows, each with dp-accounting's epsilon for its mechanism (`compose.second_opinion`).

    A note mentions the second opinion if the row has a lower bound, or if dp-accounting gives no number. Imports
    dp-accounting.
    Claim: the epsilon of an independent implementation. A note names each one that is below a lower bound. Source:
    Google's dp-accounting.
    Adjacency: that of each row.
    Direction of error: upper bound.
    Errors: MissingLibrary if dp-accounting is not installed.

    >>> from accounting import Plan, budget
    >>> row = budget.solve(Plan(clients=6000, sampling="all"), noise_multiplier=20.0, rounds=10)
    >>> [checked] = budget.with_second_opinion([row])
    >>> abs(checked.second_opinion.epsilon / row.epsilon - 1) < 1e-3
    True
    """
    require_library()
    known: dict[tuple[Composed, float], SecondOpinion] = {}
    found = []
    for row in rows:
        claim = row.mechanism, row.plan.delta
        if claim not in known:
            known[claim] = second_opinion(claim[0], delta=claim[1])
        opinion = known[claim]
        is_noted = row.lower_bound is not None or opinion.epsilon is None
        remarks = opinion.remarks(epsilon=row.epsilon, lower_bound=row.lower_bound) if is_noted else ()
        found.append(replace(row, second_opinion=opinion, notes=(*row.notes, *remarks)))
    return found


def _starting_multiplier_of(plan: Plan, target: float, rounds: int) -> float:
    """Return a starting value for the noise multiplier of a plan."""
    return starting_multiplier(
        target,
        plan.delta,
        rounds=rounds,
        shift=shift_in_clips(plan.sampler, plan.adjacency),
        probability=plan.sampler.probability,
        kept=plan.mechanism.noise_kept,
    )


def starting_multiplier(
    epsilon: float, delta: float, *, rounds: int, shift: float, probability: float, kept: float = 1.0
) -> float:
    """Return a starting value for the noise multiplier, by the central limit mu = q sqrt(T (e^(s^2/z^2) - 1)). It
    affects only speed.
    """
    wanted = 1 / noise_std(epsilon, delta, l2_sensitivity=1.0)
    shift_of_all = min(max(wanted / probability, 1e-100), 1e100)  # so that its square neither underflows nor overflows
    per_round = math.log1p(shift_of_all**2 / rounds)
    return min(max(shift / math.sqrt(per_round) / math.sqrt(kept), 1e-3), 1e6)
