"""`dpfed audit run`: check a finished run's files against its claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from accounting.rounding import upwards
from dpfed.audit.verdict import failed_checks_first
from dpfed.cli.output import Flag, Load, console, print_json, training_extra
from dpfed.config.own_code import load_files
from dpfed.errors import RunError

if TYPE_CHECKING:
    from dpfed.audit.run import RunAudit


def run(
    folder: Path,
    *,
    confidence: float = 0.95,
    out: Path | None = None,
    project: Path | None = None,
    load: Load = None,
    json: Flag = False,
) -> int:
    """Recompute epsilon from a run's ledger, check the run's files against the claim, and evaluate its canaries.

    The audit needs only the run folder; for fed-smp-topk it also needs the data, to recompute the first round's
    coordinates.

    Exit status 1 if the verdict is "fail", even if no report can be written. "pass" means that nothing in the
    files contradicts the claim. "inconclusive" means that a check could not be made, for example for a missing file.

    Example: dpfed audit run runs/dp-fedavg-digits

    Parameters
    ----------
    folder
        The folder that `dpfed run` wrote, or the ledger of a dpfed.ClientLevel.
    confidence
        A correct run fails with probability at most 1 - confidence, over all checks together.
    out
        Folder for audit.html and audit.png; default: the run folder. Files of a different audit are kept: the new ones
        are then named audit-2.html and audit-2.png.
    project
        The project ledger charged for the run (`dpfed run --ledger`): both ledgers are compared, release by
        release.
    load
        The Python file of your own that the run was started with; may be given again.
    json
        The outcome as one JSON document on standard output.
    """
    with training_extra("dpfed audit run"):
        from dpfed.audit.run import audit_run
        from dpfed.report.audit_run import write_audit_report
    load_files(load or [])
    found = audit_run(folder, confidence=confidence, project=project)
    page: Path | None = None
    try:
        page = write_audit_report(found, out or found.files.path)
    except RunError as error:  # the audit is complete: its outcome does not depend on this page
        console(to_stderr=True).print(f"No report was written: {error}", markup=False, highlight=False)
    if json:
        print_json(found.to_dict())
    else:
        _show_run_audit(found, page)
    return 1 if found.verdict == "fail" else 0


def _show_run_audit(found: RunAudit, page: Path | None) -> None:
    out = console()
    words = {True: "yes", False: "NO", None: "could not tell"}
    table = Table(title=f"{found.files.path}: {found.verdict_in_full}", show_lines=False)
    for heading in ("check", "holds", "detail"):
        table.add_column(heading, overflow="fold")
    for one in failed_checks_first(found.checks):
        table.add_row(one.name, words[one.passed], one.detail)
    out.print(table)
    out.print(
        f"claimed epsilon {upwards(found.claimed_epsilon)}, from the ledger alone {upwards(found.recomputed_epsilon)}, "
        f"delta {upwards(found.delta)}"
    )
    for remark in found.second_opinion[1]:
        out.print(remark)
    for note in found.notes:
        out.print(f"note: {note}")
    if found.not_checked:
        out.print(f"not checked in summary.json: {', '.join(found.not_checked)}")
    if page is not None:
        out.print(f"report, with plots: {page}")
