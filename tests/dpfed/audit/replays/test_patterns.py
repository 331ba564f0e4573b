"""Replay audits of plants in a stranger's loop and of the thirteen patterns of arXiv 2602.17454: found as stated."""

import pytest

from dpfed.audit import replay

from .opacus_plants import OPACUS, SOUND_STEPS
from .patterns import PATTERNS, SOUND_LOOP, STRANGERS


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("fault", [*STRANGERS, *PATTERNS], ids=lambda one: one.name)
def test_a_fault_is_found_or_listed_as_not_found(fault):
    found = replay(fault)
    assert (found.verdict == "fail") == fault.found, str(found)
    assert fault.words in found.as_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore:Secure RNG turned off")
@pytest.mark.parametrize("fault", [*OPACUS, SOUND_STEPS], ids=lambda one: one.name)
def test_a_fault_of_opacus_steps_is_found_or_listed_as_not_found(fault):
    found = replay(fault)
    assert (found.verdict == "fail") == fault.found, str(found)
    assert fault.words in found.as_text()


def test_the_sound_loop_passes():
    assert replay(SOUND_LOOP).verdict == "pass"
