"""The golden net: no change of structure changes what a run is, charges, sends or is audited as, on any processor."""

import pytest
import torch
from golden.answers import differences, stored
from golden.record import NAMES, answer_of
from golden.settings import SLOW

STORED = stored()


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in NAMES])
def test_setting_gives_the_answer_that_is_stored(name, tmp_path):
    """`make golden` stores intended changes and prints what differs, for the commit to explain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        now = answer_of(name, tmp_path / "run")
    finally:
        torch.set_num_threads(threads)
    assert not list(differences(STORED[name], now))


def test_a_changed_answer_is_seen():
    before = STORED["gauss dp-fedavg z"]
    first = {**before["ledger"][0], "round": 7}
    assert list(differences(before, {**before, "ledger": [first, *before["ledger"][1:]]})) == [
        "ledger[0].round: 0 -> 7"
    ]
