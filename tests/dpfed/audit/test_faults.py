"""Every planted fault is caught by the layers that are said to catch it, and its sound twin is not flagged.

One seed each here; experiments/audit-faults measures power and false alarms over many.
"""

import pytest

from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.randomness import Secure

from ...rounds import with_after
from .broken_parts import RemembersTheSum
from .fault_layers import case
from .faults import FAULTS

CASES = [(fault, layer) for fault in FAULTS for layer in fault.layers]


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(("fault", "layer"), CASES, ids=lambda one: one.name)
def test_a_planted_fault_is_caught(fault, layer):
    assert layer.alarm(fault.make()[1], 1, layer.trials)


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(("fault", "layer"), CASES, ids=lambda one: one.name)
def test_its_twin_is_not_flagged(fault, layer):
    """A check fails by chance with probability at most 1e-6."""
    few = 20_000 if layer.unit == "draws" else 200
    assert not layer.alarm(fault.make()[0], 1, min(layer.trials, few))


@pytest.mark.slow
def test_faults_cost_more_than_is_claimed():
    for fault in FAULTS:
        claimed, true = fault.epsilons()
        assert true > claimed


def test_randomness_that_cannot_be_replaced_is_refused():
    """Or all trials would have the same noise, and any claim would be refuted."""

    class DrawsByItself(RemembersTheSum):
        randomness = Secure()

    drawing = case("dp-fedavg").changing(lambda stages: with_after(stages, GaussianNoise, DrawsByItself()))
    with pytest.raises(TypeError, match="DrawsByItself: draws from a source of randomness that cannot be replaced"):
        drawing.one_round.with_randomness(RandomnessByCallOrder(0))
