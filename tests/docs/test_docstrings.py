"""Docstrings of privacy functions: what they must state (benchmarks/docstrings.py), and their examples."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import scripts

ROOT = Path(__file__).parents[2]
ROOMS = ("accounting", "dpfed")


def with_examples():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in files if re.search("^ *>>> ", path.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def script():
    return scripts.script("benchmarks/docstrings.py")


def test_docstrings_of_privacy_functions_state_what_they_must(script):
    counts = script.counts()
    having, needing = counts.pop("docstring")
    assert having == needing > 100
    assert {part: pair for part, pair in counts.items() if pair[0] < 0.95 * pair[1]} == {}


def test_a_docstring_without_a_part_is_found(script):
    bare = script.Name(
        module="accounting.gaussian", name="noise_std", thing=importlib.import_module("accounting").calibrate.smallest
    )
    assert "direction of error" in script.applicable(bare)
    assert not script.has(bare, "direction of error")


@pytest.mark.parametrize("path", with_examples(), ids=str)
def test_examples_in_docstrings_print_what_they_say(path):
    module = importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
