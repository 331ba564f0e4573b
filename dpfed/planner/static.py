"""The planner as one file: a page with a grid of answers, which shows the epsilon of the next grid point above.

More noise never increases epsilon: larger Gaussian or Skellam noise is smaller noise plus independent noise, and the
account of discrete Gaussian noise decreases in the multiplier. Fewer rounds never increase epsilon: a shorter run is a
prefix of a longer one. So the epsilon of a grid point with at most the noise and at least the rounds of a plan is an
upper bound. Cohorts are not interpolated. Noise correlated over rounds is planned for one number of rounds, so its
grid has this number only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from accounting import budget
from accounting.budget import Plan
from accounting.errors import AccountingError
from accounting.rounding import upwards
from dpfed.errors import DpfedError
from dpfed.planner import answers
from dpfed.planner.page import NUMBERS, SAMPLERS, InputBox, planner_page
from dpfed.planner.question import Question

_NOISE_COUNT, _ROUND_COUNT = 15, 13
_FEW_NOISES, _FEW_ROUNDS = 9, 7
"""Grid of plans other than those of clients with independent Gaussian noise, whose account takes longer."""
_OTHER_SAMPLINGS = ("poisson", "fixed", "all", "cyclic")
_COHORT_FACTORS = (0.5, 1.0, 2.0)


def static_page(
    question: Question,
    *,
    noises: int | None = None,
    rounds: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """Return the page with a grid of `noises` noise multipliers times `rounds` numbers of rounds around the plan.

    Bernoulli samples have no noise multiplier, and correlated noise has one number of rounds. `progress`: called with
    (done, total) tables.
    """
    account = answers.quick_accountant(question.plan()) if question.solved_number == "epsilon" else "best"
    found = question.solve(account)
    plan, noise = found.plan, found.noise_multiplier
    question = _with_all_options(question, plan)
    if not _is_plain(plan):
        noises, rounds = noises or _FEW_NOISES, rounds or _FEW_ROUNDS
    across = [None] if noise is None else answers.axis_values(noise, noises or _NOISE_COUNT, whole=False, most=math.inf)
    up = [found.rounds]
    if plan.mechanism.noise == "independent":
        most = plan.most_rounds or math.inf
        up = [int(one) for one in answers.axis_values(found.rounds, rounds or _ROUND_COUNT, whole=True, most=most)]
    tables, asked = [], _grid_plans(question)
    for k, one in enumerate(asked):
        tables.append(_epsilon_table(one, across, up))
        progress(k + 1, len(asked))
    cohorts = sorted({table["cohort"] for table in tables if table["sampling"] != "all"})
    samplers = list(dict.fromkeys(table["sampling"] for table in tables))
    of_rounds, of_noise, of_epsilon = NUMBERS
    return planner_page(
        question.at_point(rounds=found.rounds, noise_multiplier=noise),
        numbers=(
            replace(of_rounds, slider=(up[0], up[-1]) if len(up) > 1 else None),
            replace(of_noise, slider=(across[0], across[-1]), shown_if={})
            if across[0] is not None and across[-1] is not None
            else replace(of_noise, slider=None, shown_if={"sampling": []}),
            of_epsilon,
        ),
        people=(
            InputBox(
                name="cohort", label="Cohort: clients a round", choices=[(str(one), f"{one:,}") for one in cohorts],
                shown_if={"sampling": [name for name in samplers if name != "all" and plan.unit == "client"]},
            ),
            InputBox(name="sampling", label="Who takes part", choices=[(name, SAMPLERS[name]) for name in samplers]),
        ),
        details=(),
        grid={
            "tables": tables,
            "delta": upwards(plan.delta),
            "fixed": question.at_point(rounds=None if len(up) > 1 else up[0]).option_texts,
            "words": f"For {plan.clients:,} clients and delta {upwards(plan.delta)}, from a grid of answers in this "
            "page: between grid points the answer is for less noise and more rounds, so it is an upper bound.",
        },
    )  # fmt: skip


def _with_all_options(question: Question, plan: Plan) -> Question:
    """Return the question with the cohort, lanes and bands that the plan derives from other options."""
    if plan.unit == "client" and question.cohort is None and plan.sampling.name != "all":
        question = question.with_options(cohort=plan.cohort)
        if plan.sampling.name == "balls-and-bins":
            question = question.with_options(participations=None)
    if question.plan().needs_lanes:
        question = question.with_options(lanes=plan.options["lanes"], bands=plan.options["bands"])
    return question


def _is_plain(plan: Plan) -> bool:
    """Return True for clients with Gaussian noise that is independent over rounds."""
    noise = plan.mechanism
    return noise.name in ("gaussian", "distributed-gaussian") and noise.noise == "independent" and plan.unit == "client"


def _grid_plans(question: Question) -> list[Question]:
    """Return the plan and plans with samplings whose account is quick, each with half, equal and double cohort."""
    plan = question.plan()
    if not _is_plain(plan):
        return [question.at_point()]
    cohorts = sorted({min(max(round(share * plan.cohort), 1), plan.clients) for share in _COHORT_FACTORS})
    found = []
    for name in dict.fromkeys((plan.sampling.name, *_OTHER_SAMPLINGS)):
        change: dict[str, object] = {"sampling": name}
        if name != plan.sampling.name:
            change |= {"participations": None, "separation": None, "adjacency": None, "cohort_cap": None}
        for cohort in cohorts if name != "all" else [None]:
            other = question.at_point().with_options(**change, cohort=cohort)
            with suppress(AccountingError, DpfedError):
                other.plan()
                found.append(other)
    return found


def _epsilon_table(question: Question, across: Sequence[float | None], up: list[int]) -> dict[str, Any]:
    """Return epsilon at every grid point, a row for each number of rounds, with the conditions under which it holds."""
    plan = question.plan()
    account = answers.quick_accountant(plan)
    solved = partial(budget.solve, plan, accountant=account, with_lower_bound=False)
    rows = [[solved(noise_multiplier=z, rounds=count) for z in across] for count in up]
    notes = [found.notes for row in rows for found in row]
    option, argument = ("", "") if account == "best" else (f" --accountant {account}", f', accountant="{account}"')
    noise_option, noise_argument = "", ""
    if plan.has_noise_multiplier:
        noise_option, noise_argument = " --noise-multiplier {noise}", "noise_multiplier={noise}, "
    return {
        **answers.plan_conditions(plan),
        "sampling": plan.sampling.name,
        "account": answers.ACCOUNTS[account],
        "noise": across,
        "noise_shown": ["" if z is None else upwards(z) for z in across],
        "rounds": up,
        "cells": [[upwards(found.epsilon) for found in row] for row in rows],
        "brief": [[answers.brief_epsilon(found.epsilon) for found in row] for row in rows],
        "notes": [note for note in notes[0] if all(note in others for others in notes)],
        "command": f"{question.command_line} --rounds {{rounds}}{noise_option}{option}",
        "python": f"{question.plan_code}\nprint(budget.epsilon(plan, {noise_argument}rounds={{rounds}}{argument}))",
    }
