"""Replay audits of planted faults, by host, and of the thirteen patterns of arXiv 2602.17454: found as stated."""

import pytest

from dpfed.audit import replay

from .patterns import PATTERNS
from .planted import PLANTED, TWINS


def require_stated_verdict(fault):
    """Assert that a replay finds a fault with the stated words, or passes if no finding is stated."""
    found = replay(fault)
    assert found.verdict == ("pass" if fault.words is None else "fail"), str(found)
    assert (fault.words or "") in found.as_text()


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("fault", PATTERNS, ids=lambda one: one.name)
def test_a_pattern_is_found_or_listed_as_not_found(fault):
    found = replay(fault)
    assert (found.verdict == "fail") == fault.found, str(found)
    assert fault.words in found.as_text()


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(
    "fault", [TWINS[0], *(one for one in PLANTED if one.host == "plain loop")], ids=lambda one: one.id
)
def test_a_fault_of_a_plain_loop_is_found_or_listed_as_not_found_and_its_twin_passes(fault):
    require_stated_verdict(fault)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore:Secure RNG turned off")
@pytest.mark.parametrize(
    "fault", [one for one in (*PLANTED, *TWINS) if one.host in ("Opacus", "dpfed")], ids=lambda one: one.id
)
def test_a_fault_of_opacus_steps_or_of_a_run_is_found_or_listed_as_not_found(fault):
    require_stated_verdict(fault)
