"""One budget over several runs: what is charged, what is refused, and processes that charge at once."""

import multiprocessing
import time

import pytest

from accounting import Aborted, Composed, Gaussian, Header, Ledger, PoissonSampling, Release, Subsampled
from accounting.compose import accountant
from accounting.errors import BudgetSpent, EditedLedger, InvalidParameter, LedgerError, UnsupportedMechanism
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import BallsAndBins

DELTA = 1e-5
ROUND = Subsampled(
    mechanism=Gaussian(noise_multiplier=1.2, adjacency="add-remove"), sampling=PoissonSampling(probability=0.05)
)


def release(number, mechanism=ROUND):
    return Release(round=number, mechanism=mechanism, clip_norm=1.0, noise_std=1e6, noise_placement="server")


@pytest.fixture
def project(tmp_path):
    return ProjectLedger.create(tmp_path / "project.jsonl", clients=1000, epsilon=1.0, delta=DELTA)


def affordable(epsilon):
    count = 0
    while accountant.epsilon(Composed(parts=((ROUND, count + 1),)), delta=DELTA) <= epsilon:
        count += 1
    return count


def test_two_runs_draw_from_one_budget_until_it_is_spent(project):
    other = ProjectLedger.open(project.ledger.path)
    most, charged = affordable(1.0), 0
    while project.with_also(ROUND) <= 1.0:
        (project, other)[charged % 2].charge(release(charged // 2), run="ab"[charged % 2])
        charged += 1
    with pytest.raises(BudgetSpent, match=r"at most 1 at delta 1e-05.*was not released"):
        other.charge(release(charged), run="b")
    assert charged in (most - 1, most)  # the running account rounds up by its grid
    spent = Ledger.read(project.ledger.path).if_fixed_in_advance(DELTA)
    assert spent.epsilon == accountant.epsilon(Composed(parts=((ROUND, charged),)), delta=DELTA) <= 1.0
    assert project.to_dict()["runs"] == {"a": -(-charged // 2), "b": charged // 2}


def test_rounds_of_a_schedule_are_charged_at_a_small_delta(tmp_path):
    """They cost nothing beside rounds of Poisson sampling: 30 of them brought a project of epsilon 2 to 9.25."""
    drawn, loud = (Gaussian(noise_multiplier=z, adjacency="add-remove") for z in (1.0, 0.5))
    sampled = Subsampled(mechanism=drawn, sampling=PoissonSampling(probability=0.01))
    scheduled = Subsampled(mechanism=loud, sampling=BallsAndBins(bins=10, stream="b"))
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=10_000, epsilon=2.0, delta=1e-9)
    for number in range(3):
        project.charge(release(number, sampled), run="a")
    number = 0
    while project.with_also(scheduled) <= 2.0 and number < 10:
        project.charge(release(number, scheduled), run="b")
        number += 1
    with pytest.raises(BudgetSpent):
        project.charge(release(number, scheduled), run="b")
    assert project.spent().lower_bound <= 2.0


def test_what_one_more_round_would_cost_is_that_of_everything_together(project):
    other = ProjectLedger.open(project.ledger.path)
    other.charge(release(0), run="b")
    expected = accountant.epsilon(Composed(parts=((ROUND, 2),)), delta=DELTA)
    assert project.with_also(ROUND) == pytest.approx(expected, rel=2e-3)
    assert len(ProjectLedger.open(project.ledger.path).ledger.releases) == 1


def test_what_is_left_is_the_budget_less_what_is_spent(project):
    assert project.to_dict()["left_epsilon"] == 1.0
    project.charge(release(0), run="a")
    assert 0 < project.spent().lower_bound <= project.spent().epsilon
    stated = project.to_dict()
    assert stated["spent_epsilon"] == accountant.epsilon(Composed(parts=((ROUND, 1),)), delta=DELTA) > 0.1
    assert stated["left_epsilon"] == pytest.approx(1.0 - stated["spent_epsilon"], rel=1e-12)


def test_a_round_that_takes_exactly_what_is_left_is_allowed_and_none_after_it(tmp_path):
    needed = ProjectLedger.create(tmp_path / "a.jsonl", clients=1000, epsilon=1.0, delta=DELTA).with_also(ROUND)
    project = ProjectLedger.create(tmp_path / "b.jsonl", clients=1000, epsilon=needed, delta=DELTA)
    project.charge(release(0), run="a")
    with pytest.raises(BudgetSpent):
        project.charge(release(1), run="a")


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
    zero_out = Subsampled(
        mechanism=Gaussian(noise_multiplier=2.0, adjacency="zero-out"), sampling=PoissonSampling(probability=0.05)
    )
    with pytest.raises(UnsupportedMechanism, match="a project has one adjacency"):
        project.charge(release(1, zero_out), run="b")
    assert len(Ledger.read(project.ledger.path).releases) == 1


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
    with pytest.raises(EditedLedger, match="line 2"):
        project.charge(release(1), run="a")


def test_a_ledger_of_a_run_is_no_project(tmp_path):
    Ledger.create(tmp_path / "run.jsonl", Header(unit="client", clients=10, randomness="simulated"))
    with pytest.raises(LedgerError, match="not of a project"):
        ProjectLedger.open(tmp_path / "run.jsonl")
    with pytest.raises(LedgerError, match="no project ledger is there"):
        ProjectLedger.open(tmp_path / "absent.jsonl")


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
    most = affordable(1.0)
    context = multiprocessing.get_context("spawn")
    counts = context.Queue()
    workers = [context.Process(target=spend, args=(project.ledger.path, name, counts)) for name in "abc"]
    for worker in workers:
        worker.start()
    charged = [counts.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    ledger = Ledger.read(project.ledger.path)
    assert sum(charged) == len(ledger.releases)
    assert most - 1 <= sum(charged) <= most
    assert ledger.guarantee(DELTA).epsilon <= 1.0


def test_a_ledger_that_somebody_holds_is_waited_for_and_then_an_error(project, monkeypatch):
    monkeypatch.setattr("accounting.ledger.project.PATIENCE", 0.2)
    other = ProjectLedger.open(project.ledger.path)
    began = time.monotonic()
    with other._lock, pytest.raises(LedgerError, match="has held the ledger"):
        project.charge(release(0), run="a")
    assert time.monotonic() - began < 5
    project.charge(release(0), run="a")


def charge_for_ever(path, charged):
    project = ProjectLedger.open(path)
    for round in range(10_000):
        project.charge(release(round, FREE), run="greedy")
        charged.value = round + 1


FREE = Gaussian(noise_multiplier=1e6, adjacency="add-remove")


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
    with pytest.raises(LedgerError, match="impossible terms"):
        ProjectLedger.open(tmp_path / "p.jsonl")


def test_a_line_that_is_no_release_is_not_a_projects(project):
    project.ledger.record(Aborted(round=0, reason="too few"))
    with pytest.raises(LedgerError, match="no release"):
        ProjectLedger.open(project.ledger.path).charge(release(1, FREE), run="a")
