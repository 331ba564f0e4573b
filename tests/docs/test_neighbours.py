"""A table with a column of epsilon states its neighbouring datasets, in a column, in the heading, or in its rows."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "experiments").rglob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
]
TABLE = re.compile(r"^(\|.*\|)\n\|[ :|-]+\|\n((?:\|.*\n?)*)", re.MULTILINE)
NAMED = re.compile(r"neighbours|add-remove|zero-out|replace-one|N\(0, 1\)")
SAID_ABOVE = {
    "| bound | trials | epsilon at least | holds because |",
    "| of a Gaussian of epsilon 4.3772 | trials or canaries | epsilon at least, median | smallest, largest | CPU s |",
    "| 10,000 cells | dpfed, s | dp-accounting, a cell, s | all, s (extrapolated) | largest relative difference "
    "| least epsilon over the truth |",
    "| setting | accountant | by | median s | times ours | noise multiplier | epsilon by dpfed |",
    "| rounds from epsilon 1.01, 100 of 6,000, noise 1.4 | by | median s | times ours | rounds |",
}
"""Headings of tables of statistics and timings whose text names the pair or the neighbours."""


def unnamed(text: str) -> list[str]:
    """Return the heading of each table with a column of epsilon that names no neighbours."""
    found = []
    for head, rows in TABLE.findall(text):
        if re.search(r"epsilon|ε", head) and not NAMED.search(head + rows):
            found.append(head)
    return found


def test_every_table_with_an_epsilon_names_its_neighbours() -> None:
    found = {head for page in PAGES for head in unnamed(page.read_text(encoding="utf-8"))}
    assert found == SAID_ABOVE


def test_a_table_without_neighbours_is_seen() -> None:
    assert unnamed("text\n\n| | epsilon |\n|---|--:|\n| a | 1.01 |\n") == ["| | epsilon |"]
    assert not unnamed("| | epsilon, zero-out |\n|---|--:|\n| a | 1.01 |\n")
