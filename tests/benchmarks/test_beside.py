"""docs/beside.md is what its command prints, and the numbers of installed packages are what they answer."""

import json
from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def beside():
    return script("benchmarks/beside.py")


def test_the_page_is_what_the_command_prints(beside):
    assert (ROOT / "docs" / "beside.md").read_text() == beside.page() + "\n"


@pytest.mark.parametrize("name", ["dpfed", "Opacus", pytest.param("dp-accounting", marks=pytest.mark.slow)])
def test_stored_epsilons_are_those_of_installed_packages(beside, name):
    if not beside.is_installed(name):
        pytest.skip("not installed here")
    stored = json.loads(beside.STORED.read_text())["packages"][name]
    plans = [plan for plan in beside.PLANS if not (name == "dpfed" and plan in ("fixed", "zero-out"))]
    for plan in plans:
        found, kept = beside.PACKAGES[name][0](plan), stored["plans"][plan]
        assert (found is None) == (kept is None), plan
        assert found is None or found == pytest.approx(kept[0], rel=1e-4), plan


def test_a_number_below_the_proven_bound_is_marked(beside):
    assert beside.epsilon_text([1.4709, 0.5], 3.2399) == "1.4709 (**at least 3.2399**), 0.50 s"
    assert "at least" not in beside.epsilon_text([3.2426, 0.5], 3.2399)
    assert beside.epsilon_text(None, 1.0) == "–"


def test_every_plan_of_every_package_is_stored(beside):
    stored = json.loads(beside.STORED.read_text())
    assert list(stored["packages"]) == list(beside.PACKAGES)
    assert all(list(one["plans"]) == list(beside.PLANS) for one in stored["packages"].values())
    assert len(stored["audits"]) == 18
