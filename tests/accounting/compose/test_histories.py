"""Ledgers of unit "record": every client is charged for its own steps, the worst one is stated."""

import json
import warnings

import numpy as np
import pytest
from reference.shorthand import times
from refusals import refused

from accounting import (
    Adjacency,
    Composed,
    Gaussian,
    Header,
    Histories,
    Ledger,
    LocalRelease,
    PoissonSampling,
    Steps,
    Subsampled,
)
from accounting.compose import rdp
from accounting.compose.accountant import epsilon
from accounting.compose.histories import largest_epsilon, worst_composition
from accounting.errors import AccountingError, LedgerError

DELTA = 1e-4
HEADER = Header(unit="record", clients=6000, randomness="simulated")


def step(q, z=1.0):
    gaussian = Gaussian(noise_multiplier=z, adjacency=Adjacency.ADD_REMOVE)
    return Subsampled(mechanism=gaussian, sampling=PoissonSampling(probability=q)) if q < 1 else gaussian


def round_of(number, *groups):
    steps = tuple(Steps(mechanism=mechanism, count=count, clients=tuple(who)) for mechanism, count, who in groups)
    return LocalRelease(round=number, steps=steps, clip_norm=0.5, noise_std=1.5)


SMALL, LARGE = step(0.5), step(0.1)


@pytest.fixture
def book(tmp_path):
    """Client 0 is small and takes part once, 1 is large and takes part three times, 2 is large, twice."""
    ledger = Ledger.create(tmp_path / "ledger.jsonl", HEADER)
    ledger.record(round_of(0, (SMALL, 1, [0]), (LARGE, 20, [1, 2])))
    ledger.record(round_of(1, (LARGE, 20, [1, 2])))
    ledger.record(round_of(2, (LARGE, 20, [1])))
    return ledger


def test_the_worst_client_is_found_among_sizes_and_participations(book):
    stated = Ledger.read(book.path).guarantee(DELTA)
    of_clients = [
        epsilon(times(mechanism, count), delta=DELTA) for mechanism, count in ((SMALL, 1), (LARGE, 60), (LARGE, 40))
    ]
    assert stated.epsilon == max(of_clients) == of_clients[1]
    assert (stated.unit, stated.adjacency, stated.sampling) == ("record", "add-remove", "poisson")
    assert stated.lower_bound == pytest.approx(stated.epsilon, rel=1e-3)


def test_participation_alone_and_size_alone_can_make_the_worst_client():
    often, few = Histories(), Histories()
    often.add([Steps(mechanism=SMALL, count=1, clients=(0,)), Steps(mechanism=LARGE, count=200, clients=(1,))])
    few.add([Steps(mechanism=SMALL, count=30, clients=(0,)), Steps(mechanism=LARGE, count=30, clients=(1,))])
    assert worst_composition(often.distinct(), delta=DELTA) == times(LARGE, 200)
    assert worst_composition(few.distinct(), delta=DELTA) == times(SMALL, 30)


def test_clients_are_not_added_up():
    """A thousand clients cost what one costs: their records are different records."""
    many, one = Histories(), Histories()
    many.add([Steps(mechanism=SMALL, count=5, clients=tuple(range(1000)))])
    one.add([Steps(mechanism=SMALL, count=5, clients=(7,))])
    assert many.epsilon(delta=DELTA) == one.epsilon(delta=DELTA) > 0


def test_a_client_whose_steps_change_is_charged_for_both_kinds():
    histories = Histories()
    for mechanism in (SMALL, LARGE):
        histories.add([Steps(mechanism=mechanism, count=10, clients=(3,))])
    both = epsilon(Composed(parts=((SMALL, 10), (LARGE, 10))), delta=DELTA)
    assert histories.epsilon(delta=DELTA) == pytest.approx(both, rel=1e-9)
    assert both > epsilon(times(SMALL, 10), delta=DELTA)


def test_six_thousand_clients_need_few_evaluations():
    histories = Histories()
    generator = np.random.default_rng(0)
    for _ in range(20):
        cohort = np.flatnonzero(generator.random(6000) < 0.1)
        histories.add(
            [
                Steps(mechanism=SMALL, count=3, clients=tuple(map(int, cohort[cohort < 3000]))),
                Steps(mechanism=LARGE, count=15, clients=tuple(map(int, cohort[cohort >= 3000]))),
            ]
        )
    assert len(histories.distinct()) == 2


def test_nobody_is_charged_nothing(tmp_path):
    ledger = Ledger.create(tmp_path / "l", HEADER)
    ledger.record(round_of(0))
    assert ledger.guarantee(DELTA).epsilon == Histories().epsilon(delta=DELTA) == 0.0


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(("q", "z", "count"), [(0.5, 1.5, 40), (0.1, 1.0, 300), (1.0, 3.0, 10), (0.02, 0.7, 1000)])
def test_epsilon_against_the_accountants_of_opacus(tmp_path, q, z, count):
    """Renyi: the same curve at whole orders, so no more than Opacus has with those; at others dp-accounting has a
    bound where Opacus sums a series, which costs up to 1%. Numerical: below the upper end that Opacus states, and
    within its error of 0.01 plus our discretisation."""
    accountants = pytest.importorskip("opacus.accountants")
    ledger = Ledger.create(tmp_path / "l", HEADER)
    ledger.record(round_of(0, (step(q, z), count, [5])))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        renyi, numerical = accountants.RDPAccountant(), accountants.PRVAccountant()
        renyi.history = numerical.history = [(z, q, count)]
        orders = [float(order) for order in range(2, 64)]
        at_whole_orders, at_all = renyi.get_epsilon(DELTA, alphas=orders), renyi.get_epsilon(DELTA)
        upper = numerical.get_epsilon(DELTA)
        from opacus.accountants.analysis.rdp import compute_rdp

        theirs = np.asarray(compute_rdp(q=q, noise_multiplier=z, steps=count, orders=orders))
    assert rdp.curve(times(step(q, z), count), np.array(orders)) == pytest.approx(theirs, rel=1e-6)
    ours = ledger.guarantee(DELTA, accountant="rdp").epsilon
    assert ours <= at_whole_orders * (1 + 1e-9)
    assert at_all * (1 - 1e-9) <= ours <= at_all * 1.01
    assert upper - 0.02 <= ledger.guarantee(DELTA, accountant="pld").epsilon <= upper


def test_what_is_read_is_what_was_recorded(book):
    again = Ledger.read(book.path)
    assert again.releases == book.releases
    line = json.loads(book.path.read_text().splitlines()[1])
    assert line["kind"] == "local-release"
    assert [(part["count"], part["clients"]) for part in line["steps"]] == [(1, [0]), (20, [1, 2])]


def test_records_have_histories_and_no_one_mechanism(book):
    refused(LedgerError, r"histories\(\)", book.mechanism)


@pytest.mark.parametrize("clients", [(-1,), (1, 1), (1.0,), (True,), (0, 2.5), ("a",), (-1, 3)])
def test_clients_are_different_whole_numbers(clients):
    refused(AccountingError, "clients", Steps, mechanism=SMALL, count=1, clients=clients)


def test_the_worst_client_is_the_one_with_the_larger_epsilon():
    little, much = times(step(1, 9.0), 3), times(step(1, 2.0), 3)
    for order in ([little, much], [much, little]):
        assert worst_composition(order, delta=DELTA) is much
        assert largest_epsilon(order, delta=DELTA) == epsilon(much, delta=DELTA)


def test_the_worst_client_is_found_by_the_accountant_asked_for():
    told = Histories()
    told.add([Steps(mechanism=step(0.1), count=20, clients=(0, 1)), Steps(mechanism=step(0.1), count=5, clients=(2,))])
    run = times(step(0.1), 20)
    found = told.epsilon(delta=DELTA, accountant="rdp")
    assert found == epsilon(run, delta=DELTA, accountant="rdp") > 1.02 * told.epsilon(delta=DELTA)
