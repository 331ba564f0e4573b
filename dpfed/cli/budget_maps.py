"""`dpfed budget --over`: a heat map of epsilon over two axes."""

from __future__ import annotations

from pathlib import Path

from accounting.budget import Plan
from accounting.caveats import delta_note
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from accounting.rounding import upwards
from dpfed.cli.output import console, print_json
from dpfed.errors import ConfigError
from dpfed.report.figures.budget import MapAxis, budget_map, plot_budget_map
from dpfed.report.privacy_text import sampler_text


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
    for note in delta_note(plan.delta, units=plan.clients):
        console().print(f"note: {note}")
    console().print(f"plot: {plot}")
