"""`dpfed budget --ledger`: the spent and remaining budget of a project, and the rounds of a plan that still fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounting.budget import Budget, Plan, with_second_opinion
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from accounting.compose.unit_currency import with_stream
from accounting.errors import BudgetSpent, CalibrationError
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import SingleRelease, parts_of
from accounting.rounding import downwards, upwards
from dpfed.cli.budget_tables import show_budget
from dpfed.cli.output import console, print_json
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import solve_budget
from dpfed.planner.question import Question
from dpfed.report.figures.budget import plot_budget


def project_budget(
    path: Path,
    options: Question,
    *,
    noise_schedule: tuple[float, ...] | None,
    accountant: Accountant,
    conversion: Conversion,
    plot: Path | None,
    json: bool,
    second_opinion: bool,
    precise: bool = False,
) -> None:
    """Print a project's budget and whether a plan still fits; the ledger is read without a lock, also during runs."""
    project, rounds, noise_multiplier = ProjectLedger.open(path), options.rounds, options.noise_multiplier
    record = {**project.to_dict(), "price": None}
    answer, plan, refused = None, None, None
    if options.cohort is not None or options.sampling == "all":
        terms = project.terms
        options = options.with_options(clients=project.ledger.header.clients, delta=terms.delta)
        if terms.unit is not None and options.adjacency is None:
            options = options.with_options(adjacency=str(terms.unit[0][0].adjacency))
        plan = options.plan(noise_schedule=noise_schedule, before=project.committed())
        coins = not plan.has_noise_multiplier
        if rounds is None and noise_multiplier is None and not coins:
            raise ConfigError("--cohort with --ledger: give --rounds, --noise-multiplier or both, too.")
        both = rounds is not None and (noise_multiplier is not None or coins)
        target = None if both else _epsilon_target(record)
        try:
            answer = solve_budget(plan, rounds, noise_multiplier, target, accountant, conversion, precise)
        except CalibrationError as error:
            raise CalibrationError(f"{path}: {error}") from None
        try:
            record["price"] = project.price(_planned_run(answer, project))
        except BudgetSpent as why:
            refused = str(why)
        if second_opinion:
            (answer,) = with_second_opinion([answer])
    elif rounds is not None or noise_multiplier is not None or plot is not None or second_opinion:
        raise ConfigError(
            "--rounds, --noise-multiplier, --plot or --second-opinion with --ledger require a plan. Give --cohort, too."
        )
    if plot is not None and plan is not None and answer is not None:
        plot_budget(plan, answer, plot)
    if json:
        print_json({**record, "plan": answer.to_dict() if answer else None})
        return
    for line in project_lines(record):
        console().print(line)
    if plan is not None and answer is not None:
        _show_answer(plan, answer, record, plot, refused)


def _epsilon_target(record: dict[str, Any]) -> float:
    if record["spent_epsilon"] >= record["epsilon"]:
        raise ConfigError(
            f"{record['ledger']}: epsilon {upwards(record['spent_epsilon'])} of {downwards(record['epsilon'])} is "
            "spent; no round fits any more."
        )
    return float(record["epsilon"])


def project_lines(record: Mapping[str, Any]) -> list[str]:
    """Return lines with a project's guarantee, its remaining units, and the epsilon of releases fixed in advance."""
    units, left = record["units"], record["units_left"]
    return [
        f"{record['ledger']}: epsilon {upwards(record['epsilon'])} at delta {upwards(record['delta'])} for any one of "
        f"{record['clients']} clients, neighbours: {record['adjacency']}; {record['releases']} releases",
        "no unit yet: the first release that is charged becomes the unit"
        if units is None and not record["releases"]
        else "no units: natural composition"
        if units is None
        else f"{left} of {units} units left ({record['unit']}); this holds even if runs are chosen by earlier results",
        f"if all releases were fixed in advance: epsilon {upwards(record['spent_epsilon'])} spent, "
        f"{downwards(record['left_epsilon'])} left",
        *(f"  {run}: {count} rounds" for run, count in record["runs"].items()),
        *(f"note: {note}" for note in record["notes"]),
    ]


def _planned_run(answer: Budget, project: ProjectLedger) -> tuple[tuple[SingleRelease, int], ...]:
    """Return the releases of the planned run without the project's earlier ones; a schedule gets a new stream name."""
    before = project.committed()
    found = Counter(dict(parts_of(answer.mechanism)))
    found -= Counter(dict(before.parts) if before is not None else {})
    return tuple((with_stream(release, "of a further run"), count) for release, count in found.items())


def _show_answer(plan: Plan, answer: Budget, record: dict[str, Any], plot: Path | None, refused: str | None) -> None:
    show_budget(plan, answer, [], [plot] if plot is not None else [])
    fits = answer.epsilon <= record["epsilon"]
    console().print(
        f"{answer.rounds} such rounds on top "
        + ("fit" if fits else f"DO NOT FIT: the project may spend {downwards(record['epsilon'])}")
        + ", if all releases had been fixed in advance."
    )
    if record["price"] is not None:
        console().print(f"As a further run they use {record['price']} of the {record['units_left']} units left.")
    elif refused is not None:
        console().print(f"As a further run: {refused}")
