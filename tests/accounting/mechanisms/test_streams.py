"""A schedule's stream is one part of a composition: everything else would be accounted as if it were independent."""

from dataclasses import replace

import pytest
from reference.shorthand import gaussian
from refusals import refused

from accounting import Composed, Ledger, Plan
from accounting.compose import accountant
from accounting.compose.running import Running
from accounting.errors import LedgerError, UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.ledger import Header, Release
from accounting.mechanisms import BallsAndBins, CorrelatedRounds, Cyclic, MinSeparation, subsample
from tests.accounting.ledger.old_lines import lines_as_of_03

SCHEDULES = {
    "correlated": CorrelatedRounds(separation=10, coefficients=(1.0,) * 20, stream="a"),
    "balls-and-bins": BallsAndBins(bins=2, stream="a"),
    "min-separation": MinSeparation(separation=2, probability=0.2, stream="a"),
    "cyclic": Cyclic(period=10, stream="a"),
}


def one_round(z, schedule):
    return subsample(gaussian(z), schedule)


@pytest.mark.parametrize("name", SCHEDULES)
def test_rounds_of_one_schedule_are_all_alike(name):
    """Each part would be accounted from its own first round: 28.37 was stated of correlated ones, not 54.38."""
    first, second = (one_round(z, SCHEDULES[name]) for z in (1.0, 1.0 + 1e-9))
    with pytest.raises(UnsupportedMechanism, match=r"stream='a'.*must have the same release.*Use one release"):
        Composed(parts=((first, 10), (second, 10)))
    refused(UnsupportedMechanism, "stream='a'", Composed, parts=((first, 10), (first, 10)))
    running = Running(delta=1e-5, typical=first, rounds=20)
    running.add(first, 10)
    refused(UnsupportedMechanism, "stream='a'", running.epsilon, second)
    assert Composed.of([first, first]).then(first, 3).parts == ((first, 5),)


def test_streams_of_different_names_compose():
    parts = tuple(
        (one_round(1.0 + k, replace(schedule, stream=name)), 2) for k, (name, schedule) in enumerate(SCHEDULES.items())
    )
    assert len(Composed(parts=parts).parts) == len(SCHEDULES)
    twice = tuple((one_round(1.0, Cyclic(period=10, stream=name)), 10) for name in "ab")
    expected = smallest_epsilon(1e-5, mu=2**0.5)
    assert accountant.epsilon(Composed(parts=twice), delta=1e-5) == pytest.approx(expected, rel=1e-9)


def test_a_ledger_refuses_a_second_noise_of_one_schedule(tmp_path):
    ledger = Ledger.create(
        tmp_path / "ledger.jsonl", Header(unit="client", clients=100, randomness="simulated", about={})
    )
    first, second = (
        Release(
            round=number,
            mechanism=one_round(z, SCHEDULES["balls-and-bins"]),
            clip_norm=1.0,
            noise_std=z,
            noise_placement="server",
        )
        for number, z in enumerate((1.0, 2.0))
    )
    ledger.record(first)
    refused(LedgerError, "stream 'a' of 'balls-and-bins' has another release", ledger.record, second)
    lines_as_of_03(ledger, second)
    with pytest.raises(UnsupportedMechanism, match=r"ledger\.jsonl: stream='a'.*must have the same release"):
        Ledger.read(tmp_path / "ledger.jsonl").guarantee(1e-5)


def test_a_plan_after_any_schedule_has_another_stream():
    before = Composed(parts=((one_round(1.0, BallsAndBins(bins=10)), 10), (one_round(2.0, SCHEDULES["cyclic"]), 10)))
    plan = Plan(clients=100, cohort=10, sampling="cyclic", adjacency="add-remove", before=before)
    assert len({part.sampling.stream for part, _ in plan.run(1.0, 10).parts}) == 3
