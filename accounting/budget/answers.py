"""Solver for epsilon, noise multiplier and rounds of a plan: two are given, the third is computed."""

import math
from dataclasses import dataclass
from functools import partial
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
from accounting.compose.second_opinion import SecondOpinion
from accounting.errors import CalibrationError, InvalidParameter
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


class _Solver(calibrate.Solver):
    """Solver for the numbers of a plan."""

    def noise_multiplier(self, plan: Plan, target: Target, rounds: int) -> float:
        if not plan.has_noise_multiplier:
            raise InvalidParameter(
                f"mechanism={plan.mechanism.name!r}: its Bernoulli samples are the noise, so there is no noise "
                "multiplier to solve for. Give rounds or epsilon alone, or solve for the clip norm (budget.clip_norm)."
            )
        return self.smallest_multiplier(
            lambda z: plan.run(z, rounds),
            target=target,
            delta=plan.delta,
            start=calibrate.starting_multiplier(
                target.near_epsilon(plan.delta),
                plan.delta,
                rounds=rounds,
                shift=shift_in_clips(plan.sampler, plan.adjacency),
                probability=plan.sampler.probability,
                kept=plan.mechanism.noise_kept,
            ),
        )

    def rounds(self, plan: Plan, target: Target, noise_multiplier: float | None) -> int:
        if plan.noise_schedule is not None:
            raise InvalidParameter(
                "noise_schedule without rounds: the parts of the schedule are fractions of the number of rounds. Give "
                "rounds, and solve for epsilon or the noise multiplier."
            )

        reading, quick = self.readings(partial(plan.run, noise_multiplier), plan.delta, target, first=1)

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
    stated = accountants.guarantee(
        plan.run(noise_multiplier, rounds),
        delta=plan.delta,
        accountant=accountant,
        conversion=conversion,
        unit=plan.unit,
        units=plan.units,
        with_lower_bound=with_lower_bound,
        precise=precise,
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
    Claim: the run is (epsilon, plan.delta)-DP. Epsilon is infinite if a condition of `fed-smp-theorem` is not met.
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
    noise_multiplier, rounds = _given_numbers(plan, noise_multiplier=noise_multiplier, rounds=rounds)
    run = plan.run(noise_multiplier, require.count(rounds=rounds))
    return accountants.epsilon(run, delta=plan.delta, accountant=accountant, conversion=conversion, precise=precise)


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
    if target is not None and target.epsilon is None and solver != _Solver():
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
    for name, given in (("noise_multiplier", noise_multiplier), ("rounds", rounds)):
        planned = getattr(plan, name)
        if given is not None and planned is not None and given != planned:
            raise InvalidParameter(f"{name}={given} with a plan of {name}={planned}: give it once.")
    z = plan.noise_multiplier if noise_multiplier is None else noise_multiplier
    return z, plan.rounds if rounds is None else rounds
