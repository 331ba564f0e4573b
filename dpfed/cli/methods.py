"""`dpfed methods`: what can be run, and what is true of it."""

from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from dpfed.cli.output import console, print_json
from dpfed.methods import METHODS


def methods(*, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """The methods that `dpfed run` knows: what is sent, bits, unbiased or not, linear or not, how private.

    Example: dpfed methods --json

    Parameters
    ----------
    json
        One JSON list on standard output.
    """
    if json:
        print_json([method.to_dict() for method in METHODS.values()])
        return
    table = Table()
    for heading in ("method", "what a client sends"):
        table.add_column(heading, overflow="fold")
    table.add_column("bits/parameter", justify="right")
    for heading in ("unbiased", "linear", "private with"):
        table.add_column(heading, overflow="fold")
    for method in METHODS.values():
        table.add_row(
            method.name,
            method.what,
            f"{method.nominal_bits_per_parameter:.4g}",
            "yes" if method.unbiased else "no",
            "yes" if method.linear else "no",
            "; ".join(method.private_with) or "not private",
        )
    out = console()
    out.print(table)
    out.print(
        "unbiased: without clipping. linear: the server can decode the sum without seeing one upload, as secure "
        "aggregation needs.\nBits are at the preset's compression; a run reports its own."
    )
