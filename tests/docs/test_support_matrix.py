"""The support matrix of docs/participation.md is what its script makes of today's accounts."""

import importlib.util
from pathlib import Path

import pytest

from accounting.mechanisms.adjacency import Adjacency

DOCS = Path(__file__).parents[2] / "docs"


def script():
    spec = importlib.util.spec_from_file_location("support_matrix", DOCS / "support_matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_has_the_matrix_that_the_script_makes():
    """Half a minute. Repair it by `python docs/support_matrix.py --write`."""
    made = script()
    matrix = "\n".join(made.Matrix().lines()) + "\n"
    assert made.page_with(matrix) == (DOCS / "participation.md").read_text()


def test_a_few_cells_are_what_plans_answer():
    made = script()
    matrix, lanes = made.Matrix(), made.SAMPLINGS["`balls-and-bins`, 3 lanes"]
    assert matrix.client(lanes, made.NOISES["3 bands"], Adjacency.ZERO_OUT) == "exact"
    assert matrix.client(lanes, made.NOISES["3 bands"], Adjacency.REPLACE_ONE) == "not analysed (1)"
    assert matrix.client(lanes, made.NOISES["2 buffers"], Adjacency.ZERO_OUT) == "refused (2)"
    assert made.stated(1.1, 1.0) == "certified, 10%"
    page = (DOCS / "participation.md").read_text()
    assert all(f". {reason}\n" in page for reason in matrix.reasons)
