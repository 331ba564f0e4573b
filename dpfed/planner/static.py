"""The planner as one file: a page with a grid of answers, which takes the next larger epsilon of its grid.

More noise never increases epsilon: more Gaussian noise is less noise plus independent noise, which is post-processing.
Fewer rounds never increase epsilon: they are the first of more rounds. So the epsilon of a grid point with at most the
noise and at least the rounds is an upper bound. Nothing is interpolated between cohorts.
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
from dpfed.planner.answers import ACCOUNTS, answer, axis, brief, described, unhurried
from dpfed.planner.page import NUMBERS, SAMPLERS, InputBox, planner_page
from dpfed.planner.question import Question

_NOISES, _ROUNDS = 15, 13
_BESIDE = ("poisson", "fixed", "all", "cyclic")
_SHARES = (0.5, 1.0, 2.0)


def static_page(
    question: Question,
    *,
    noises: int = _NOISES,
    rounds: int = _ROUNDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """Return the page with its answers, for these numbers of noise multipliers and rounds around the plan.

    ConfigError for noise that is not Gaussian. `progress` is called with the points done and all points.
    """
    plan = question.plan()
    kind = plan.mechanism
    if kind.name not in ("gaussian", "distributed-gaussian") or kind.noise != "independent":
        raise ConfigError(
            f"--static with --mechanism {kind.name}, --noise {kind.noise}: its page is for Gaussian noise that is "
            "independent over rounds. Leave out --static: the served page answers for all."
        )
    if plan.unit == "record":
        raise ConfigError("--static with --unit record: its page is about clients. Leave out --static.")
    found = answer(question, account=unhurried(plan) if question.solved == "epsilon" else "best")
    noise = float(found["noise_multiplier"])
    across = axis(noise, noises, whole=False, most=math.inf)
    up = [int(one) for one in axis(found["rounds"], rounds, whole=True, most=plan.most_rounds or math.inf)]
    tables, asked = [], _plans(question)
    for k, one in enumerate(asked):
        tables.append(_table(one, across, up))
        progress(k + 1, len(asked))
    cohorts = sorted({table["cohort"] for table in tables if table["sampling"] != "all"})
    samplers = list(dict.fromkeys(table["sampling"] for table in tables))
    of_rounds, of_noise, of_epsilon = NUMBERS
    return planner_page(
        question.at(rounds=found["rounds"], noise_multiplier=min(across, key=lambda z: abs(z - noise))),
        numbers=(
            replace(of_rounds, slider=(up[0], up[-1])),
            replace(of_noise, slider=(across[0], across[-1]), when={}),
            of_epsilon,
        ),
        people=(
            InputBox(
                name="cohort", label="Cohort: clients a round", choices=[(str(one), f"{one:,}") for one in cohorts],
                when={"sampling": [name for name in samplers if name != "all"]},
            ),
            InputBox(name="sampling", label="Who takes part", choices=[(name, SAMPLERS[name]) for name in samplers]),
        ),
        details=(),
        grid={
            "tables": tables,
            "delta": upwards(plan.delta),
            "fixed": question.at().texts,
            "words": f"For {plan.clients:,} clients and delta {upwards(plan.delta)}, from a grid of answers in this "
            "page: between grid points the answer is for less noise and more rounds, so numbers are upper bounds.",
        },
    )  # fmt: skip


def _plans(question: Question) -> list[Question]:
    """Return the plan's sampling, and others whose account is quick, each with some cohorts."""
    plan = question.plan()
    cohorts = sorted({min(max(round(share * plan.cohort), 1), plan.clients) for share in _SHARES})
    found = []
    for name in dict.fromkeys((plan.sampling.name, *_BESIDE)):
        change: dict[str, object] = {"sampling": name}
        if name != plan.sampling.name:
            change |= {"participations": None, "separation": None, "adjacency": None, "cohort_cap": None}
        for cohort in cohorts if name != "all" else [None]:
            other = question.at().changed(**change, cohort=cohort)
            try:
                other.plan()
            except (AccountingError, DpfedError):
                continue
            found.append(other)
    return found


def _table(question: Question, across: list[float], up: list[int]) -> dict[str, Any]:
    """Return epsilon at every point, a row for each number of rounds, and the conditions under which it holds."""
    plan = question.plan()
    account = unhurried(plan)
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
        **described(rows[0][0]),
        "sampling": plan.sampling.name,
        "account": ACCOUNTS[account],
        "noise": across,
        "noise_shown": [upwards(z) for z in across],
        "rounds": up,
        "cells": [[upwards(found.epsilon) for found in row] for row in rows],
        "brief": [[brief(found.epsilon) for found in row] for row in rows],
        "notes": [note for note in notes[0] if all(note in others for others in notes)],
        "command": f"{question.command} --rounds {{rounds}} --noise-multiplier {{noise}}{chosen}",
        "python": f"{question.python_plan}\n"
        f"print(budget.epsilon(plan, noise_multiplier={{noise}}, rounds={{rounds}}{more}))",
    }
