"""The planner as one file: a page with a grid of answers, which shows the epsilon of the next grid point above.

More noise never increases epsilon: larger Gaussian noise is smaller noise plus independent noise, a post-processing.
Fewer rounds never increase epsilon: a shorter run is a prefix of a longer one. So the epsilon of a grid point with at
most the noise and at least the rounds of a plan is an upper bound. Cohorts are not interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accounting import budget
from accounting.errors import AccountingError
from accounting.rounding import upwards
from dpfed.errors import ConfigError, DpfedError
from dpfed.planner.answers import (
    ACCOUNTS,
    axis_values,
    brief_epsilon,
    plan_conditions,
    planner_answer,
    quick_accountant,
)
from dpfed.planner.page import NUMBERS, SAMPLERS, InputBox, planner_page
from dpfed.planner.question import Question

_NOISE_COUNT, _ROUND_COUNT = 15, 13
_OTHER_SAMPLINGS = ("poisson", "fixed", "all", "cyclic")
_COHORT_FACTORS = (0.5, 1.0, 2.0)


def static_page(
    question: Question,
    *,
    noises: int = _NOISE_COUNT,
    rounds: int = _ROUND_COUNT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """Return the page with a grid of `noises` noise multipliers times `rounds` numbers of rounds around the plan.

    ConfigError unless the noise is Gaussian and independent over rounds. `progress`: called with (done, total) tables.
    """
    plan = question.plan()
    kind = plan.mechanism
    if kind.name not in ("gaussian", "distributed-gaussian") or kind.noise != "independent":
        raise ConfigError(
            f"--static with --mechanism {kind.name}, --noise {kind.noise}: the static page requires Gaussian noise "
            "that is independent over rounds. Remove --static: the served page answers for all mechanisms."
        )
    if plan.unit == "record":
        raise ConfigError("--static with --unit record: the static page is for clients. Remove --static.")
    found = planner_answer(question, account=quick_accountant(plan) if question.solved_number == "epsilon" else "best")
    noise = float(found["noise_multiplier"])
    across = axis_values(noise, noises, whole=False, most=math.inf)
    up = [int(one) for one in axis_values(found["rounds"], rounds, whole=True, most=plan.most_rounds or math.inf)]
    tables, asked = [], _grid_plans(question)
    for k, one in enumerate(asked):
        tables.append(_epsilon_table(one, across, up))
        progress(k + 1, len(asked))
    cohorts = sorted({table["cohort"] for table in tables if table["sampling"] != "all"})
    samplers = list(dict.fromkeys(table["sampling"] for table in tables))
    of_rounds, of_noise, of_epsilon = NUMBERS
    return planner_page(
        question.at_point(rounds=found["rounds"], noise_multiplier=min(across, key=lambda z: abs(z - noise))),
        numbers=(
            replace(of_rounds, slider=(up[0], up[-1])),
            replace(of_noise, slider=(across[0], across[-1]), shown_if={}),
            of_epsilon,
        ),
        people=(
            InputBox(
                name="cohort", label="Cohort: clients a round", choices=[(str(one), f"{one:,}") for one in cohorts],
                shown_if={"sampling": [name for name in samplers if name != "all"]},
            ),
            InputBox(name="sampling", label="Who takes part", choices=[(name, SAMPLERS[name]) for name in samplers]),
        ),
        details=(),
        grid={
            "tables": tables,
            "delta": upwards(plan.delta),
            "fixed": question.at_point().option_texts,
            "words": f"For {plan.clients:,} clients and delta {upwards(plan.delta)}, from a grid of answers in this "
            "page: between grid points the answer is for less noise and more rounds, so it is an upper bound.",
        },
    )  # fmt: skip


def _grid_plans(question: Question) -> list[Question]:
    """Return the plan and plans with samplings whose account is quick, each with half, equal and double cohort."""
    plan = question.plan()
    cohorts = sorted({min(max(round(share * plan.cohort), 1), plan.clients) for share in _COHORT_FACTORS})
    found = []
    for name in dict.fromkeys((plan.sampling.name, *_OTHER_SAMPLINGS)):
        change: dict[str, object] = {"sampling": name}
        if name != plan.sampling.name:
            change |= {"participations": None, "separation": None, "adjacency": None, "cohort_cap": None}
        for cohort in cohorts if name != "all" else [None]:
            other = question.at_point().with_options(**change, cohort=cohort)
            try:
                other.plan()
            except (AccountingError, DpfedError):
                continue
            found.append(other)
    return found


def _epsilon_table(question: Question, across: list[float], up: list[int]) -> dict[str, Any]:
    """Return epsilon at every grid point, a row for each number of rounds, with the conditions under which it holds."""
    plan = question.plan()
    account = quick_accountant(plan)
    rows = [
        [
            budget.solve(plan, noise_multiplier=z, rounds=count, accountant=account, with_lower_bound=False)
            for z in across
        ]
        for count in up
    ]
    notes = [found.notes for row in rows for found in row]
    chosen = "" if account == "best" else f" --accountant {account}"
    more = "" if account == "best" else f', accountant="{account}"'
    return {
        **plan_conditions(rows[0][0]),
        "sampling": plan.sampling.name,
        "account": ACCOUNTS[account],
        "noise": across,
        "noise_shown": [upwards(z) for z in across],
        "rounds": up,
        "cells": [[upwards(found.epsilon) for found in row] for row in rows],
        "brief": [[brief_epsilon(found.epsilon) for found in row] for row in rows],
        "notes": [note for note in notes[0] if all(note in others for others in notes)],
        "command": f"{question.command_line} --rounds {{rounds}} --noise-multiplier {{noise}}{chosen}",
        "python": f"{question.plan_code}\n"
        f"print(budget.epsilon(plan, noise_multiplier={{noise}}, rounds={{rounds}}{more}))",
    }
