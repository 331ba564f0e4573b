"""Tables of docs/participation.md and docs/settings.md are what their scripts make of today's accounts."""

import re
from pathlib import Path

import pytest
from scripts import script

from accounting.mechanisms.adjacency import Adjacency
from dpfed.cli import status

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_page_has_the_matrix_that_the_script_makes():
    """Half a minute. Repair it by `python docs/support_matrix.py --write`."""
    made = script("docs/support_matrix.py")
    matrix = "\n".join(made.Matrix().lines()) + "\n"
    assert made.page_with(matrix) == (DOCS / "participation.md").read_text()


def test_a_few_cells_are_what_plans_answer():
    made = script("docs/support_matrix.py")
    matrix, lanes = made.Matrix(), made.SAMPLINGS["`balls-and-bins`, 3 lanes"]
    assert matrix.client(lanes, made.NOISES["3 bands"], Adjacency.ZERO_OUT) == "exact"
    assert matrix.client(lanes, made.NOISES["3 bands"], Adjacency.REPLACE_ONE) == "not analysed (1)"
    assert matrix.client(lanes, made.NOISES["2 buffers"], Adjacency.ZERO_OUT) == "refused (2)"
    assert made.stated(1.1, 1.0) == "certified, 10%"
    page = (DOCS / "participation.md").read_text()
    assert all(f". {reason}\n" in page for reason in matrix.reasons)


@pytest.mark.slow
def test_the_page_of_settings_has_the_answers_of_the_command_and_its_lines_run():
    """Repair it by `python docs/your_settings.py --write`."""
    made = script("docs/your_settings.py")
    assert made.page_with(made.table()) == made.PAGE.read_text()
    for kind, settings in made.KINDS.items():
        for line in re.findall(r"dpfed budget [^;]*", made.answer(settings).dpfed):
            if not {"N", "M", "T"} & set(line.split()):
                assert status(line.split()[1:]) == 0, kind


def test_an_answer_of_the_page_of_settings():
    made = script("docs/your_settings.py")
    kind = "FLIP: its defaults"
    assert f"| {made.words(made.answer(made.KINDS[kind]))} |" in made.PAGE.read_text()


def test_the_table_of_loops_has_the_reasons_of_the_training_code():
    """Repair it by `python docs/loops.py --write`."""
    made = script("docs/loops.py")
    assert made.page_with(made.table()) == made.PAGE.read_text()
