"""`dpfed audit upload --load FILE.py NAME`: the audit of a user-defined function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from accounting import Adjacency, Gaussian
from accounting.rounding import downwards, upwards
from dpfed.audit.functions.claim import claim_of
from dpfed.audit.one_call import settings_beside, upload
from dpfed.audit.outcome import AnyAudit
from dpfed.audit.verdict import failed_checks_first
from dpfed.cli.output import console, print_json
from dpfed.report.audit import moved_release_text, write_audit


def audit_loaded_function(
    function: Callable[..., object],
    *,
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    adjacency: str | None,
    out: Path | None,
    json: bool,
    setting: dict[str, object],
) -> int:
    """Audit the loaded function, print the outcome, and return the exit status.

    These arguments override the claim declared on the function by @claim.
    """
    given = {key: value for key, value in setting.items() if value is not None}
    beside = settings_beside(function)
    if adjacency is None and (noise_multiplier is not None or epsilon is not None) and "claim" in beside:
        adjacency = str(claim_of(beside["claim"], adjacency=beside.get("adjacency")).adjacency)
    if delta is not None:
        given["delta"] = delta
    if noise_multiplier is not None:
        given["claim"] = Gaussian(noise_multiplier=noise_multiplier, adjacency=Adjacency.of(adjacency or "add-remove"))
    elif epsilon is not None:
        given["delta"] = given.get("delta") or beside.get("delta") or 1e-5
        given["claim"] = (epsilon, given["delta"])
    if adjacency is not None:
        given["adjacency"] = adjacency
    log = console(to_stderr=True)
    with log.status("starting the function's process") as status:
        done = upload(function, progress=status.update, **given)
    page = None if out is None else write_audit(done, out)
    if json:
        print_json(done.to_dict())
    else:
        show_audit(done, page)
    return 1 if done.verdict == "fail" else 0


def show_audit(done: AnyAudit, page: Path | None) -> None:
    """Print an audit by trials: the verdict, the table of pairs, the checks and the path of the report page."""
    out, claim = console(), done.claim
    out.print(f"{done.verdict_in_full}: {done.as_text()}", highlight=False)
    table = Table(title=f"{done.method}: {claim.description}, claimed epsilon {upwards(claim.epsilon)}")
    for heading in ("pair of neighbours", "score"):
        table.add_column(heading)
    for heading in ("gap", "trials", "epsilon at least", "if Gaussian"):
        table.add_column(heading, justify="right")
    table.add_column("claim")
    for one in done.tests:
        table.add_row(
            one.pair,
            one.score,
            f"{one.gap:.4g}",
            f"{one.trials:,}",
            downwards(one.lower_bound),
            downwards(one.lower_bound_gdp) if claim.is_gaussian else "–",
            "refuted" if one.rejected else "stands",
        )
    out.print(table)
    for check in failed_checks_first(done.checks):
        words = {True: "passed", False: "FAILED", None: "note"}[check.passed]
        out.print(f"{words}  {check.name}: {check.detail}", highlight=False)
    if words := moved_release_text(done):
        out.print(words, highlight=False)
    if page is not None:
        out.print(f"report: {page}", highlight=False)
