"""`dpfed audit flower`: test the differentially private strategies and mods of Flower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from accounting.rounding import downwards, upwards
from dpfed.cli.output import Flag, console, print_json, training_extra
from dpfed.errors import ConfigError
from dpfed.planner.whole_numbers import MaybeWholeNumber, WholeNumber

if TYPE_CHECKING:
    from dpfed.audit.functions.audit import FunctionAudit
    from dpfed.audit.others.flower import FlowerCase


def flower(
    name: str | None = None,
    *,
    trials: MaybeWholeNumber = None,
    seed: WholeNumber = 0,
    json: Flag = False,
) -> int:
    """Test Flower's differentially private strategies and mods on fixed updates, in this process and without Ray.

    For a strategy of your own app, audit dpfed.audit.others.flower.StrategyRound(make=...) with
    `dpfed audit upload`. Exit status 1 if a claim is refuted.

    Example: dpfed audit flower server-fixed

    Parameters
    ----------
    name
        Name of a strategy or mod; default: all.
    trials
        Number of rounds; default 6,000.
    seed
        Seed of all draws.
    json
        One JSON document on standard output.
    """
    with training_extra("dpfed audit"):
        from dpfed.audit.others.flower import CASES, audit_flower
    chosen = [case for case in CASES if name is None or case.name == name]
    if not chosen:
        raise ConfigError(f"{name!r}: must be one of {'; '.join(case.name for case in CASES)}.")
    found = []
    with console(to_stderr=True).status("starting Flower") as status:
        for case in chosen:
            found.append((case, audit_flower(case, trials=trials, seed=seed, progress=status.update)))
    if json:
        print_json({"results": [done.to_dict() | {"true_where": case.true_where} for case, done in found]})
    else:
        _show_cases(found)
    return 1 if any(done.verdict == "fail" for _, done in found) else 0


def _show_cases(found: list[tuple[FlowerCase, FunctionAudit]]) -> None:
    table = Table()
    for heading in ("Flower", "neighbours", "claimed epsilon", "at least", "verdict", "the claim is true for"):
        table.add_column(heading, overflow="fold")
    for case, done in found:
        shown = max(max(one.lower_bound, one.lower_bound_gdp * done.claim.is_gaussian) for one in done.tests)
        table.add_row(
            case.name,
            case.adjacency,
            upwards(done.claim.epsilon),
            downwards(shown),
            done.verdict_in_full,
            case.true_where,
        )
    console().print(table)
    for _, done in found:
        console().print(f"{done.method}: {done.verdict_in_full}. {done.as_text()}", highlight=False)
