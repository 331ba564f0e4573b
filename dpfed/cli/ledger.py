"""`dpfed ledger`: one privacy budget that several runs on the same clients draw from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from accounting.caveats import caveats
from accounting.project import Project
from accounting.rounding import downwards, upwards
from dpfed.cli.output import console, print_json

ledger = App(name="ledger", help="One privacy budget for several runs on the same clients, also at the same time.")


@ledger.command
def create(path: Path, *, clients: int, epsilon: float, delta: float | None = None) -> None:
    """A new project ledger; runs draw from it with `dpfed run ... --ledger PATH`.

    Example: dpfed ledger create project.jsonl --clients 650 --epsilon 3

    Parameters
    ----------
    path
        The file, which must not be there yet.
    clients
        How many clients the runs have, all the same ones.
    epsilon
        What all runs together may spend on any one client.
    delta
        Default: clients^-1.1.
    """
    project = Project.create(path, clients=clients, epsilon=epsilon, delta=clients**-1.1 if delta is None else delta)
    console().print(
        f"{path}: epsilon {downwards(epsilon)} at delta {upwards(project.terms.delta)} for {clients} clients"
    )
    for note in caveats(epsilon=epsilon, delta=project.terms.delta, units=clients):
        console().print(f"note: {note}")


@ledger.command
def show(path: Path, *, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """What a project has spent, and which run how often.

    Example: dpfed ledger show project.jsonl

    Parameters
    ----------
    path
        The project's ledger.
    json
        One JSON document on standard output.
    """
    record = Project.open(path).to_dict()
    if json:
        print_json(record)
        return
    out = console()
    out.print(
        f"{path}: epsilon {upwards(record['spent_epsilon'])} of {downwards(record['epsilon'])} spent at delta "
        f"{upwards(record['delta'])}, {record['releases']} releases on {record['clients']} clients, "
        f"{record['adjacency']}"
    )
    for run, count in record["runs"].items():
        out.print(f"  {run}: {count}")
    for note in record["notes"]:
        out.print(f"note: {note}")
