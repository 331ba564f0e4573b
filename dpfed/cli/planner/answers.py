"""What a question comes to: the number, epsilon over rounds, a map, and the same plan run otherwise.

Every epsilon is an upper bound. Those of `dpfed budget` are by the account "best"; others are quicker and state more.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from accounting import budget
from accounting.budget import Plan
from accounting.budget.samplings import SAMPLING_CLASSES
from accounting.compose.accountant import Accountant
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.cli.budget_tables import sampler_words
from dpfed.cli.planner.question import Question
from dpfed.errors import DpfedError

Over = Literal["noise-multiplier", "cohort"]
ACCOUNTS = {
    "rdp": "Renyi account",
    "pld": "account of loss distributions",
    "analytic-gaussian": "closed form",
    "adaptive": "adaptive account",
    "exact": "exact law",
}
_POINTS, _QUICK_POINTS = 16, 32
_ACROSS, _UP, _REACH = 9, 7, 4.0


def answer(question: Question, *, account: Accountant = "best") -> dict[str, Any]:
    """The wanted one of the three, with what must be named beside it. Direction of error: epsilon and noise upwards,
    rounds downwards. Errors: ConfigError, AccountingError."""
    plan, solved = question.plan(), question.solved
    found = budget.solve(
        plan,
        epsilon=question.epsilon,
        noise_multiplier=question.noise_multiplier,
        rounds=question.rounds,
        accountant=account,
        with_lower_bound=False,
    )
    record = found.to_dict()
    return {
        "solved": solved,
        "quick": account != "best",
        "epsilon": record["epsilon"],
        "noise_multiplier": found.noise_multiplier,
        "rounds": found.rounds,
        "delta": plan.delta,
        "shown": {
            "epsilon": upwards(found.epsilon),
            "noise_multiplier": upwards(found.noise_multiplier),
            "rounds": f"{found.rounds:,}",
            "delta": upwards(plan.delta),
        },
        "cohort": record["cohort"],
        "adjacency": record["adjacency"],
        "account": ACCOUNTS.get(found.accountant, found.accountant),
        "words": sampler_words(plan)[0].upper() + sampler_words(plan)[1:] + ".",
        "sensitivity": f"{record['sensitivity_in_clips']:g} C",
        "notes": list(found.notes),
        "command": question.command,
        "python": question.python,
        "fragment": question.fragment,
        "file": question.to_json(),
        "others": others(question, plan) if account == "best" else [],
    }


def others(question: Question, plan: Plan) -> list[dict[str, Any]]:
    """The same question about another sampler, schedule or neighbours, as far as there is an account of it."""
    found = []
    for change, detail in _changes(question, plan):
        other = question.changed(**change)
        try:
            there = other.plan()
        except (AccountingError, DpfedError):
            continue
        line = {
            "sampling": there.sampling.name,
            "detail": detail,
            "adjacency": str(there.adjacency),
            "options": texts(other),
        }
        found.append(line)
    return found


def _changes(question: Question, plan: Plan) -> list[tuple[dict[str, Any], str]]:
    """What to change, and what must be said of it. Schedules let a client take part as often as now, on average."""
    times = math.ceil((question.rounds or 0) / plan.period)
    rest = max(plan.period // 2, 2)
    more: dict[str, tuple[dict[str, Any], str]] = {
        "allocation": ({"participations": times or None}, f"{times:,} rounds each"),
        "min-separation": ({"separation": rest}, f"{rest:,} rounds apart"),
    }
    same: dict[str, Any] = {"cohort": plan.cohort, "participations": None, "separation": None, "adjacency": None}
    found = []
    for name in SAMPLING_CLASSES:
        if name != plan.sampling.name:
            change, detail = more.get(name, ({}, ""))
            found.append(({**same, "sampling": name, **change}, detail))
    return found + [({"adjacency": str(one)}, "") for one in Adjacency if one is not plan.adjacency]


def texts(question: Question) -> dict[str, str]:
    """The options as a page has them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in question.given.items()
    }


def curve(question: Question, *, account: Accountant = "best") -> dict[str, Any]:
    """Epsilon over rounds, up to a fifth more than the plan has; `question` has rounds, and noise if there is any."""
    plan, last = question.plan(), int(question.rounds or 1)
    most = min(math.ceil(1.2 * last), plan.most_rounds or math.inf)
    steps = np.linspace(1, most, _POINTS if account == "best" else _QUICK_POINTS)
    rounds = sorted({int(one) for one in steps.round()} | {last})
    accountant = unhurried(plan) if account == "best" else account
    points: list[tuple[int, float, str]] = []
    for count in rounds:
        one = budget.epsilon(plan, noise_multiplier=question.noise_multiplier, rounds=count, accountant=accountant)
        points.append((count, one, f"{count:,} rounds: epsilon {upwards(one)}"))
    finite = [point for point in points if math.isfinite(point[1])]
    return {"points": finite, "quick": account != "best", "account": _words_of(accountant)}


def unhurried(plan: Plan) -> Accountant:
    """The default account, but where many of it take minutes (adaptive, 1 s each) that of loss distributions."""
    gaussian = plan.mechanism.name in ("gaussian", "distributed-gaussian")
    return "pld" if plan.sampling.name == "fixed" and gaussian else "best"


def _words_of(accountant: Accountant) -> str:
    return "default account" if accountant == "best" else ACCOUNTS[accountant]


def grid(question: Question, over: Over, *, account: Accountant = "best") -> dict[str, Any]:
    """A map of epsilon, rounds upwards, and `over` (noise multiplier or cohort) from left to right, around the plan."""
    plan = question.plan()
    accountant = unhurried(plan) if account == "best" else account
    noise, rounds = float(question.noise_multiplier or 0), int(question.rounds or 1)
    middle = noise if over == "noise-multiplier" else plan.cohort
    across = axis(middle, _ACROSS, whole=over == "cohort", most=math.inf if over != "cohort" else plan.clients)
    up = axis(rounds, _UP, whole=True, most=plan.most_rounds or math.inf)
    cells = []
    for count in up:
        for x in across:
            z, cohort = (noise, int(x)) if over == "cohort" else (x, plan.cohort)
            cells.append(_cell(plan, z, cohort, int(count), accountant))
    return {
        "over": over,
        "across": [upwards(x) if over != "cohort" else f"{int(x):,}" for x in across],
        "up": [f"{int(count):,}" for count in up],
        "values": [[repr(x) if over != "cohort" else str(int(x)) for x in across], [str(int(count)) for count in up]],
        "cells": [_shown(one) for one in cells],
        "here": [across.index(middle), up.index(rounds)],
        "quick": account != "best",
        "account": _words_of(accountant),
    }


def axis(middle: float, count: int, *, whole: bool, most: float) -> list[float]:
    """At most so many values in equal ratios, from a quarter of `middle` to four times it, with `middle`."""
    values = [middle * _REACH ** (2 * k / (count - 1) - 1) for k in range(count)]
    nearest = min(range(count), key=lambda k: abs(math.log(values[k] / middle)))
    values[nearest] = middle
    if whole:
        values = [float(max(1, round(float(f"{value:.2g}")))) if value != middle else value for value in values]
    else:
        values = [middle if value == middle else float(f"{value:.2g}") for value in values]
    kept = sorted({min(value, most) for value in values} | {float(middle)})
    return [a for a, b in pairwise(kept) if b > a] + kept[-1:]


def _cell(plan: Plan, noise: float, cohort: int, rounds: int, accountant: Accountant) -> float | None:
    """None where there is no account."""
    try:
        there = plan if cohort == plan.cohort else plan.changed(cohort=cohort)
        return budget.epsilon(there, noise_multiplier=noise or None, rounds=rounds, accountant=accountant)
    except AccountingError:
        return None


def _shown(epsilon: float | None) -> list[Any]:
    """For the colour, for the cell, and for who looks closer."""
    if epsilon is None:
        return [None, "–", "no account"]
    return [epsilon if math.isfinite(epsilon) else None, brief(epsilon), f"epsilon {upwards(epsilon)}"]


def brief(epsilon: float) -> str:
    """In a cell of a map: short, rounded upwards."""
    if epsilon > 999:
        return "∞" if math.isinf(epsilon) else ">999"
    if epsilon < 0.1:
        return upwards(max(math.ceil(100 * epsilon) / 100, epsilon), digits=2)
    return upwards(epsilon, digits=2 if epsilon < 10 else 1)
