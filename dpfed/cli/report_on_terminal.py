"""Statements and tables of runs on a terminal. Loads the training extra."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from dpfed.cli.output import console, print_json, table_of, write_file
from dpfed.errors import ConfigError
from dpfed.records.summary import read_finished
from dpfed.report import registry_entry as statements
from dpfed.report.collection import RunCollection
from dpfed.report.pack import write_pack
from dpfed.report.privacy_card import differing_conditions
from dpfed.report.statistics import TUNED, group_mean, groups_of


def write_statements(
    folders: Sequence[Path],
    *,
    card: Path | None,
    registry: Path | None,
    pack: Path | None,
    about: Path | None,
    json: bool,
) -> None:
    """Write the model card, the registry entry and the pack of one run, and print the entries without an answer."""
    if len(folders) != 1:
        raise ConfigError(
            f"--card, --registry and --pack state the privacy of one run; {len(folders)} folders were given."
        )
    answers, found = statements.read_about(about), read_finished(folders[0])
    if not json:
        answers = _ask_missing(answers)
    written = []
    if registry is not None:
        written.append((registry, statements.to_yaml(statements.registry_entry(folders[0], found, answers))))
    if card is not None:
        written.append((card, statements.model_card(found, answers)))
    for file, text in written:
        write_file(file, text)
    if pack is not None:
        written.append((write_pack(folders[0], found, answers, pack), ""))
    if json:
        print_json({"files": [str(file) for file, _ in written], "missing": list(answers.missing)})
        return
    out = console()
    for file, _ in written:
        out.print(f"written: {file}")
    if answers.missing:
        out.print("not answered and marked in the files; answer in a TOML file (--about FILE.toml):")
        for key in answers.missing:
            out.print(f"  {key} = ...    # {statements.QUESTIONS[key]}")


def _ask_missing(answers: statements.StatementAnswers) -> statements.StatementAnswers:
    """Prompt for the missing entries on a terminal; without a terminal, return the answers unchanged."""
    if not answers.missing or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return answers
    out = console()
    out.print("These questions are not answered by the run. Enter skips a question, Ctrl-D skips the rest.")
    found = statements.ask_questions(answers, read=input, say=out.print)
    if typed := {key: value for key, value in found.answers.items() if key not in answers.answers}:
        out.print(f"\nSave these answers as a file for --about:\n{tomli_w.dumps(typed)}")
    return found


def show_collection(found: RunCollection, page: Path, *, json: bool) -> None:
    """Print the table of all rows and quantities, as text or as JSON."""
    records = []
    beside = ("published", "difference") if found.published else ()
    numbers = ("ours", "seeds", *beside)
    table = table_of("row", "quantity", *numbers, title=found.title, right=numbers)
    for group in groups_of(found):
        for key in found.quantities:
            one = group_mean(group, key, found)
            there = one.published
            published = ("–" if there is None else f"{there.value:g}", one.shown_difference)
            holds = f" ({'; '.join(group.conditions)})" if key == "epsilon" and one.mean is not None else ""
            table.add_row(
                group.name,
                one.quantity.heading + holds,
                one.shown_mean + ("" if one.shown_std is None else f" ± {one.shown_std:.{one.digits}f}"),
                str(one.n),
                *(published if beside else ()),
            )
            records.append(
                {
                    "row": group.row,
                    "folders": [str(run.folder) for run in group.runs],
                    "at": dict(group.at),
                    "epsilon_holds_for": list(group.conditions),
                    "quantity": key,
                    "unit": one.quantity.unit,
                    "n": one.n,
                    "mean": one.mean,
                    "std": one.std,
                    "published": None if there is None else there.value,
                    "difference": one.difference,
                }
            )
    if json:
        print_json(
            {
                "title": found.title,
                "page": str(page),
                "differences": list(found.difference_lines),
                "table": records,
                "missing": len(found.missing_runs),
            }
        )
        return
    out = console()
    if words := differing_conditions([(run.row, run.summary) for run in found.runs]):
        out.print(words)
    out.print(table)
    if found.difference_lines:
        for group in groups_of(found):
            out.print(f"{group.name}: {', '.join(str(run.folder) for run in group.runs)}")
        out.print("differences between the runs:")
        for words in found.difference_lines:
            out.print(f"  {words}")
    if found.missing_runs:
        out.print(f"not finished: {len(found.missing_runs)} of {len(found.missing_runs) + len(found.runs)} runs")
    if found.tuned_choices and any(run.summary.epsilon is not None for run in found.runs):
        out.print(TUNED)
    out.print(f"page, with figures: {page}")
