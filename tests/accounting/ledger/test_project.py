"""One budget over several runs: what is charged, what is refused, and processes that charge at once."""

import multiprocessing
import time

import pytest
from reference import shorthand
from reference.shorthand import gaussian, poisson, times
from refusals import refused

from accounting import Aborted, Header, Ledger, Subsampled
from accounting.compose import accountant
from accounting.errors import BudgetSpent, EditedLedger, InvalidParameter, LedgerError, UnsupportedMechanism
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import BallsAndBins

DELTA = 1e-5
ROUND = poisson(0.05, 1.2)


def release(number, mechanism=ROUND):
    return shorthand.release(number, mechanism)


@pytest.fixture
def project(tmp_path):
    return ProjectLedger.create(tmp_path / "project.jsonl", clients=1000, epsilon=1.0, delta=DELTA)


def test_two_runs_draw_from_one_budget_until_it_is_spent(project):
    other = ProjectLedger.open(project.ledger.path)
    charged = 0
    while project.refusal(ROUND, run="ab"[charged % 2], number=charged // 2) is None:
        (project, other)[charged % 2].charge(release(charged // 2), run="ab"[charged % 2])
        charged += 1
    with pytest.raises(BudgetSpent, match=r"all \d+ units of the project .* are used\. It was not released"):
        other.charge(release(charged), run="b")
    one_percent = accountant.epsilon(times(ROUND, charged), delta=0.99 * DELTA)
    assert one_percent <= 1.0 < accountant.epsilon(times(ROUND, charged + 1), delta=0.99 * DELTA)
    assert project.units == ProjectLedger.open(project.ledger.path).units == (charged, 0)
    spent = project.spent()
    assert spent.epsilon == accountant.epsilon(times(ROUND, charged), delta=DELTA) <= 1.0
    assert project.to_dict()["runs"] == {"a": -(-charged // 2), "b": charged // 2}


def test_a_release_whose_noise_varies_is_charged_with_the_least(project):
    """The line of a round has the noise that arrived."""
    project.charge(release(0), run="a")
    more, less = poisson(0.05, 2.0), poisson(0.05, 1.0)
    refused(BudgetSpent, "differ from this project's unit", project.charge, release(1, more), run="a", worst=less)
    project.charge(release(1, more), run="a", worst=ROUND)
    units, left = ProjectLedger.open(project.ledger.path).units
    assert left == units - 2
    assert Ledger.read(project.ledger.path).releases[1].mechanism == more


def test_a_small_delta_allows_units_alone(tmp_path):
    sampled = poisson(0.01, 1.0)
    scheduled = Subsampled(mechanism=gaussian(0.5), sampling=BallsAndBins(bins=10, stream="b"))
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=10_000, epsilon=2.0, delta=1e-9)
    for number in range(3):
        project.charge(release(number, sampled), run="a")
    refused(BudgetSpent, "not bought before", lambda: project.charge(release(0, scheduled), run="b"))
    refused(BudgetSpent, "Only rounds with at least the unit's noise", project.begin, [scheduled] * 10, run="b")
    units, left = project.units
    assert left == units - 3
    many = times(sampled, units)
    assert accountant.epsilon(many, delta=1e-9) <= 2.0 < accountant.epsilon(many.then(sampled, 1), delta=1e-9)


def test_what_is_left_is_the_budget_less_what_is_spent(project):
    assert project.to_dict()["left_epsilon"] == 1.0
    project.charge(release(0), run="a")
    assert 0 < project.spent().lower_bound <= project.spent().epsilon
    stated = project.to_dict()
    assert stated["spent_epsilon"] == accountant.epsilon(times(ROUND, 1), delta=DELTA) > 0.1
    assert stated["left_epsilon"] == pytest.approx(1.0 - stated["spent_epsilon"], rel=1e-12)


def test_a_round_that_takes_exactly_what_is_left_is_allowed_and_none_after_it(tmp_path):
    needed = accountant.epsilon(times(ROUND, 1), delta=DELTA)
    exactly = {"clients": 1000, "delta": DELTA, "reserve": 0.0}
    project = ProjectLedger.create(tmp_path / "b.jsonl", epsilon=needed * (1 + 1e-4), **exactly)
    project.charge(release(0), run="a")
    refused(BudgetSpent, "", lambda: project.charge(release(1), run="a"))
    poor = ProjectLedger.create(tmp_path / "c.jsonl", epsilon=needed * (1 - 1e-4), **exactly)
    refused(BudgetSpent, "one unit exceeds epsilon", lambda: poor.charge(release(0), run="a"))


def test_a_repeated_simulated_round_is_charged_once_and_a_secure_one_again(project):
    for _ in range(2):
        project.charge(release(0), run="a", repeatable=True)
    assert len(project.ledger.releases) == 1
    project.charge(release(0), run="b", repeatable=True)
    project.charge(release(0), run="a")
    assert len(project.ledger.releases) == 3
    again = ProjectLedger.open(project.ledger.path)
    again.charge(release(0), run="a", repeatable=True)
    assert len(again.ledger.releases) == 3


def test_another_adjacency_is_refused(project):
    project.charge(release(0), run="a")
    zero_out = poisson(0.05, 2.0, "zero-out")
    refused(UnsupportedMechanism, "a project has one adjacency", lambda: project.charge(release(1, zero_out), run="b"))
    assert len(Ledger.read(project.ledger.path).releases) == 1


def test_a_declared_run_of_another_adjacency_is_refused(tmp_path):
    """It took its part of the budget, and was refused when it ran."""
    plans = {"unit": ((poisson(0.05, 2.0), 1),), "declared": ((poisson(0.05, 2.0, "zero-out"), 5),)}
    with pytest.raises(UnsupportedMechanism, match="one adjacency"):
        ProjectLedger.create(tmp_path / "p.jsonl", clients=10, epsilon=1.0, delta=1e-5, **plans)
    assert not (tmp_path / "p.jsonl").exists()


def test_a_line_that_a_dead_process_left_unfinished_is_cut_off(project):
    project.charge(release(0), run="a")
    with open(project.ledger.path, "ab") as file:
        file.write(b'{"half a line')
    project.charge(release(1), run="a")
    assert [one.round for one in Ledger.read(project.ledger.path).releases] == [0, 1]


def test_an_edited_line_is_found_before_anything_is_charged(project):
    other = ProjectLedger.open(project.ledger.path)
    other.charge(release(0), run="b")
    path = project.ledger.path
    path.write_bytes(path.read_bytes().replace(b'"round":0', b'"round":7'))
    refused(EditedLedger, "line 2", lambda: project.charge(release(1), run="a"))


def test_a_ledger_of_a_run_is_no_project(tmp_path):
    Ledger.create(tmp_path / "run.jsonl", Header(unit="client", clients=10, randomness="simulated"))
    refused(LedgerError, "not of a project", ProjectLedger.open, tmp_path / "run.jsonl")
    refused(LedgerError, "the project ledger does not exist", ProjectLedger.open, tmp_path / "absent.jsonl")


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"delta": 1.0}, {"clients": 0}, {"epsilon": float("nan")}])
def test_impossible_terms_are_refused(tmp_path, wrong):
    with pytest.raises(InvalidParameter):
        ProjectLedger.create(tmp_path / "p.jsonl", **{"clients": 10, "epsilon": 1.0, "delta": 1e-5, **wrong})
    assert not (tmp_path / "p.jsonl").exists()


def spend(path, name, counts):
    project, charged = ProjectLedger.open(path), 0
    try:
        for round in range(200):
            project.charge(release(round), run=name)
            charged += 1
    except BudgetSpent:
        pass
    counts.put(charged)


def test_processes_that_charge_at_once_never_overspend(project):
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    workers = [context.Process(target=spend, args=(project.ledger.path, name, counts)) for name in "abc"]
    for worker in workers:
        worker.start()
    charged = [counts.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    ledger = Ledger.read(project.ledger.path)
    assert sum(charged) == len(ledger.releases)
    assert ProjectLedger.open(project.ledger.path).units == (sum(charged), 0)
    assert ledger.guarantee(DELTA).epsilon <= 1.0


def test_a_ledger_that_somebody_holds_is_waited_for_and_then_an_error(project, monkeypatch):
    monkeypatch.setattr("accounting.ledger.project.PATIENCE", 0.2)
    other = ProjectLedger.open(project.ledger.path)
    began = time.monotonic()
    with other._lock, pytest.raises(LedgerError, match="has held the lock"):
        project.charge(release(0), run="a")
    assert time.monotonic() - began < 5
    project.charge(release(0), run="a")


def charge_for_ever(path, charged):
    project = ProjectLedger.open(path)
    for round in range(10_000):
        project.charge(release(round, FREE), run="greedy")
        charged.value = round + 1


FREE = gaussian(100.0)


def test_a_process_that_charges_in_a_tight_loop_lets_others_have_their_turn(project):
    context = multiprocessing.get_context("fork")
    charged = context.Value("i", 0)
    greedy = context.Process(target=charge_for_ever, args=(project.ledger.path, charged))
    greedy.start()
    try:
        while charged.value < 3:
            time.sleep(0.01)
        before = charged.value
        for round in range(5):
            project.charge(release(round, FREE), run="modest")
        assert charged.value - before < 35  # 70, or nobody else ever, without a pause between charges
    finally:
        greedy.kill()
        greedy.join()
    Ledger.resume(project.ledger.path)


@pytest.mark.parametrize("terms", [{"epsilon": -1.0, "delta": 1e-5}, {"epsilon": 1.0, "delta": "x"}])
def test_a_project_with_impossible_terms_is_refused(tmp_path, terms):
    header = Header(unit="client", clients=10, randomness="simulated", about={"project": terms})
    Ledger.create(tmp_path / "p.jsonl", header)
    refused(LedgerError, "the terms of the project are invalid", ProjectLedger.open, tmp_path / "p.jsonl")


def test_a_line_that_is_no_release_is_not_a_projects(project):
    project.ledger.record(Aborted(round=0, reason="too few"))
    refused(LedgerError, "not a release", ProjectLedger.open(project.ledger.path).charge, release(1, FREE), run="a")
