"""Plan of a run, fixed before its first result, and the epsilon that may be stated whatever its results were.

Claim: an analyst who ends a run by looking at its results may state the epsilon of the plan, or of a budget that was
fixed before the first result. The epsilon of the releases made so far holds only if their number and kind were fixed in
advance. Stated at an end chosen by looking at results, it fails with more than delta in all: 7.51 delta for 180 Poisson
rounds of 100 of 6,000 clients at noise multiplier 1.4 (tests/accounting/ledger/test_planned.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accounting import mechanisms, require
from accounting.caveats import caveats
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.histories import worst
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Composed, SingleRelease
from accounting.rounding import upwards

_AGAIN = "{} rounds were charged again: holds where what interrupted them does not depend on results"
FIXED = "true where number and kind of the releases were fixed before the first result was seen"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Most that a run may release.

    rounds:         planned rounds; None if only a budget was fixed
    most:           all planned rounds as one composition, at most that they may be charged. Unit "record": one
                    composition for each size of client. Empty: every round is like the first release
    epsilon, delta: budget, which no round of the run may exceed; None without one
    skips:          True if the caller may leave rounds out by choice, so that a round without a release is an early end

    Claim: the plan's epsilon, or the budget's, holds however the end of the run is chosen. Direction of error: upwards.

    >>> from accounting.ledger import Planned
    >>> Planned(epsilon=2.0, delta=1e-5).budget_at(1e-6) is None
    True
    """

    rounds: int | None = None
    most: tuple[Composed, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    skips: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            **({} if self.rounds is None else {"rounds": self.rounds}),
            **({} if not self.most else {"most": [one.to_dict() for one in self.most]}),
            **({} if self.epsilon is None else {"epsilon": self.epsilon, "delta": self.delta}),
            **({"skips": True} if self.skips else {}),
        }

    def budget_at(self, delta: float) -> float | None:
        """Return the epsilon of the budget at this delta; None if the budget is for a larger one."""
        return self.epsilon if self.delta is not None and delta >= self.delta else None


def planned_from(record: Mapping[str, Any]) -> Planned:
    """Return the plan that `to_dict` wrote. Errors: InvalidParameter for anything else."""
    most = record.get("most", [])
    if not isinstance(most, list) or not all(isinstance(one, Mapping) for one in most):
        raise InvalidParameter("plan.most: must be a list of compositions.")
    read = [mechanisms.from_dict(one) for one in most]
    budget = "epsilon" in record
    return Planned(
        rounds=require.count(**{"plan.rounds": record["rounds"]}) if "rounds" in record else None,
        most=tuple(one if isinstance(one, Composed) else Composed(parts=((one, 1),)) for one in read),
        epsilon=require.positive(**{"plan.epsilon": record["epsilon"]}) if budget else None,
        delta=require.open_probability(**{"plan.delta": record.get("delta")}) if budget else None,
        skips=record.get("skips") is True,
    )


def budget_of_project(about: Mapping[str, Any]) -> Planned | None:
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
    first: SingleRelease | None,
    accountant: Accountant,
    units: int | None,
) -> Guarantee:
    """Return the guarantee that holds for any rule by which the run ended.

    lines:  that of the releases themselves, at least one
    rounds: the round of each release; `aborted`: rounds that ended without a result
    first:  the first release to all clients, which stands for a planned round if the plan names none
    units:  number of clients or records, for notes on a large epsilon

    All planned rounds and no others were released: `lines`. Fewer: the smaller of the plan's and the budget's. Rounds
    beyond the plan: the budget's. Direction of error: upwards, and never below `lines`.
    """
    if plan is None:
        return _with_note(lines, f"of the releases in the ledger, which names no plan: {FIXED}")
    beyond = plan.rounds is not None and max(rounds) >= plan.rounds
    lost = set() if plan.skips else set(aborted) - set(rounds)
    again = len(rounds) - len(set(rounds))
    if not beyond and len(set(rounds)) + len(lost) == plan.rounds:
        return _complete_run(lines, plan, again=again, lost=len(lost))
    budget, whole = (
        plan.budget_at(lines.delta),
        None if beyond else _planned_guarantee(lines, plan, first, accountant, units),
    )
    if whole is not None and (budget is None or whole.epsilon <= budget):
        words = f"of all {plan.rounds} planned rounds, of which {_released_text(rounds)}"
        stated = replace(whole, lower_bound=lines.lower_bound)
        if len(rounds) > (plan.rounds or 0):  # the plan does not cover them all
            stated = _with_note(replace(stated, mechanism=None), _AGAIN.format(again))
    elif budget is not None:
        words = f"of the budget, of whose rounds {_released_text(rounds)}"
        notes = caveats(epsilon=budget, delta=lines.delta, units=units, unit=lines.unit)
        mechanism = None if whole is None else whole.mechanism
        stated = replace(lines, epsilon=budget, mechanism=mechanism, notes=_joined(lines.notes, notes))
    else:
        return _with_note(lines, f"of the releases in the ledger, for which no plan has an epsilon: {FIXED}")
    words += (
        f": it holds whatever the end was chosen by. If fixed in advance, they have epsilon {upwards(lines.epsilon)}"
    )
    return _with_note(replace(stated, epsilon=max(stated.epsilon, lines.epsilon)), words)


def _planned_guarantee(
    lines: Guarantee, plan: Planned, first: SingleRelease | None, accountant: Accountant, units: int | None
) -> Guarantee | None:
    """Return the guarantee of all planned rounds, with unit "record" for the worst client; None without an account."""
    try:
        most = plan.most[:1] if len(plan.most) < 2 else (worst(plan.most, delta=lines.delta, accountant=accountant),)
        if not most and plan.rounds is not None and first is not None:
            most = (Composed(parts=((first, plan.rounds),)),)
        if not most or most[0] is None:
            return None
        whole = guarantee(
            most[0], delta=lines.delta, accountant=accountant, unit=lines.unit, units=units, with_lower_bound=False
        )
        return whole if len(plan.most) < 2 else replace(whole, mechanism=None)  # others may be worse at other deltas
    except UnsupportedMechanism:
        return None


def _complete_run(lines: Guarantee, plan: Planned, *, again: int, lost: int) -> Guarantee:
    """Return the guarantee of a run that did what was planned, with the conditions of its number."""
    if again:
        lines = _with_note(lines, _AGAIN.format(again))
    if lost:
        words = f"{lost} rounds ended without a result: holds where losses of clients do not depend on results"
        lines = _with_note(lines, words)
    budget = plan.budget_at(lines.delta)
    if budget is not None and not lost and lines.epsilon < 0.99 * budget:
        words = f"if this run is prolonged because of its results, its epsilon is its budget, {upwards(budget)}"
        lines = _with_note(lines, words)
    return lines


def _released_text(rounds: Sequence[int]) -> str:
    count = len(set(rounds))
    return "1 was released" if count == 1 else f"{count} were released"


def _with_note(stated: Guarantee, words: str) -> Guarantee:
    return replace(stated, notes=_joined(stated.notes, (words,)))


def _joined(notes: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*notes, *more]))
