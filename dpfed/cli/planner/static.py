"""The planner as one file: a page with a grid of answers in it, which takes the next dearer point of its grid.

Less noise costs no less: more Gaussian noise is less noise and an independent rest, which is post-processing. More
rounds cost no less: fewer are what the first of them release. So the epsilon of a point with at most that noise and at
least those rounds is an upper bound. Nothing is taken between cohorts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from accounting import budget
from accounting.errors import AccountingError
from accounting.rounding import upwards
from dpfed.cli.budget_tables import sampler_words
from dpfed.cli.output import console
from dpfed.cli.planner.answers import ACCOUNTS, answer, axis, brief, texts, unhurried
from dpfed.cli.planner.form import NUMBERS, SAMPLERS, InputBox
from dpfed.cli.planner.page import page_of_grid
from dpfed.cli.planner.question import Question, with_numbers
from dpfed.errors import ConfigError, DpfedError, RunError

_NOISES, _ROUNDS = 15, 13
_BESIDE = ("poisson", "fixed", "all", "cyclic")
_SHARES = (0.5, 1.0, 2.0)


def write_static(question: Question, path: Path) -> None:
    """Write the page. ConfigError for noise that is not Gaussian, RunError for a file that cannot be written."""
    from dpfed.run.durable_files import put

    page = static_page(question)
    try:
        put(path, page.encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None
    console(to_stderr=True).print(f"written: {path}")


def static_page(question: Question, *, noises: int = _NOISES, rounds: int = _ROUNDS) -> str:
    """The page with its answers, for so many noise multipliers and rounds around the plan."""
    plan = question.plan()
    noise = plan.mechanism
    if noise.name not in ("gaussian", "distributed-gaussian") or noise.noise != "independent":
        raise ConfigError(
            f"--static with --mechanism {noise.name}, --noise {noise.noise}: its page is for Gaussian noise that is "
            "independent over rounds. Leave out --static: the served page answers for all."
        )
    found = answer(question, account=unhurried(plan) if question.solved == "epsilon" else "best")
    across = axis(float(found["noise_multiplier"]), noises, whole=False, most=float("inf"))
    up = [int(one) for one in axis(found["rounds"], rounds, whole=True, most=plan.most_rounds or float("inf"))]
    asked = _plans(question)
    with Progress(console=console(to_stderr=True), transient=True) as progress:
        task = progress.add_task("computing the grid", total=len(asked) * len(across) * len(up))
        tables = [_table(one, across, up, lambda: progress.advance(task)) for one in asked]
    grid = {"tables": tables, "delta": upwards(plan.delta), "fixed": texts(_without_numbers(question))}
    return page_of_grid(_start(question, found, across), _boxes(tables, across, up), {**grid, "words": _words(plan)})


def _start(question: Question, found: dict[str, Any], across: list[float]) -> Question:
    """The plan itself, by rounds and noise, which are points of the grid."""
    nearest = min(across, key=lambda z: abs(z - float(found["noise_multiplier"])))
    return with_numbers(question, rounds=found["rounds"], noise_multiplier=nearest)


def _without_numbers(question: Question) -> Question:
    return with_numbers(question, rounds=None, noise_multiplier=None)


def _words(plan: budget.Plan) -> str:
    return (
        f"For {plan.clients:,} clients and delta {upwards(plan.delta)}, from a grid of answers that lies in this page: "
        "between its points it takes less noise and more rounds, so every number is an upper bound."
    )


def _plans(question: Question) -> list[Question]:
    """The plan's own sampler, and others whose account is quick, each with some cohorts."""
    plan = question.plan()
    cohorts = sorted({min(max(round(share * plan.cohort), 1), plan.clients) for share in _SHARES})
    found = []
    for name in dict.fromkeys((plan.sampling.name, *_BESIDE)):
        change: dict[str, Any] = {"sampling": name}
        if name != plan.sampling.name:
            change |= {"participations": None, "separation": None, "adjacency": None}
        for cohort in cohorts if name != "all" else [None]:
            other = _without_numbers(question).changed(**change, cohort=cohort)
            try:
                other.plan()
            except (AccountingError, DpfedError):
                continue
            found.append(other)
    return found


def _table(question: Question, across: list[float], up: list[int], done: Any) -> dict[str, Any]:
    """Epsilon at every point; rows are rounds."""
    plan = question.plan()
    account = unhurried(plan)
    cells, notes = [], []
    for count in up:
        row = []
        for z in across:
            stated = budget.solve(plan, noise_multiplier=z, rounds=count, accountant=account, with_lower_bound=False)
            row.append(stated.epsilon)
            notes.append(stated.notes)
            done()
        cells.append(row)
    chosen = "" if account == "best" else f" --accountant {account}"
    more = "" if account == "best" else f', accountant="{account}"'
    return {
        "sampling": plan.sampling.name,
        "cohort": plan.cohort,
        "adjacency": str(plan.adjacency),
        "sensitivity": f"{plan.adjacency.sensitivity_in_clips:g} C",
        "words": f"{sampler_words(plan)[0].upper()}{sampler_words(plan)[1:]}.",
        "account": "default account" if account == "best" else ACCOUNTS[account],
        "noise": across,
        "rounds": up,
        "cells": [[upwards(one) for one in row] for row in cells],
        "brief": [[brief(one) for one in row] for row in cells],
        "notes": [note for note in notes[0] if all(note in others for others in notes)],
        "command": f"{question.command} --rounds {{rounds}} --noise-multiplier {{noise}}{chosen}",
        "python": f"{question.python_plan}\n"
        f"print(budget.epsilon(plan, noise_multiplier={{noise}}, rounds={{rounds}}{more}))",
    }


def _boxes(tables: list[dict[str, Any]], across: list[float], up: list[int]) -> tuple[InputBox, ...]:
    rounds, noise, epsilon = NUMBERS
    cohorts = sorted({table["cohort"] for table in tables if table["sampling"] != "all"})
    there = dict.fromkeys(table["sampling"] for table in tables)
    return (
        replace(rounds, slider=(up[0], up[-1])),
        replace(noise, slider=(across[0], across[-1]), when={}),
        epsilon,
        InputBox(
            name="cohort", label="Cohort: clients a round", choices=[(str(one), f"{one:,}") for one in cohorts],
            when={"sampling": [name for name in there if name != "all"]},
        ),
        InputBox(name="sampling", label="Who takes part", choices=[(name, SAMPLERS[name]) for name in there]),
    )  # fmt: skip
