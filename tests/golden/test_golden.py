"""The golden net: no change of structure changes what a run is, charges, sends or is audited as."""

import pytest
from golden.record import FINGERPRINTS, NAMES, answer_of, differences, machine, stored

STORED = stored()


@pytest.mark.parametrize("name", NAMES)
def test_setting_gives_the_answer_that_is_stored(name, tmp_path):
    """`make golden` stores intended changes and prints what differs, for the commit to explain."""
    before, now = STORED[name], answer_of(name, tmp_path / "run")
    if STORED[""]["machine"] != machine():
        before, now = ({k: v for k, v in one.items() if k not in FINGERPRINTS} for one in (before, now))
    assert not list(differences(before, now))


def test_a_changed_answer_is_seen():
    name = "gauss dp-fedavg z"
    planted = {**STORED[name], "first": {**STORED[name]["first"], "round": 7}}
    assert list(differences(STORED[name], planted)) == ["first.round: 0 -> 7"]
