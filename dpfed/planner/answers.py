"""Answers to a question: the unknown number, epsilon over rounds, a map of epsilon, and plans with other samplings.

Every epsilon is an upper bound. `dpfed budget` uses the account "best"; other accounts are faster and their bounds
are larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from accounting import budget
from accounting.budget import Plan
from accounting.compose.accountant import Accountant
from accounting.errors import AccountingError, CalibrationError, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES
from accounting.mechanisms.samplings.records import RecordBatches
from accounting.rounding import upwards
from dpfed.errors import DpfedError
from dpfed.planner.page import with_labels
from dpfed.planner.question import Question, question_of
from dpfed.report.privacy_text import readings_text, sampler_text

Over = Literal["noise-multiplier", "cohort"]
ACCOUNTS = {
    "best": "default account",
    "rdp": "Renyi account",
    "pld": "privacy loss distributions",
    "analytic-gaussian": "closed form",
    "adaptive": "adaptive account",
    "central-moments": "central moments",
    "exact": "exact distribution",
}
_POINTS, _QUICK_POINTS = 16, 32
_ACROSS, _UP, _REACH = 9, 7, 4.0


def planner_answer(question: Question, *, account: Accountant = "best") -> dict[str, Any]:
    """Solve for the unknown one of epsilon, noise multiplier and rounds; return it with all content of the page.

    Epsilon and noise are rounded upwards, rounds downwards. ConfigError or AccountingError if there is no answer.
    """
    plan, solved = question.plan(), question.solved_number
    found = question.solve(account)
    if plan.needs_lanes:
        question = question.with_options(lanes=found.plan.options["lanes"], bands=found.plan.options["bands"])
    return {
        **plan_conditions(found.plan),
        "solved": solved,
        "quick": account != "best",
        "epsilon": found.epsilon if math.isfinite(found.epsilon) else None,
        "noise_multiplier": found.noise_multiplier,
        "rounds": found.rounds,
        "delta": plan.delta,
        "shown": {
            "epsilon": upwards(found.epsilon),
            "noise_multiplier": upwards(found.noise_multiplier),
            "rounds": f"{found.rounds:,}",
            "delta": upwards(plan.delta),
        },
        "readings": None if account != "best" or found.readings is None else readings_text(found.readings),
        "account": ACCOUNTS.get(found.accountant, found.accountant),
        "notes": list(found.notes),
        "command": question.command_line,
        "python": question.python_code,
        "file": question.to_json(),
        "others": plans_with_other_samplings(question, plan) if account == "best" else [],
    }


def plan_conditions(plan: Plan) -> dict[str, object]:
    """Return the conditions under which an epsilon holds: population, round, adjacency, sensitivity, and sampling."""
    words = sampler_text(plan)
    return {
        "cohort": plan.cohort,
        "population": _population_text(plan),
        "each_round": _round_text(plan),
        "adjacency": str(plan.adjacency),
        "sensitivity": f"{plan.adjacency.sensitivity_in_clips:g} C",
        "words": f"{words[0].upper()}{words[1:]}.",
    }


def _population_text(plan: Plan) -> str:
    """Return the number of clients, and of records where these are the unit."""
    clients = f"{plan.clients:,} client{'s' if plan.clients > 1 else ''}"
    if not isinstance(plan.sampling, RecordBatches):
        return f"{clients}; all data of a client are protected as a whole."
    return f"{clients} of {plan.sampling.records:,} records each, {plan.units:,} in all; each record is protected."


def _round_text(plan: Plan) -> str:
    """Return the participants of a round: clients, or steps and records where these are the unit."""
    if not isinstance(plan.sampling, RecordBatches):
        return f"{plan.cohort:,} clients each"
    batch = min(plan.sampling.batch_size, plan.sampling.records)
    return f"{plan.sampling.steps} steps each, on about {batch:,} of {plan.sampling.records:,} records"


def plans_with_other_samplings(question: Question, plan: Plan) -> list[dict[str, Any]]:
    """Return the plan with every other sampling and every other adjacency for which an account exists.

    In a schedule a client takes part as often, on average, as in `plan`.
    """
    rest = max(plan.period // 2, 2)
    times = math.ceil((question.rounds or 0) / plan.period)
    detail = {"allocation": f"{times:,} rounds each", "min-separation": f"{rest:,} rounds apart"}
    changes: list[dict[str, Any]] = [
        {
            "cohort": plan.cohort,
            "sampling": name,
            "participations": (times or None) if name == "allocation" else None,
            "separation": rest if name == "min-separation" else None,
            "adjacency": None,
            "cohort_cap": None,
        }
        for name in SAMPLING_CLASSES
        if name != plan.sampling.name
    ]
    changes += [{"adjacency": str(one)} for one in Adjacency if one is not plan.adjacency]
    found = []
    for change in changes:
        other = question.with_options(**change)
        with suppress(AccountingError, DpfedError):  # a plan without an account gets no row
            there = other.plan()
            words = detail.get(change.get("sampling", ""), "")
            row = {"sampling": there.sampling.name, "detail": words, "adjacency": str(there.adjacency)}
            found.append({**row, "options": other.option_texts})
    return found


def epsilon_curve(question: Question, *, account: Accountant = "best") -> dict[str, object]:
    """Return epsilon over rounds, up to 1.2 times those of `question`, which also has the noise multiplier, if any."""
    plan, last = question.plan(), int(question.rounds or 1)
    most = min(math.ceil(1.2 * last), plan.most_rounds or math.inf)
    steps = np.linspace(1, most, _POINTS if account == "best" else _QUICK_POINTS)
    accountant = quick_accountant(plan) if account == "best" else account
    points = []
    for count in sorted({int(one) for one in steps.round()} | {last}):
        one = budget.epsilon(plan, noise_multiplier=question.noise_multiplier, rounds=count, accountant=accountant)
        if math.isfinite(one):
            points.append((count, one, f"{count:,} rounds: epsilon {upwards(one)}"))
    return {"points": points, "account": ACCOUNTS[accountant]}


def quick_accountant(plan: Plan) -> Accountant:
    """Return the account for many answers: "pld" if "best" takes seconds each (fixed size, Gaussian), else "best"."""
    gaussian = plan.mechanism.name in ("gaussian", "distributed-gaussian")
    return "pld" if plan.sampling.name == "fixed" and gaussian else "best"


def epsilon_map(question: Question, over: Over, *, account: Accountant = "best") -> dict[str, object]:
    """Return epsilon on a grid around the plan: rounds from bottom to top, the quantity `over` from left to right."""
    plan, by_cohort = question.plan(), over == "cohort"
    accountant = quick_accountant(plan) if account == "best" else account
    noise, rounds = float(question.noise_multiplier or 0), int(question.rounds or 1)
    middle, most = (plan.cohort, plan.clients) if by_cohort else (noise, math.inf)
    across = axis_values(middle, _ACROSS, whole=by_cohort, most=most)
    up = axis_values(rounds, _UP, whole=True, most=plan.most_rounds or math.inf)
    cells = []
    for count in up:
        for x in across:
            z, cohort = (noise, int(x)) if by_cohort else (x, plan.cohort)
            here = question if cohort == plan.cohort else question.with_options(cohort=cohort)
            cells.append(_cell_texts(_epsilon_at(here, z, int(count), accountant)))
    return {
        "over": over,
        "across": [f"{int(x):,}" if by_cohort else upwards(x) for x in across],
        "up": [f"{int(count):,}" for count in up],
        "values": [[str(int(x)) if by_cohort else repr(x) for x in across], [str(int(count)) for count in up]],
        "cells": cells,
        "here": [across.index(middle), up.index(rounds)],
        "account": ACCOUNTS[accountant],
    }


def axis_values(middle: float, count: int, *, whole: bool, most: float) -> list[float]:
    """Return at most `count` values in equal ratios, from a quarter of `middle` to four times it, with `middle`."""
    values = [middle * _REACH ** (2 * k / (count - 1) - 1) for k in range(count)]
    nearest = min(range(count), key=lambda k: abs(math.log(values[k] / middle)))
    values[nearest] = middle
    short = [float(f"{value:.2g}") for value in values if value != middle]
    rounded = [float(max(1, round(value))) for value in short] if whole else short
    return sorted({min(value, most) for value in rounded} | {float(middle)})


def _epsilon_at(question: Question, noise: float, rounds: int, accountant: Accountant) -> float | None:
    """Return epsilon at one grid point, or None if no account exists."""
    try:
        return budget.epsilon(question.plan(), noise_multiplier=noise or None, rounds=rounds, accountant=accountant)
    except AccountingError:
        return None


def _cell_texts(epsilon: float | None) -> list[object]:
    """Return (number for the colour, text of the cell, tooltip of the cell)."""
    if epsilon is None:
        return [None, "–", "no account"]
    return [epsilon if math.isfinite(epsilon) else None, brief_epsilon(epsilon), f"epsilon {upwards(epsilon)}"]


def brief_epsilon(epsilon: float) -> str:
    """Return epsilon as a short text, rounded upwards."""
    if epsilon > 999:
        return "∞" if math.isinf(epsilon) else ">999"
    if epsilon < 0.1:
        return upwards(max(math.ceil(100 * epsilon) / 100, epsilon), digits=2)
    return upwards(epsilon, digits=2 if epsilon < 10 else 1)


def answer_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a job of the page, or {"error": text} if the question has no answer.

    Returns {"unknown": True} if only the account "best" can decide whether there is an answer.
    """
    account = job["account"]
    try:
        question = question_of(job["options"])
        match job["kind"]:
            case "curve":
                return epsilon_curve(question, account=account)
            case "answer":
                return planner_answer(question, account=account)
            case over:
                return epsilon_map(question, over, account=account)
    except (CalibrationError, UnsupportedMechanism) as error:
        return {"error": with_labels(str(error))} if account == "best" else {"unknown": True}
    except (AccountingError, DpfedError) as error:
        return {"error": with_labels(str(error))}
    except (ArithmeticError, MemoryError) as error:
        return {"error": f"no account works for these numbers ({type(error).__name__}). Change one of them."}
