"""`dpfed diagnose`: find in a run's files why the run does not learn."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from dpfed.cli.output import Flag, console, print_json

if TYPE_CHECKING:
    from dpfed.report.diagnosis import Cause, EvidenceMeasure


def diagnose(folder: Path, *, json: Flag = False) -> None:
    """Find why a run does not learn: noise, clip norm, learning rate or budget, and the key to change.

    Lines marked "operator" were computed from diagnostics.jsonl, which no epsilon covers: do not publish them.

    Example: dpfed diagnose runs/fed-smp-randk-digits

    Parameters
    ----------
    folder
        The folder of a run, finished, interrupted or still running.
    json
        Measures and findings as one JSON document on standard output.
    """
    from dpfed.report.diagnosis import evidence_of, is_learning, likely_causes, measures_of

    found = evidence_of(folder)
    findings, learning = likely_causes(found), is_learning(found)
    if json:
        print_json(
            {
                "folder": str(folder),
                "learning": learning,
                "cause": findings[0].cause if findings else None,
                "findings": [asdict(one) for one in findings],
                "evidence": asdict(found),
            }
        )
        return
    _show_findings(measures_of(found), findings, learning, found.nothing_learned)


def _show_findings(
    measures: list[EvidenceMeasure], findings: list[Cause], learning: bool | None, nothing_learned: str | None
) -> None:
    out = console()
    table = Table("measure", "value", "who may see it")
    for measure in measures:
        table.add_row(measure.name, measure.value, "operator" if measure.operator_only else "anyone")
    out.print(table)
    state = {
        True: "The run learns, but these causes may limit it:" if findings else "The run learns.",
        False: "The run hardly learns.",
        None: "There are too few evaluations to decide whether the run learns.",
    }
    out.print(nothing_learned or state[learning])
    if not findings:
        out.print("No cause was found: docs/report.md lists causes that are not checked (data, network, bugs).")
    for number, one in enumerate(findings, start=1):
        out.print(f"{number}. {one.cause}{' (operator)' if one.operator_only else ''}: {one.words}")
        out.print(f"   change {one.key}: {one.advice}")
