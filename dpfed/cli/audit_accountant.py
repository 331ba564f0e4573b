"""`dpfed audit accountant`: test whether an accountant states less than the true epsilon."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from accounting.rounding import downwards, upwards
from dpfed.audit.others.accountants import audit_accountant
from dpfed.cli.output import Flag, console, print_json


def accountant(
    what: str,
    *,
    seconds: float = 60.0,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    json: Flag = False,
) -> int:
    """Test an accountant in about a hundred settings with proven bounds: edge cases, samplers, adjacencies, integers.

    A stated epsilon below a proven lower bound is refuted, and a pair of neighbours shows why: exit status 1.

    Example: dpfed audit accountant dp-accounting

    Parameters
    ----------
    what
        dp-accounting, opacus, flower (with flwr installed), or your MODULE:FUNCTION in the current folder or installed:
        f(*, sampling, adjacency, clients, cohort, noise_multiplier, rounds, delta, releases_per_cohort). It returns
        epsilon, or None if it has no answer.
    seconds
        Time limit in seconds of one answer.
    every
        Print a row for every setting, not only for settings that are refuted or failed.
    json
        One JSON document on standard output.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    log = console(to_stderr=True)
    with log.status("starting the accountant") as status:
        found = audit_accountant(what, seconds=seconds, progress=status.update)
    if json:
        print_json(found.to_dict())
        return 1 if found.verdict == "fail" else 0
    out = console()
    out.print(f"{found.verdict_in_full}: {found.as_text()}", highlight=False)
    table = Table()
    for heading in ("accountant", "setting"):
        table.add_column(heading)
    for heading in ("stated", "at least", "at most"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    table.add_column("shown by", overflow="fold")
    for one in found.cases:
        if every or one.verdict in ("refuted", "error"):
            table.add_row(
                one.accountant,
                str(one.setting),
                "–" if one.stated_epsilon is None else upwards(one.stated_epsilon),
                downwards(one.proven.at_least),
                upwards(one.proven.at_most),
                one.verdict,
                one.setting.neighbours if one.verdict == "refuted" else one.detail,
            )
    if table.row_count:
        out.print(table)
    counts = found.to_dict()["counts"]
    out.print(", ".join(f"{count} {kind}" for kind, count in counts.items()), highlight=False)
    return 1 if found.verdict == "fail" else 0
