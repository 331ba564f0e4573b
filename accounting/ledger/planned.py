"""Plan of a run, fixed before its first result, and the epsilon that holds for any stopping rule of the run.

Claim: an analyst who stops a run because of its results may state the epsilon of the plan, or of a budget fixed before
the first result. The epsilon of the releases so far holds only if their number and kind were fixed in advance. With a
stopping rule that depends on results, that epsilon fails with a total probability above delta: 7.51 delta for 180
Poisson rounds of 100 of 6,000 clients at noise multiplier 1.4 (tests/accounting/ledger/test_planned.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accounting import mechanisms, require
from accounting.caveats import caveats
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.histories import worst_composition
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Composed, ReleasedRounds, SingleRelease, schedule_of
from accounting.rounding import upwards

FIXED = "true if number and kind of the releases were fixed before the first result was seen"
_ROUNDING = 1e-3
"""Relative excess of the releases' epsilon over that of a plan which contains them, by numerical errors."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Plan of a run: the largest set of releases, or a budget.

    rounds: planned rounds; None if only a budget was fixed
    largest_charges: composition of all planned rounds, each at its largest charge. Unit "record": one composition for
    each size of client. Empty: every round equals the first release
    epsilon, delta: budget that the run must not exceed; None without a budget
    spare: number of repeated rounds, in addition to the planned ones, that the plan's epsilon covers. `largest_charges`
    has them, too
    may_skip_rounds: True if the caller may skip rounds by choice, so that a missing release counts as an early stop

    Claim: the plan's epsilon, and the budget's, hold for any stopping rule.
    Direction of error: upwards.

    >>> from accounting.ledger import Planned
    >>> Planned(epsilon=2.0, delta=1e-5).budget_at(1e-6) is None
    True
    """

    rounds: int | None = None
    largest_charges: tuple[Composed, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    may_skip_rounds: bool = False
    spare: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            **({} if self.rounds is None else {"rounds": self.rounds}),
            **({} if not self.largest_charges else {"most": [one.to_dict() for one in self.largest_charges]}),
            **({} if self.epsilon is None else {"epsilon": self.epsilon, "delta": self.delta}),
            **({"skips": True} if self.may_skip_rounds else {}),
            **({"spare": self.spare} if self.spare else {}),
        }

    def budget_at(self, delta: float) -> float | None:
        """Return the epsilon of the budget at this delta; None if the budget is for a larger delta."""
        return self.epsilon if self.delta is not None and delta >= self.delta else None


def planned_from(record: Mapping[str, Any]) -> Planned:
    """Return the plan of a record that `to_dict` wrote. Errors: InvalidParameter for any other record."""
    most = record.get("most", [])
    if not isinstance(most, list) or not all(isinstance(one, Mapping) for one in most):
        raise InvalidParameter("plan.most: must be a list of compositions.")
    read = [mechanisms.from_dict(one) for one in most]
    budget = "epsilon" in record
    return Planned(
        rounds=require.count(**{"plan.rounds": record["rounds"]}) if "rounds" in record else None,
        largest_charges=tuple(one if isinstance(one, Composed) else Composed(parts=((one, 1),)) for one in read),
        epsilon=require.positive(**{"plan.epsilon": record["epsilon"]}) if budget else None,
        delta=require.open_probability(**{"plan.delta": record.get("delta")}) if budget else None,
        may_skip_rounds=record.get("skips") is True,
        spare=require.count(0, **{"plan.spare": record.get("spare", 0)}),
    )


def budget_of_project(about: Mapping[str, object]) -> Planned | None:
    """Return the budget in the header of a project's ledger; None for the header of a run."""
    match about.get("project"):
        case {"epsilon": int() | float() as epsilon, "delta": int() | float() as delta}:
            return Planned(epsilon=epsilon, delta=delta)
    return None


def statement(
    lines: Guarantee,
    plan: Planned | None,
    rounds: Sequence[int],
    *,
    aborted: Sequence[int],
    repeated: Sequence[tuple[int, SingleRelease]],
    first: SingleRelease | None,
    accountant: Accountant,
    units: int | None,
) -> Guarantee:
    """Return the guarantee that holds for any stopping rule of the run, or its condition in the notes.

    lines:  guarantee of the releases in the ledger, at least one
    rounds: the round of each release; `aborted`: rounds that ended without a result
    repeated: (round, release) of the releases of all clients that repeat an earlier one's round
    first:  the first release of all clients, which describes every planned round if the plan has no composition
    units:  number of clients or records, for notes on a large epsilon

    If exactly the planned rounds were released or ended without a result, and the plan has no spare rounds, the result
    is `lines`. If fewer were released, it has the smaller of the epsilons of plan and budget. The number of repeated
    rounds may depend on results while it is within the spare ones. Beyond, the plan's epsilon has all of them, and
    holds if interruptions did not depend on results. If more were released, it has the budget's epsilon. Releases
    beyond both have their own epsilon, with its condition.
    Direction of error: upwards, and never below `lines`.
    """
    if plan is None:
        return _with_note(lines, f"epsilon is that of the releases in the ledger, which has no plan: {FIXED}")
    exceeds_plan = plan.rounds is not None and max(rounds) >= plan.rounds
    rounds_without_result = set() if plan.may_skip_rounds else set(aborted) - set(rounds)
    repeats = 0 if plan.rounds is None else len(rounds) - len(set(rounds))
    is_complete = not exceeds_plan and len(set(rounds)) + len(rounds_without_result) == plan.rounds
    if is_complete and not plan.spare:
        return _complete_run(lines, plan, repeated_charges=repeats, rounds_without_result=len(rounds_without_result))
    beyond = max(repeats - plan.spare, 0)
    budget, planned_guarantee = plan.budget_at(lines.delta), None
    if not exceeds_plan:
        planned_guarantee = _planned_guarantee(lines, plan, first, accountant, units, beyond, repeated[plan.spare :])
    claim = "it holds for any stopping rule"
    if planned_guarantee is not None and (budget is None or planned_guarantee.epsilon <= budget):
        spare = f" and {plan.spare} spare ones" if plan.spare else ""
        note = f"epsilon is that of all {plan.rounds} planned rounds{spare}, of which {_released_text(rounds)}"
        if beyond:
            note = (
                f"epsilon is that of all {plan.rounds} planned rounds, and of {repeats} rounds that were charged again"
            )
            claim = "it holds if the interruptions did not depend on results"
        stated = replace(planned_guarantee, lower_bound=lines.lower_bound)
    elif budget is not None:
        note = f"epsilon is that of the budget, of whose rounds {_released_text(rounds)}"
        notes = caveats(epsilon=budget, delta=lines.delta, units=units, unit=lines.unit)
        mechanism = None if planned_guarantee is None else planned_guarantee.mechanism
        stated = replace(lines, epsilon=budget, mechanism=mechanism, notes=_distinct_notes(lines.notes, notes))
    else:
        return _with_note(
            lines, f"epsilon is that of the releases in the ledger, for which no plan has an epsilon: {FIXED}"
        )
    if lines.epsilon > stated.epsilon * (1 + _ROUNDING):
        return _with_note(
            lines, f"epsilon is that of the releases in the ledger, which exceed its plan and budget: {FIXED}"
        )
    if_fixed = f"If the releases were fixed in advance, they have epsilon {upwards(lines.epsilon)}"
    stated = replace(stated, epsilon=max(stated.epsilon, lines.epsilon))
    return _with_note(stated, f"{note}: {claim}. {if_fixed}")


def _planned_guarantee(
    lines: Guarantee,
    plan: Planned,
    first: SingleRelease | None,
    accountant: Accountant,
    units: int | None,
    repeats: int,
    repeated: Sequence[tuple[int, SingleRelease]],
) -> Guarantee | None:
    """Return the guarantee of all planned and spare rounds and `repeats` repeated ones, for unit "record" that of the
    client with the largest epsilon. Returns None without an account.
    """
    try:
        most = plan.largest_charges
        if not most and plan.rounds is not None and first is not None:
            most = (Composed(parts=((first, plan.rounds + plan.spare),)),)
        if repeats and plan.rounds is not None:
            most = tuple(_with_repeats(one, plan.rounds + plan.spare, repeats, repeated) for one in most)
        found = most[0] if len(most) == 1 else worst_composition(most, delta=lines.delta, accountant=accountant)
        if found is None:
            return None
        planned_guarantee = guarantee(
            found, delta=lines.delta, accountant=accountant, unit=lines.unit, units=units, with_lower_bound=False
        )
        # at other deltas another client may have the largest epsilon
        return planned_guarantee if len(most) < 2 else replace(planned_guarantee, mechanism=None)
    except (UnsupportedMechanism, InvalidParameter):
        return None


def _with_repeats(most: Composed, rounds: int, repeats: int, repeated: Sequence[tuple[int, SingleRelease]]) -> Composed:
    """Return planned releases with repeated ones. For unit "record" each repetition has the steps of a whole round."""
    if not repeated:
        return Composed(parts=tuple((part, count + -(-count // rounds) * repeats) for part, count in most.parts))
    released, others = ReleasedRounds(), list[tuple[SingleRelease, int]]()
    for part, count in most.parts:
        if schedule_of(part) is None:
            others.append((part, count))
        else:
            for number in range(count):
                released.add(part, number)
    for number, part in repeated:
        released.add(part, number)
    return Composed.of_runs((*others, *released.composition().parts))


def _complete_run(lines: Guarantee, plan: Planned, *, repeated_charges: int, rounds_without_result: int) -> Guarantee:
    """Return the guarantee of a run whose planned rounds were all released or ended without a result.

    Its notes state the conditions.
    """
    if repeated_charges:
        claim = "epsilon holds if the interruptions did not depend on results"
        lines = _with_note(lines, f"{repeated_charges} rounds were charged again: {claim}")
    if rounds_without_result:
        note = (
            f"{rounds_without_result} rounds ended without a result: epsilon holds if dropouts do not depend on results"
        )
        lines = _with_note(lines, note)
    budget = plan.budget_at(lines.delta)
    if budget is not None and not rounds_without_result and lines.epsilon < 0.99 * budget:
        note = f"if this run is prolonged because of its results, its epsilon is its budget, {upwards(budget)}"
        lines = _with_note(lines, note)
    return lines


def _released_text(rounds: Sequence[int]) -> str:
    count = len(set(rounds))
    return "1 was released" if count == 1 else f"{count} were released"


def _with_note(stated: Guarantee, note: str) -> Guarantee:
    return replace(stated, notes=_distinct_notes(stated.notes, (note,)))


def _distinct_notes(notes: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*notes, *more]))
