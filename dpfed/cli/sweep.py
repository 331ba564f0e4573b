"""`dpfed sweep`: all runs of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from dpfed.cli.output import console, print_json
from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from dpfed.sweep.plan import Plan


def sweep(
    experiment: Path,
    *,
    profile: str | None = None,
    out: Path | None = None,
    jobs: Annotated[int | None, Parameter(negative="")] = None,
    only: Annotated[list[str] | None, Parameter(negative="")] = None,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a table or a figure: every row at every point of its axes, in parallel, each in a run folder of its own.

    The same command again goes on where it stopped. `dpfed report DIR` makes the page of it.

    Example: dpfed sweep experiments/fed-smp/table-1.toml --profile smoke --dry-run

    Parameters
    ----------
    experiment
        The TOML file of an experiment (docs/experiments.md).
    profile
        A smaller version that the file has: smoke, cpu, ...; default: full, if there is one.
    out
        Where the run folders go; default: runs/, named by the file and the profile.
    jobs
        Runs at a time; default: one for each GPU, or else for each CPU core.
    only
        This row alone; may be given again.
    set
        table.key=value on top of every configuration; may be given again.
    dry_run
        Check every configuration, as far as that needs no data, say what would run, and stop.
    json
        What was run, as one JSON document on standard output.
    """
    try:
        import torch  # noqa: F401

        from dpfed.sweep.plan import plan
    except ImportError as error:
        raise ConfigError(f"`dpfed sweep` needs the training extra ({error}): pip install 'dpfed[train]'.") from None
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be at least 1.")
    planned = plan(experiment, profile=profile, out=out, settings=set or [], only=only or [])
    if dry_run:
        print_json(planned.to_dict()) if json else _show_plan(planned)
        return 0
    raise ConfigError("not built yet: give --dry-run.")


def _show_plan(planned: Plan) -> None:
    out = console()
    table = Table(title=f"{planned.title}: {len(planned.grid.runs)} runs in {planned.folder}")
    for heading in ("row", "at", "folder", "state"):
        table.add_column(heading, overflow="fold")
    for one in planned.to_dict()["runs"]:
        table.add_row(one["row"], _words(one["at"]), one["folder"], one["state"])
    out.print(table)
    if planned.note:
        out.print(f"profile {planned.profile}: {planned.note}")


def _words(at: dict[str, Any]) -> str:
    return ", ".join(f"{name.removeprefix('run.')} {value}" for name, value in at.items())
