"""Notes where a guarantee says next to nothing: at their edges, and in everything that states one."""

import json
import math

import numpy as np
import pytest
from reference.shorthand import gaussian, poisson, times

from accounting import Header, Ledger, LocalRelease, Plan, Release, Steps, budget, guarantee
from accounting.caveats import caveats, default_delta
from accounting.ledger.project import ProjectLedger

DELTA_NOTE, EPSILON_NOTE, ZERO_NOTE = "is above 1/clients = 1/100", "is above 20", "epsilon is 0 because delta"


def said(notes):
    return [words for words in (DELTA_NOTE, EPSILON_NOTE, ZERO_NOTE) if any(words in note for note in notes)]


def test_publishing_one_of_n_at_random_is_private_with_delta_one_over_n_and_no_less():
    """The claim behind the note, by enumeration: n clients with a bit each; the number and bit of one are released."""
    n = 7
    ours, theirs = (np.zeros((n, 2)) for _ in range(2))
    for client in range(n):
        ours[client, 0] += 1 / n
        theirs[client, int(client == 3)] += 1 / n  # client 3 has the other bit
    assert np.maximum(ours - theirs, 0).sum() == pytest.approx(1 / n, rel=1e-12)  # delta at epsilon 0
    assert np.maximum(ours - math.exp(50) * theirs, 0).sum() == pytest.approx(1 / n, rel=1e-12)  # and at any other


@pytest.mark.parametrize(
    ("epsilon", "delta", "units", "expected"),
    [
        (1.0, 0.01, 100, []),
        (1.0, 0.0101, 100, [DELTA_NOTE]),
        (1.0, 0.5, None, []),
        (20.0, 1e-5, 100, []),
        (20.0001, 1e-5, 100, [EPSILON_NOTE]),
        (0.0, 1e-5, 100, [ZERO_NOTE]),
        (5e-324, 1e-5, 100, []),
        (0.0, 0.5, 100, [DELTA_NOTE, ZERO_NOTE]),
        (300.0, 0.5, 100, [DELTA_NOTE, EPSILON_NOTE]),
    ],
)
def test_of_an_epsilon_and_a_delta(epsilon, delta, units, expected):
    assert said(caveats(epsilon=epsilon, delta=delta, units=units)) == expected


def test_of_an_infinite_epsilon():
    assert caveats(epsilon=math.inf, delta=1e-5, units=100) == ("epsilon is infinite: nothing is guaranteed",)


def test_numbers_in_the_notes_are_rounded_up():
    (note,) = caveats(epsilon=27.123456, delta=1e-5, units=100)
    assert note.startswith("epsilon 27.1235 is above 20: it allows likelihood ratios of e^27.1235")
    (note,) = caveats(epsilon=1.0, delta=0.123456, units=100)
    assert note.startswith("delta 0.1235 is above")


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    ("delta", "noise_multiplier", "expected"),
    [(0.5, 0.02, [DELTA_NOTE, EPSILON_NOTE]), (0.5, 5.0, [DELTA_NOTE, ZERO_NOTE]), (1e-5, 0.1, [EPSILON_NOTE]),
     (1e-5, 5.0, [])],
)  # fmt: skip
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_budgets_have_them(delta, noise_multiplier, expected, sampling):
    plan = Plan(clients=100, cohort=50, sampling=sampling, delta=delta)
    asked = {"noise_multiplier": noise_multiplier, "rounds": 1, "with_lower_bound": False}
    assert said(budget.solve(plan, **asked).to_dict()["notes"]) == expected


@pytest.mark.slow
def test_every_row_of_a_comparison_has_its_own():
    rows = budget.compare(Plan(clients=100, cohort=80, delta=0.02), noise_multiplier=0.05, rounds=3)
    assert all((EPSILON_NOTE in said(row.notes)) == (row.epsilon > 20) for row in rows)
    assert any(row.epsilon > 20 for row in rows)
    assert all(DELTA_NOTE in said(row.notes) for row in rows)


@pytest.mark.slow
def test_coins_have_them():
    plan = Plan(
        mechanism="bernoulli-aggregate",
        clients=100,
        cohort=10,
        dimension=1000,
        edge=0.1,
        clip_norm=5.0,
        delta=0.5,
        sampling="all",
    )
    answer = budget.solve(plan, rounds=50)
    assert said(answer.notes) == [DELTA_NOTE, *([EPSILON_NOTE] if answer.epsilon > 20 else [])]


def test_guarantees_have_them_where_the_clients_are_known():
    loud = times(gaussian(0.1), 1)
    assert said(guarantee(loud, delta=0.02).notes) == [EPSILON_NOTE]
    assert said(guarantee(loud, delta=0.02, units=100).notes) == [DELTA_NOTE, EPSILON_NOTE]


def release(noise_multiplier, number=0):
    mechanism = gaussian(noise_multiplier)
    return Release(round=number, mechanism=mechanism, clip_norm=1.0, noise_std=1.0, noise_placement="server")


def test_ledgers_have_them(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", Header(unit="client", clients=100, randomness="secure", about={}))
    assert said(ledger.guarantee(0.5).notes) == [DELTA_NOTE]
    ledger.record(release(0.1))
    assert said(ledger.guarantee(1e-5).notes) == [EPSILON_NOTE]
    assert said(Ledger.read(tmp_path / "l.jsonl").guarantee(0.5).notes) == [DELTA_NOTE, EPSILON_NOTE]


def test_records_are_counted_by_themselves(tmp_path):
    ledger = Ledger.create(tmp_path / "l.jsonl", Header(unit="record", clients=100, randomness="secure", about={}))
    step = poisson(0.1, 1.0)
    ledger.record(
        LocalRelease(round=0, steps=(Steps(mechanism=step, count=3, clients=(1, 2)),), clip_norm=1.0, noise_std=1.0)
    )
    assert not said(ledger.guarantee(0.01).notes)
    notes = ledger.guarantee(0.01, units=1000).notes
    assert any("is above 1/records = 1/1000: it allows releasing one record's data outright" in note for note in notes)


def test_projects_have_them(tmp_path):
    project = ProjectLedger.create(tmp_path / "p.jsonl", clients=100, epsilon=30.0, delta=0.02)
    assert said(project.to_dict()["notes"]) == [DELTA_NOTE]
    project.charge(release(0.3), run="a")
    project.charge(release(0.3, number=1), run="a")
    record = json.loads(json.dumps(project.to_dict()))
    assert said(record["notes"]) == [DELTA_NOTE, *([EPSILON_NOTE] if record["spent_epsilon"] > 20 else [])]


def test_a_guarantee_that_is_printed_has_its_note_on_delta():
    mechanism = times(gaussian(5.0), 1)
    assert str(guarantee(mechanism, delta=0.02, units=100)).endswith("outright with that probability")
    assert DELTA_NOTE not in str(guarantee(mechanism, delta=0.01, units=100))


def test_few_records_have_a_default_delta_that_excludes_a_breach():
    assert default_delta(1438, unit="record") == 1e-5
    assert default_delta(100_000, unit="record") == 100_000**-1.1 < 1e-5
