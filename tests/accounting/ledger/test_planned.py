"""Statements of a ledger: of what was planned, of the budget, of the releases if they were fixed in advance."""

import math
from dataclasses import replace

import numpy as np
import pytest
from reference.shorthand import gaussian, poisson, release, times
from refusals import refused
from scipy.signal import fftconvolve
from scipy.stats import norm

from accounting import Header, Ledger, LocalRelease, Steps, guarantee
from accounting.compose import accountant
from accounting.errors import EditedLedger
from accounting.ledger import Aborted, Planned
from accounting.ledger.hash_chain import chained_line
from accounting.ledger.project import ProjectLedger

CLIENTS, COHORT, ROUNDS, NOISE = 6000, 100, 180, 1.4
DELTA = CLIENTS**-1.1
GOLDEN, ROUND = poisson(COHORT / CLIENTS, NOISE), gaussian(80.0)
PLAN = Planned(rounds=ROUNDS, largest_charges=(times(ROUND, ROUNDS),))


def epsilon(count, delta=DELTA):
    return accountant.epsilon(times(ROUND, count), delta=delta)


@pytest.fixture
def ledger_of(tmp_path):
    """A ledger of these rounds under a plan."""

    def make(plan, rounds, mechanism=ROUND):
        header = Header(unit="client", clients=CLIENTS, randomness="secure", plan=plan)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        Ledger.create(path, header).record_all(release(number, mechanism) for number in rounds)
        return Ledger.read(path)

    return make


def test_an_early_end_states_the_plan(ledger_of):
    ledger = ledger_of(PLAN, range(60))
    stated = ledger.guarantee(DELTA)
    assert stated.epsilon == epsilon(ROUNDS)
    assert ledger.if_fixed_in_advance(DELTA).epsilon == epsilon(60) < 0.6 * stated.epsilon
    assert any("all 180 planned rounds" in note for note in stated.notes)
    assert stated.lower_bound == ledger.if_fixed_in_advance(DELTA).lower_bound
    assert stated.profile()(stated.epsilon) <= DELTA * 1.001
    assert ledger.guarantee(1e-6).epsilon == epsilon(ROUNDS, 1e-6)
    like_the_first_round = ledger_of(replace(PLAN, largest_charges=()), range(60))
    assert like_the_first_round.guarantee(DELTA) == stated


def test_all_planned_rounds_state_what_they_are(ledger_of):
    stated = ledger_of(PLAN, range(ROUNDS)).guarantee(DELTA)
    assert stated == guarantee(PLAN.largest_charges[0], delta=DELTA, units=CLIENTS)
    again = ledger_of(PLAN, [*range(ROUNDS), 7]).guarantee(DELTA)
    assert again.epsilon == epsilon(ROUNDS + 1)
    assert any("1 rounds were charged again" in note for note in again.notes)


@pytest.mark.parametrize("times", [2, 4])
def test_rounds_charged_again_are_added_to_the_plan_under_a_condition(ledger_of, times):
    """Of 60 rounds each is charged so many times, and then the run is ended: had it gone on, there would be more."""
    stated = ledger_of(PLAN, [*range(60)] * times).guarantee(DELTA)
    assert stated.epsilon == epsilon(ROUNDS + 60 * (times - 1))
    (note,) = (note for note in stated.notes if "were charged again" in note)
    assert "it holds if the interruptions did not depend on results" in note
    assert not any("any stopping rule" in note for note in stated.notes)


@pytest.mark.parametrize("rounds", [range(60), range(ROUNDS), [*range(60), 3, 3, 4], [*range(ROUNDS), 7]])
def test_spare_rounds_may_be_repeated_by_looking(ledger_of, rounds):
    plan = Planned(rounds=ROUNDS, largest_charges=(times(ROUND, ROUNDS + 3),), spare=3)
    for each in (plan, replace(plan, largest_charges=())):
        stated = ledger_of(each, rounds).guarantee(DELTA)
        assert stated.epsilon == epsilon(ROUNDS + 3)
        (note,) = (note for note in stated.notes if "any stopping rule" in note)
        assert "and 3 spare ones" in note
        assert not any("interruptions" in note for note in stated.notes)


def test_beyond_the_spare_rounds_epsilon_has_a_condition_or_is_the_budget(ledger_of):
    plan = Planned(rounds=ROUNDS, largest_charges=(times(ROUND, ROUNDS + 3),), spare=3)
    rounds = [*range(60), *range(4)]
    stated = ledger_of(plan, rounds).guarantee(DELTA)
    assert stated.epsilon == epsilon(ROUNDS + 4)
    assert any("interruptions did not depend on results" in note for note in stated.notes)
    assert not any("any stopping rule" in note for note in stated.notes)
    budget = (epsilon(ROUNDS + 3) + epsilon(ROUNDS + 4)) / 2
    stated = ledger_of(replace(plan, epsilon=budget, delta=DELTA), rounds).guarantee(DELTA)
    assert stated.epsilon == budget
    assert any("any stopping rule" in note for note in stated.notes)
    assert not any("interruptions" in note for note in stated.notes)


def test_a_crude_rule_of_repeats_fails_without_spare_rounds():
    """A run of 100 rounds is interrupted, and a round charged again, 40 times if the loss so far is high: the plan's
    epsilon alone is exceeded (by closed forms of Gaussians, both of which are attained)."""
    short, long = (np.sqrt(count) / 80.0 for count in (100, 140))
    plan = epsilon(100)
    mean = 60 / 80.0**2 / 2
    loss = mean + 0.25  # of the first 60 rounds; above it the rounds are repeated
    spread = np.sqrt(60) / 80.0
    grid = np.linspace(-8, 8, 4001) * spread + mean
    density = norm.pdf(grid, mean, spread) * (grid[1] - grid[0])

    def rest(count, given):
        mu = np.sqrt(count) / 80.0
        left = plan - given
        return norm.cdf(mu / 2 - left / mu) - np.exp(np.minimum(left, 50)) * norm.cdf(-mu / 2 - left / mu)

    delta = density @ np.where(grid > loss, rest(80, grid), rest(40, grid))
    assert short < long
    assert delta > 1.01 * DELTA


@pytest.mark.parametrize("skips", [False, True])
def test_rounds_that_the_caller_left_out_are_an_early_end_and_lost_ones_are_none(ledger_of, skips):
    ledger = ledger_of(replace(PLAN, may_skip_rounds=skips), range(ROUNDS - 1))
    Ledger.resume(ledger.path).record(Aborted(round=ROUNDS - 1, reason="too few"))
    stated = Ledger.read(ledger.path).guarantee(DELTA)
    assert stated.epsilon == epsilon(ROUNDS if skips else ROUNDS - 1)
    assert any("dropouts do not depend on results" in note for note in stated.notes) is not skips


def test_a_budget_is_stated_where_it_is_less_than_the_plan_or_the_run_was_prolonged(ledger_of):
    small, large = (replace(PLAN, epsilon=budget, delta=DELTA) for budget in (0.5, 3.0))
    assert ledger_of(small, range(60)).guarantee(DELTA).epsilon == 0.5
    assert ledger_of(small, range(60)).guarantee(1.2 * DELTA).epsilon == 0.5
    assert ledger_of(small, range(60)).guarantee(DELTA / 2).epsilon == epsilon(ROUNDS, DELTA / 2)
    assert ledger_of(large, range(60)).guarantee(DELTA).epsilon == epsilon(ROUNDS)
    whole = ledger_of(large, range(ROUNDS)).guarantee(DELTA)
    assert whole.epsilon == epsilon(ROUNDS)
    assert any("prolong" in note for note in whole.notes)
    prolonged = ledger_of(large, range(ROUNDS + 1)).guarantee(DELTA)
    assert prolonged.epsilon == 3.0
    assert prolonged.mechanism is None
    assert ledger_of(PLAN, range(ROUNDS + 1)).guarantee(DELTA).epsilon == epsilon(ROUNDS + 1)  # no number covers it


def test_a_statement_is_never_below_the_releases(ledger_of):
    quiet = Planned(rounds=ROUNDS, largest_charges=(times(ROUND, 1),), epsilon=0.1, delta=DELTA)
    stated = ledger_of(quiet, range(60)).guarantee(DELTA)
    assert stated.epsilon == epsilon(60)
    assert not any("any stopping rule" in note for note in stated.notes)  # its plan is over, and no end covers the rest
    assert any("exceed its plan and budget" in note for note in stated.notes)


def test_a_ledger_without_a_plan_says_which_number_it_is(ledger_of):
    stated = ledger_of(None, range(3)).guarantee(DELTA)
    assert stated.epsilon == epsilon(3)
    assert any("which has no plan: true if number and kind" in note for note in stated.notes)
    assert ledger_of(None, []).guarantee(DELTA).epsilon == 0.0
    nothing = ledger_of(PLAN, []).guarantee(DELTA)
    assert nothing.epsilon == 0.0
    assert "nothing was released" in nothing.notes


def test_a_project_states_its_budget(tmp_path):
    project = ProjectLedger.create(tmp_path / "project.jsonl", clients=CLIENTS, epsilon=1.0, delta=DELTA)
    project.charge(release(0, ROUND), run="a")
    assert Ledger.read(project.ledger.path).guarantee(DELTA).epsilon == 1.0
    assert project.spent().epsilon == epsilon(1)
    small = Ledger.read(project.ledger.path).guarantee(DELTA / 10)
    assert small.epsilon == epsilon(1, DELTA / 10)
    assert any("no plan has an epsilon" in note for note in small.notes)


def test_records_state_the_worst_client_in_all_rounds(tmp_path):
    small, large = poisson(0.1, 1.0), poisson(0.02, 1.0)
    plan = Planned(rounds=5, largest_charges=tuple(times(step, 20) for step in (large, small)))
    header = Header(unit="record", clients=9, randomness="secure", plan=plan)
    ledger = Ledger.create(tmp_path / "l.jsonl", header)
    steps = (Steps(mechanism=large, count=4, clients=(0, 1)),)
    ledger.record(LocalRelease(round=0, steps=steps, clip_norm=1.0, noise_std=1.0))
    stated = Ledger.read(ledger.path).guarantee(1e-5)
    assert stated.epsilon == accountant.epsilon(times(small, 20), delta=1e-5)
    assert stated.unit == "record"


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, largest_charges=()),
        Planned(epsilon=2.0, delta=1e-5, may_skip_rounds=True),
        replace(PLAN, epsilon=1.5, delta=1e-4),
    ],
)
def test_the_header_carries_the_plan(ledger_of, plan):
    assert ledger_of(plan, []).header.plan == plan


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"rounds": 0}, "plan.rounds"),
        ({"rounds": 2, "most": [1]}, "plan.most"),
        ({"epsilon": -1.0, "delta": 0.1}, "plan.epsilon"),
        ({"epsilon": 1.0}, "plan.delta"),
        ("none", "plan"),
    ],
)
def test_a_plan_that_is_none_is_refused(tmp_path, plan, words):
    record = Header(unit="client", clients=9, randomness="secure").to_dict() | {"plan": plan}
    (tmp_path / "l.jsonl").write_bytes(chained_line(record, "")[0])
    refused(EditedLedger, words, Ledger.read, tmp_path / "l.jsonl")


# The game of whoever ends a run by looking: with pair (P, Q) of one round, g = e^epsilon Q/P so far,
# V_n(g) = max((1 - e^(stated n) g)_+, T V_(n+1)(g)), T V(g) = E_P V(g Q/P). V_0(1) is the excess over all ends.

STEP, REACH = 1e-3, 2500


def losses():
    """P of the losses of one round with the client against one without, on the grid STEP: the mixture's distribution
    function at the edges of each cell, by its own formula."""
    edges, q = (np.arange(-REACH, REACH + 2) - 0.5) * STEP, COHORT / CLIENTS
    with np.errstate(invalid="ignore", divide="ignore"):
        places = NOISE * (np.log((np.exp(edges) - 1 + q) / q) + 1 / (2 * NOISE**2))
    places = np.where(np.isnan(places), -np.inf, places)
    return np.diff((1 - q) * norm.cdf(places) + q * norm.cdf(places - 1 / NOISE))


def game(stated, probabilities):
    """Excess over all ends together of stating stated(n) after n rounds, in units of delta."""
    g = np.exp(np.arange(-REACH, REACH + 1) * STEP)
    value = np.maximum(1 - math.exp(stated(ROUNDS)) * g, 0)
    for done in range(ROUNDS - 1, -1, -1):
        value = _one_round_earlier(value, g, probabilities)
        if done:
            value = np.maximum(value, 1 - math.exp(stated(done)) * g)
    return value[REACH] / DELTA


def profiles(probabilities):
    """Smallest epsilon at DELTA after 1, 2, ... rounds, by the same recursion without a choice."""
    g = np.exp(np.arange(-REACH, REACH + 1) * STEP)
    value, found = np.maximum(1 - g, 0), []
    for _ in range(ROUNDS):
        value = _one_round_earlier(value, g, probabilities)
        found.append(float(np.interp(-math.log(DELTA), -np.log(np.maximum(value, 1e-300)), np.log(g))))
    return found


def _one_round_earlier(value, g, probabilities):
    beside = 1 - (1 - value[0]) * g / g[-1]  # linear down to g = 0, where the value is 1
    wide = np.concatenate([beside, value[1:], np.zeros(REACH * 2)])[: 3 * (2 * REACH + 1)]
    return fftconvolve(wide, probabilities, mode="same")[2 * REACH : 4 * REACH + 1]


def test_stating_what_was_spent_at_an_end_chosen_by_looking_fails_with_7_51_delta(ledger_of):
    """By dynamic programming on a grid of losses of its own, without the package's accounts."""
    probabilities = losses()
    spent = profiles(probabilities)
    assert spent[-1] == pytest.approx(0.6303, rel=1e-3)
    assert game(lambda done: spent[done - 1], probabilities) == pytest.approx(7.51, abs=0.02)
    ledger = ledger_of(replace(PLAN, largest_charges=(times(GOLDEN, ROUNDS),)), range(60), GOLDEN)
    stated = ledger.guarantee(DELTA, with_lower_bound=False).epsilon
    fixed = ledger.if_fixed_in_advance(DELTA, with_lower_bound=False).epsilon
    assert fixed == pytest.approx(spent[59], rel=2e-3)
    assert stated == pytest.approx(spent[-1], rel=2e-3)
    assert game(lambda done: stated, probabilities) <= 1.01
