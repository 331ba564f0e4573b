"""A failed pair names the module, or the loss, in which a client's training first differs."""

import pytest

import dpfed
from dpfed.audit.replays.pairs import Pair

from .plants import NETWORKS

HALF = tuple(range(0, 20, 2))
NAMED = {
    "hidden state kept from batch to batch": ("far", "the input of l (LSTM)"),
    "network fitted on its first batch": ("far", "between the batch and the input of a (Linear)"),
    "running mean in a hook": ("far", "between a (Linear) and the input of o (Linear)"),
    "fixed parameter written": ("far", "m of the network (FixedParameterWritten)"),
    "loss that counts classes": ("one class", "the loss"),
}


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("name", NAMED)
def test_the_module_is_named(name):
    change, words = NAMED[name]
    plant = next(one for one in NETWORKS if one.name == name)
    found = dpfed.audit.replay(plant, [Pair(HALF, change)])
    assert words in found.failed.first_difference.made_by, found.as_text()
    assert words in found.as_text()
    assert found.to_dict()["pairs"][0]["made_by"] == found.failed.first_difference.made_by
