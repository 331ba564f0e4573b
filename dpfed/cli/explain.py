"""`dpfed explain`: what settings of another library promise."""

from __future__ import annotations

import math

from rich.table import Table

from accounting.rounding import downwards, upwards
from dpfed.cli.output import Flag, console, print_json
from dpfed.explain.account import Explanation
from dpfed.explain.settings import explain as explain_settings


def explain(settings: str, *, json: Flag = False) -> None:
    """Explain what settings of Flower, FLIP, NVFlare, Opacus, TFF, pfl or jax_privacy promise.

    Prints the largest epsilon over everything that the settings leave open, each opening, what is missing or
    contradictory, and the dpfed line that replaces the settings.

    Example: dpfed explain examples/flower_settings.toml

    Parameters
    ----------
    settings
        A TOML or JSON file of settings, or module:object for a strategy that a module makes.
    json
        Print one JSON document.
    """
    found = explain_settings(settings)
    if json:
        print_json(found.to_dict())
        return
    _show(found)


def _show(found: Explanation) -> None:
    out = console()
    table = Table(show_header=False, title=f"{found.library}: what these settings promise")
    worst = found.worst
    table.add_row("Unit", f"one {worst.unit}")
    of_one = "Epsilon of one round, at most" if any("one round" in one for one in found.missing) else ""
    table.add_row(of_one or "Epsilon, at most", _epsilon_text(found.epsilon))
    table.add_row("worst reading", f"{worst.adjacency}, {worst.sampling}, delta {upwards(worst.delta)}")
    if 0 < found.at_least < math.inf and not found.unbounded:
        table.add_row("Epsilon, at least", f"{downwards(found.at_least)} (whichever reading ran)")
    for words in found.unbounded:
        table.add_row("Unbounded", words)
    for opening in found.openings:
        table.add_row("Left open", f"{opening.name} (worst: {opening.changes[0][0]})")
    for words, epsilon in found.alone[1:]:  # the first alone is the first step
        table.add_row(f"if only {words}", _epsilon_text(epsilon))
    for words, epsilon in found.steps:
        table.add_row(f"if {words}" if not words.startswith("and") else words, _epsilon_text(epsilon))
    for words in found.missing:
        table.add_row("Missing", words)
    for words in found.contradictions:
        table.add_row("Contradiction", words)
    table.add_row("With dpfed", found.dpfed)
    out.print(table)


def _epsilon_text(epsilon: float) -> str:
    return upwards(epsilon) if math.isfinite(epsilon) else "none: nothing bounds it"
