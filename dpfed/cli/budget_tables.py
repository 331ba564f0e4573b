"""Tables and heat maps of `dpfed budget`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from accounting.budget import Budget, Plan
from accounting.caveats import EPSILON_NOTE_END, delta_note
from accounting.compose import profiles, readings
from accounting.compose.accountant import Accountant
from accounting.compose.adaptive import HYPOTHESIS
from accounting.compose.rdp import Conversion
from accounting.rounding import downwards, upwards
from dpfed.cli.output import console, print_json, table_of
from dpfed.errors import ConfigError
from dpfed.report.figures.budget import MapAxis, budget_map, plot_budget_map
from dpfed.report.privacy_text import factors_text, readings_text, sampler_text


def show_map(
    plan: Plan,
    over: tuple[str, ...],
    given: dict[str, float | None],
    accountant: Accountant,
    conversion: Conversion,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    """Draw the heat map over two axes; `given`: noise multiplier and rounds as given on the command line, else None."""
    axes = [MapAxis.from_text(text) for text in over]
    names = {axis.name for axis in axes}
    if len(axes) != 2 or len(names) != 2:
        raise ConfigError("--over: give it exactly twice, for two different axes.")
    if plot is None and not json:
        raise ConfigError("--over needs --plot FILE.png (or --json).")
    for name, value in given.items():
        if (value is None) != (name in names):
            what = "is an axis. Remove it" if name in names else "is no axis. Give it"
            raise ConfigError(f"--{name} with --over {', '.join(sorted(names))}: {name} {what}.")
    fixed = {name: value for name, value in given.items() if value is not None}
    found = budget_map(plan, (axes[0], axes[1]), fixed=fixed, accountant=accountant, conversion=conversion)
    if plot is not None:
        plot_budget_map(found, plot)
    if json:
        print_json(found.to_dict())
        return
    low, high = (upwards(end) for end in (found.epsilon.min(), found.epsilon.max()))
    console().print(f"epsilon from {low} to {high} over {' x '.join(axis.name for axis in axes)}")
    console().print(f"for {sampler_text(plan)}; neighbours: {plan.adjacency}, unit client; delta {upwards(plan.delta)}")
    for note in (*found.notes, *delta_note(plan.delta, units=plan.clients)):
        console().print(f"note: {note}")
    console().print(f"plot: {plot}")


_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_NO_GUARANTEE = "not a guarantee: "
_SECOND = "second opinion "  # prefix of notes that the table's column "second opinion" already shows


def show_budget(plan: Plan, answer: Budget, rows: list[Budget], plots: Sequence[Path] = ()) -> None:
    """Print the answer as text, and `rows`, if any, as a table of accountants."""
    out = console()
    together = "  of all releases together" if plan.before is not None else ""
    out.print(
        f"[bold]epsilon {upwards(answer.epsilon)}[/]{together}  {_noise_text(answer)}  "
        f"rounds {answer.rounds}  delta {upwards(plan.delta)}"
        + ("" if answer.valid else "  [bold red]NOT A GUARANTEE[/]"),
        markup=True,
    )
    out.print(
        f"for {sampler_text(plan)}; neighbours: {plan.adjacency}, unit {plan.unit}, "
        f"sensitivity {answer.to_dict()['sensitivity_in_clips']:g} C; accountant: {answer.accountant}"
        + (f", {answer.conversion} conversion at order {answer.order:g}" if answer.conversion else "")
    )
    if answer.lower_bound is not None:
        out.print(f"no account of the same run can state less than {downwards(answer.lower_bound)}")
    if answer.readings is not None:
        for line in readings_text(answer.readings):
            out.print(line)
    for note in answer.notes:
        out.print(f"note: {note}")
    if rows:
        out.print(_accountant_table(rows, said=(*answer.notes, HYPOTHESIS)))
        if HYPOTHESIS not in answer.notes and any(HYPOTHESIS in row.notes for row in rows):
            out.print(f"note: {HYPOTHESIS}")
        marked = " Rows marked 'no' are no guarantees; their notes give the reason."
        out.print(
            "Only the rows with your run's sampler and adjacency hold for your run: an epsilon of Poisson sampling\n"
            f"does not hold for fixed-size cohorts.{'' if all(row.valid for row in rows) else marked}"
        )
    for plot in plots:
        out.print(f"plot: {plot}")


def epsilon_delta_pairs(answer: Budget) -> list[dict[str, float]]:
    """Return pairs (epsilon, delta) of the answer's guarantee, from 0 to three times its epsilon, rounded upwards."""
    claim = profiles.profile(answer.mechanism)
    at = [float(upwards(share * answer.epsilon)) for share in _SHARES]
    return [{"epsilon": one, "delta": min(float(upwards(claim(one))), 1.0)} for one in at]


def show_pairs(answer: Budget) -> None:
    """Print the pairs (epsilon, delta) of the guarantee as a table, so that a reader can choose another delta."""
    table = table_of("epsilon", "delta", right=("epsilon", "delta"))
    for pair in epsilon_delta_pairs(answer):
        table.add_row(upwards(pair["epsilon"]), upwards(pair["delta"]))
    console().print(table)


def show_group(answer: Budget, size: int) -> None:
    """Print epsilon for a group of `size` clients, and the largest advantage of membership tests of one client."""
    claim = profiles.profile(answer.mechanism)
    delta = answer.plan.delta
    together = readings.epsilon_at(readings.group_profile(claim, size), delta)
    console().print(
        f"for {size} clients at once: epsilon {upwards(together)} at delta {upwards(delta)}; for one client: no "
        f"membership test has a true positive rate more than {upwards(readings.advantage(claim))} above its false one"
    )


def _noise_text(answer: Budget) -> str:
    if answer.noise_multiplier is not None:
        schedule = answer.plan.noise_schedule
        times = "" if schedule is None else f" times {factors_text(schedule)} in equal parts"
        return f"noise multiplier {upwards(answer.noise_multiplier)}{times}"
    record = answer.to_dict()
    samples = f"{record['dimension']:,} Bernoulli samples in [{record['edge']:g}, {1 - record['edge']:g}]"
    return f"{record['mechanism']} of d = {samples}"


def _accountant_table(rows: list[Budget], *, said: tuple[str, ...]) -> Table:
    """Return the table of rows without the notes in `said`, except notes why a row is no guarantee."""
    asked = rows[0].second_opinion is not None
    numbers = ("epsilon", "at least", *(("second opinion",) if asked else ()))
    headings = ("sampler", "neighbours", "sensitivity", "accountant", "conversion", *numbers, "guarantee", "notes")
    title = f"noise multiplier {upwards(rows[0].noise_multiplier)}, {rows[0].rounds} rounds"
    table = table_of(*headings, title=title, right=numbers)
    previous = None
    for row in rows:
        record = row.to_dict()
        if previous not in (None, row.plan.sampling.name):
            table.add_section()
        previous = row.plan.sampling.name
        table.add_row(
            row.plan.sampling.name,
            record["adjacency"],
            f"{record['sensitivity_in_clips']:g} C",
            row.accountant,
            row.conversion or "–",
            upwards(row.epsilon),
            downwards(row.lower_bound),
            *([upwards(row.second_opinion.epsilon)] if asked and row.second_opinion is not None else []),
            "yes" if row.valid else "no",
            _notes_cell(row, said),
        )
    return table


def _notes_cell(row: Budget, said: tuple[str, ...]) -> str:
    """Return the notes of a row that no other column shows, shortened if epsilon is very large."""
    large = any(note.endswith(EPSILON_NOTE_END) for note in row.notes)
    notes = [
        note.removeprefix(_NO_GUARANTEE)
        for note in row.notes
        if note.startswith(_NO_GUARANTEE) or not (note in said or note.startswith(_SECOND))
        if not note.endswith(EPSILON_NOTE_END)
    ]
    return "; ".join([*notes, *([f"allows {EPSILON_NOTE_END}"] if large else [])])
