"""Rounds of schedules in a project: bought by their numbers, epochs by their stream, one schedule for each run."""

import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting import Ledger, PoissonSampling, Release, subsample
from accounting.compose import lower_bound
from accounting.errors import BudgetSpent, LedgerError, UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.ledger import Header, Purchase, backups
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import Allocation, BallsAndBins, CorrelatedRounds, Cyclic, MinSeparation
from tests.accounting.ledger.old_lines import lines_as_of_03

DELTA = 1e-5


def one_round(schedule, z=1.0):
    return subsample(gaussian(z, "zero-out"), schedule)


def line(number, mechanism, run="b"):
    return Release(
        round=number, mechanism=mechanism, clip_norm=1.0, noise_std=1e9, noise_placement="server", detail={"run": run}
    )


POISSON = one_round(PoissonSampling(probability=0.1), 8.0)


def project_of(folder, epsilon=1.0, first=POISSON):
    folder.mkdir(exist_ok=True)
    ProjectLedger.create(folder / "p.jsonl", clients=600, epsilon=epsilon, delta=DELTA)
    project = ProjectLedger.open(folder / "p.jsonl", pay=10**6)
    if first is not None:
        project.charge(line(0, first, "a"), run="a")
    return project


def as_of_03(project, *entries):
    lines_as_of_03(project.ledger, *entries)
    backups.write_head(project.ledger.path, Ledger.read(project.ledger.path).head)
    return ProjectLedger.open(project.ledger.path, pay=10**6)


def test_bought_rounds_have_numbers(tmp_path):
    """Rounds 0, 10, ..., 90 of a cycle are one client in ten rounds: 1.5347, where ten rounds were bought."""
    turns = one_round(Cyclic(period=10, stream="s"), 8.0)
    project = project_of(tmp_path)
    project.begin([turns] * 10, run="b")
    assert project.ledger.entries[-1].rounds == ((0, 10),)
    project.charge(line(0, turns), run="b")
    refused(BudgetSpent, "rounds 0 to 9 of its schedule were bought", lambda: project.charge(line(10, turns), run="b"))
    refused(BudgetSpent, "a round has one release", lambda: project.charge(line(0, turns), run="b"))
    for number in (9, 4):  # any order of independent noise
        project.charge(line(number, turns), run="b")
    assert project.spent().epsilon <= 1.0


def test_rounds_that_begin_later_are_priced_to_their_end(tmp_path):
    turns = one_round(Cyclic(period=10, stream="s"), 8.0)
    project = project_of(tmp_path, epsilon=2.0)
    project.begin([turns] * 5, run="b", numbers=(0, 1, 10, 20, 30))
    purchase = project.ledger.entries[-1]
    assert purchase.rounds == ((0, 2), (10, 1), (20, 1), (30, 1))
    assert Ledger.read(project.ledger.path).entries[-1] == purchase
    project.charge(line(30, turns), run="b")
    with pytest.raises(BudgetSpent, match="rounds 0 to 1, 10, 20, 30 of its schedule were bought"):
        project.charge(line(2, turns), run="b")
    four = project_of(tmp_path / "other", epsilon=2.0).price(((turns, 31),))
    assert purchase.units == four > project_of(tmp_path / "third", epsilon=2.0).price(((turns, 5),))


def test_a_purchase_of_03_is_of_the_first_rounds_and_more_is_read_but_not_charged(tmp_path):
    turns = one_round(Cyclic(period=10, stream="s"), 8.0)
    project = project_of(tmp_path)
    price = project.price(((turns, 10),))
    bought = Purchase(round=0, units=price, plan=((turns, 10),), detail={"run": "b"})
    project = as_of_03(project, bought, line(0, turns))
    project.charge(line(1, turns), run="b")
    assert project.condition is None
    project = as_of_03(project, *(line(number, turns) for number in range(10, 100, 10)))
    stated = project.spent(with_lower_bound=False).epsilon
    assert stated >= smallest_epsilon(DELTA, mu=10**0.5 / 8.0) == pytest.approx(1.5347, abs=1e-4)
    assert "does not cover this project" in project.condition
    assert project.to_dict()["units"] is None
    read = Ledger.read(project.ledger.path).guarantee(DELTA)
    assert read.epsilon == pytest.approx(stated)
    assert not any("any stopping rule" in note for note in read.notes)
    refused(BudgetSpent, "does not cover this project", lambda: project.charge(line(1, POISSON, "a"), run="a"))
    refused(BudgetSpent, "does not cover this project", project.begin, [POISSON], run="c")


def test_an_epoch_is_of_a_stream_and_a_run_has_one(tmp_path):
    """Round j of every epoch from stream j is Poisson sampling at the price of balls-and-bins."""
    project = project_of(tmp_path, epsilon=6.0, first=None)
    streams = [one_round(BallsAndBins(bins=6, stream=f"seed {place}")) for place in range(6)]
    project.charge(line(0, streams[0]), run="b")
    refused(BudgetSpent, "a run has one schedule", lambda: project.charge(line(1, streams[1]), run="b"))
    for run, mechanism in enumerate(streams[1:]):
        if project.units[1] == 0:
            break
        project.charge(line(run, mechanism, f"run {run}"), run=f"run {run}")
    assert project.units[0] - project.units[1] == min(project.units[0], 6)  # one unit for each stream
    rounds = sum(isinstance(one, Release) for one in project.ledger.entries)
    poisson = one_round(PoissonSampling(probability=1 / 6))
    assert lower_bound.epsilon(times(poisson, rounds), delta=DELTA) <= 6.0


def test_epochs_of_03_from_several_streams_are_read(tmp_path):
    project = project_of(tmp_path, epsilon=6.0, first=None)
    lines = [line(number, one_round(BallsAndBins(bins=6, stream=f"seed {number % 6}"))) for number in range(30)]
    project = as_of_03(project, *lines)
    poisson = one_round(PoissonSampling(probability=1 / 6))
    least = lower_bound.epsilon(times(poisson, 30), delta=DELTA)
    assert project.spent(with_lower_bound=False).epsilon >= least > 6.0
    assert "does not cover" in project.condition


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    "schedule",
    [
        BallsAndBins(bins=10, stream="s"),
        BallsAndBins(bins=10, lanes=2, stream="s"),
        BallsAndBins(bins=10, lanes=2, secret_lanes=True, stream="s"),
        Allocation(participations=2, rounds=20, stream="s"),
        MinSeparation(separation=5, probability=0.03, stream="s"),
    ],
)
def test_every_schedule_is_bought_by_its_rounds(tmp_path, schedule):
    mechanism = one_round(schedule, 8.0)
    project = project_of(tmp_path, epsilon=2.0)
    project.begin([mechanism] * 20, run="b")
    for number in (0, 19, 7):
        project.charge(line(number, mechanism), run="b")
    for number, text in ((20, "were bought|ends after 20"), (7, "a round has one release")):
        refused(BudgetSpent, text, project.charge, line(number, mechanism), run="b")


@pytest.mark.parametrize(
    "schedule",
    [
        CorrelatedRounds(separation=10, coefficients=(1.0, 0.5), stream="s"),
        CorrelatedRounds(separation=10, weights=(0.5,), decays=(0.9,), stream="s"),
        BallsAndBins(bins=10, lanes=2, coefficients=(1.0, 0.5), stream="s"),
    ],
)
def test_a_gap_of_correlated_noise_is_not_released(tmp_path, schedule):
    mechanism = one_round(schedule, 20.0)
    project = project_of(tmp_path, epsilon=2.0)
    project.begin([mechanism] * 20, run="b")
    project.charge(line(0, mechanism), run="b")
    refused(BudgetSpent, "correlated noise, whose next row is 1", lambda: project.charge(line(2, mechanism), run="b"))
    read = as_of_03(project, line(2, mechanism))
    refused(UnsupportedMechanism, "No epsilon is known", read.spent)


def test_a_project_of_02_is_composed_by_round_numbers(tmp_path):
    path = tmp_path / "p.jsonl"
    about = {"project": {"epsilon": 3.0, "delta": DELTA}}
    ledger = Ledger.create(path, Header(unit="client", clients=600, randomness="as each run says", about=about))
    turns = one_round(Cyclic(period=10, stream="s"), 4.0)
    ledger.record_all([line(0, POISSON, "a"), line(0, turns, "b"), line(1, turns, "b")])
    project = ProjectLedger.open(path)
    assert project.condition is not None
    done = 1
    while project.refusal(turns, run="b", number=10 * done) is None:
        project.charge(line(10 * done, turns), run="b")
        done += 1
    refused(BudgetSpent, "would bring the project to epsilon", lambda: project.charge(line(10 * done, turns), run="b"))
    assert smallest_epsilon(DELTA, mu=done**0.5 / 4.0) <= 3.0
    assert project.spent(with_lower_bound=False).epsilon >= smallest_epsilon(DELTA, mu=done**0.5 / 4.0)
    refused((BudgetSpent, LedgerError), "a round has one release", lambda: project.charge(line(10, turns), run="b"))
