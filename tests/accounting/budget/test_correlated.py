"""Plans whose noise is correlated over rounds, against the theorem's table."""

import math

import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting import Plan, budget
from accounting.budget import advice
from accounting.compose import accountant
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.factorisation import buffered, sensitivity, square_root
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import CorrelatedRounds, subsample

GOLDEN = {"clients": 6000, "cohort": 100, "noise": "banded", "factorisation": "square-root"}
DELTA = 6000**-1.1


@pytest.mark.parametrize("bands", [1, 10, 60, 180])
def test_a_public_order_is_one_gaussian_of_the_sensitivity(bands):
    plan = Plan(**GOLDEN, sampling="cyclic", bands=bands)
    sens = sensitivity(square_root(bands), rounds=180, separation=60)
    found = budget.epsilon(plan, noise_multiplier=5.0, rounds=180)
    assert found == pytest.approx(smallest_epsilon(DELTA, mu=sens / 5.0), rel=1e-4)
    assert found >= smallest_epsilon(DELTA, mu=sens / 5.0) * (1 - 1e-12)  # mu itself is rounded


def test_one_band_is_independent_noise():
    own, independent = Plan(**GOLDEN, sampling="cyclic", bands=1), Plan(clients=6000, cohort=100, sampling="cyclic")
    of = {"noise_multiplier": 3.0, "rounds": 180}
    assert budget.epsilon(own, **of) == pytest.approx(budget.epsilon(independent, **of))
    poisson = Plan(**GOLDEN, bands=1)
    assert budget.epsilon(poisson, **of) == pytest.approx(budget.epsilon(Plan(clients=6000, cohort=100), **of))


def test_prefix_sums_of_independent_noise_have_the_root_mean_square_of_their_deviations():
    plan = Plan(clients=60, cohort=20)
    deviations = 2.0 * np.sqrt(np.arange(1, 8))
    assert plan.mechanism.prefix_error(plan, 2.0, 7) == pytest.approx(math.sqrt(np.mean(deviations**2)))


def test_the_same_epsilon_at_a_quarter_of_the_error():
    plan = Plan(**GOLDEN, sampling="cyclic", bands=60)
    z = budget.noise_multiplier(plan, epsilon=2.0, rounds=180)
    alone = budget.noise_multiplier(Plan(**GOLDEN, sampling="cyclic", bands=1), epsilon=2.0, rounds=180)
    assert alone * math.sqrt(181 / 2) / plan.mechanism.prefix_error(plan, z, 180) == pytest.approx(3.653, abs=2e-3)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("epsilon", "bands", "z", "error"), [(2.02, 6, 1.352, 6.27), (4.0, 15, 1.213, 4.14)])
def test_sampled_groups_are_the_table_of_the_theorem(epsilon, bands, z, error):
    """Its z is of noise over the norm of the coefficients."""
    plan = Plan(**GOLDEN, bands=bands)
    found = budget.solve(plan, epsilon=epsilon, rounds=180)
    norm = math.sqrt(sum(c * c for c in square_root(bands)))
    assert found.noise_multiplier / norm == pytest.approx(z, abs=4e-3)
    assert found.to_dict()["prefix_error_in_clips"] == pytest.approx(error, abs=0.02)
    assert any("only for planning" in note for note in found.notes)


def test_fewer_participations_need_less():
    """A public order of 60 rounds, charged for clients who come 30 rounds apart, but not more than three times."""
    whole, thrice = (Plan(**GOLDEN, sampling="cyclic", bands=60, separation=30, participations=k) for k in (None, 3))
    of = {"noise_multiplier": 5.0, "rounds": 180}
    assert budget.epsilon(thrice, **of) < budget.epsilon(whole, **of)


@pytest.mark.parametrize(
    ("fields", "due"),
    [({"sampling": "cyclic"}, 3), ({"sampling": "cyclic", "separation": 30}, 3), ({"sampling": "min-separation"}, 6)],
)
def test_a_limit_that_the_sampling_does_not_keep_is_refused(fields, due):
    """In 180 rounds a public order of 60 has every client three times; rests of 30 rounds let one come six times."""
    fields = {**GOLDEN, "bands": 60, "separation": 30, **fields}
    of = {"noise_multiplier": 5.0, "rounds": 180}
    assert budget.epsilon(Plan(**fields, participations=due), **of) > 0
    refused(InvalidParameter, f"Use at least {due}", budget.epsilon, Plan(**fields, participations=due - 1), **of)


def test_a_separation_that_a_public_order_does_not_have_is_refused():
    refused(InvalidParameter, "Use at most 60", Plan, **GOLDEN, sampling="cyclic", bands=60, separation=61)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": "balls-and-bins", "bands": 62}, "at most 60 bands"),
        ({"sampling": "balls-and-bins", "bands": 7, "lanes": 6}, "at most 6 bands"),
        ({"sampling": "balls-and-bins", "lanes": 7}, "must divide"),
        ({"sampling": "balls-and-bins", "lanes": 6, "separation": 6}, "separation=6"),
        ({"sampling": "allocation", "participations": 3, "bands": 3}, "allocation"),
        ({"lanes": 3, "bands": 3}, "lanes=3"),
        ({"sampling": "cyclic"}, "bands is missing"),
        ({"sampling": "fixed", "bands": 3}, "fixed"),
        ({"bands": 61}, "at most 60 bands"),
        ({"bands": 0}, "bands=0"),
        ({"noise": "independent", "bands": 3}, "independent"),
        ({"noise": "blt", "bands": 3}, "noise='blt'"),
        ({"noise": "blt", "buffers": 3, "factorisation": "optimised"}, "poisson"),
        ({"noise": "blt", "buffers": 3, "sampling": "cyclic"}, "square-root"),
        ({"noise": "blt", "buffers": 21, "sampling": "cyclic", "factorisation": "optimised"}, "at most 20"),
        ({"noise": "independent", "factorisation": "optimised", "server_momentum": 0.9}, "server_momentum"),
        ({"bands": 3, "server_momentum": 1.0}, "momentum"),
        ({"bands": 3, "server_decay": 0.0}, "decay"),
        ({"bands": 3, "mechanism": "skellam", "dimension": 3}, "skellam"),
    ],
)
def test_what_has_no_account_is_refused(fields, words):
    refused((InvalidParameter, UnsupportedMechanism), words, Plan, **{**GOLDEN, **fields})


def test_buffers_are_charged_by_their_sensitivity():
    """Columns overlap: three participations of a client are one Gaussian, not three."""
    plan = Plan(clients=6000, cohort=100, noise="blt", buffers=2, sampling="cyclic")
    found = budget.solve(plan, epsilon=2.0, rounds=180)
    stream = plan.mechanism.stream(plan, 180)
    c = buffered(stream.weights, stream.decays, rounds=180)
    pattern = sum(np.concatenate([np.zeros(start), c[: 180 - start]]) for start in (0, 60, 120))
    truth = smallest_epsilon(DELTA, mu=float(np.linalg.norm(pattern)) / found.noise_multiplier)
    assert truth <= found.epsilon <= 2.0
    assert found.epsilon == pytest.approx(truth, rel=1e-4)
    assert found.lower_bound == pytest.approx(truth, rel=1e-4)
    independent = budget.solve(Plan(clients=6000, cohort=100, sampling="cyclic"), epsilon=2.0, rounds=180)
    gain = independent.noise_multiplier * math.sqrt(181 / 2) / found.to_dict()["prefix_error_in_clips"]
    assert gain == pytest.approx(16.477 / 4.650, rel=1e-3)


def test_everybody_in_every_round_is_no_plain_gaussian():
    """separation 1: what a round leaves in later ones counts."""
    stream = CorrelatedRounds(separation=1, coefficients=(1.0, 0.5))
    release = subsample(gaussian(2.0, "zero-out"), stream)
    truth = smallest_epsilon(1e-5, mu=math.sqrt(1 + 3 * 1.5**2) / 2)
    assert accountant.epsilon(times(release, 4), delta=1e-5) >= truth


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "length 0"),
        ({"coefficients": (1.0,), "weights": (0.1,), "decays": (0.5,)}, "give the first"),
        ({"coefficients": (0.9,)}, "begin with 1"),
        ({"coefficients": (1.0, 0.2, 0.3)}, "not increase"),
        ({"weights": (0.7, 0.7), "decays": (0.5, 0.5)}, "at most 1"),
        ({"weights": (0.7,), "decays": (1.5,)}, "at most 1"),
        ({"weights": (-0.7,), "decays": (0.5,)}, "weights"),
        ({"coefficients": "1"}, "coefficients"),
    ],
)
def test_streams_that_no_proof_covers(fields, words):
    refused(InvalidParameter, words, CorrelatedRounds, separation=3, **fields)


def test_lanes_need_an_epsilon_or_a_number():
    open_plan = Plan(clients=6000, cohort=100, sampling="balls-and-bins", noise="banded")
    for asked in ({"noise_multiplier": 2.0, "rounds": 180}, {"noise_multiplier": 2.0, "epsilon": 2.0}):
        refused(InvalidParameter, "lanes is missing", budget.solve, open_plan, **asked)
    refused(InvalidParameter, "lanes is missing", budget.epsilon, open_plan, noise_multiplier=2.0, rounds=180)


def test_one_band_has_no_turns():
    """One band is independent noise without lanes, so an added client moves no other client in time, as in a run."""
    assert Plan(clients=12, cohort=4, sampling="balls-and-bins", noise="banded", bands=1).adjacency == "add-remove"


@pytest.mark.parametrize(("given", "lanes", "bands"), [({"bands": 7}, 10, 7), ({"lanes": 6}, 6, 6)])
def test_lanes_follow_from_bands_and_bands_from_lanes(given, lanes, bands):
    plan = Plan(**GOLDEN, sampling="balls-and-bins", **given)
    assert (plan.sampling.lanes, plan.mechanism.bands) == (lanes, bands)
    assert Plan(**plan.options) == plan
    norm = math.sqrt(sum(c * c for c in square_root(bands)))
    alone = Plan(clients=60 // lanes, cohort=1, sampling="balls-and-bins", delta=DELTA)
    found = budget.epsilon(plan, noise_multiplier=1.4 * norm, rounds=180)
    assert found == pytest.approx(budget.epsilon(alone, noise_multiplier=1.4, rounds=180 // lanes), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "best"),
    [
        (0.63, "noise in 3 bands under balls-and-bins in 3 public lanes"),
        pytest.param(2.0, "noise in 10 bands under balls-and-bins in 10 public lanes", marks=pytest.mark.slow),
        (8.0, "noise in 20 bands under balls-and-bins in 20 public lanes"),
    ],
)
def test_what_is_advised_at_the_golden_plan(epsilon, best):
    """The theorem's table, with matrices that are optimised."""
    found = advice.advised_plans(Plan(clients=6000, cohort=100), epsilon=epsilon, rounds=180)
    assert str(found[0]).startswith(best)
    assert best in advice.advice_lines(found)[0]
    for one in found:
        spent = budget.epsilon(one.plan, noise_multiplier=one.noise_multiplier, rounds=180)
        assert 0.99 * epsilon < spent <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize("fields", [{"sampling": "fixed"}, {"cohort": 6000}, {"adjacency": "replace-one"}])
def test_there_is_nothing_to_advise_on(fields):
    plan = Plan(**{"clients": 6000, "cohort": 100, **fields})
    assert advice.advice_lines(advice.advised_plans(plan, epsilon=2.0, rounds=180)) == ()


def test_advice_on_a_small_plan():
    found = advice.advised_plans(Plan(clients=60, cohort=20, delta=1e-3), epsilon=3.0, rounds=6)
    assert [one.error for one in found] == sorted(one.error for one in found)
    assert {one.plan.sampling.name for one in found} == {"poisson", "balls-and-bins", "cyclic"}
    others = tuple(one for one in found if one.plan.sampling.name != "cyclic")
    publics = tuple(one for one in found if one not in others)
    assert advice.advice_lines(others + publics)[1:] == (f"if participation cannot be kept secret: {publics[0]}",)
    assert [len(advice.advice_lines(plans)) for plans in (publics, others)] == [1, 1]
    for one in found:
        spent = budget.epsilon(one.plan, rounds=6)
        assert 0.99 * 3.0 < spent <= 3.0 * (1 + 1e-6)


def test_a_plan_has_a_matrix_for_so_many_rounds_at_most():
    plan = Plan(clients=60, cohort=20, delta=1e-3, sampling="cyclic", noise="banded", bands=2)
    refused(InvalidParameter, "at most 10000", budget.epsilon, plan, noise_multiplier=5.0, rounds=20_000)
    fits = budget.rounds(plan, epsilon=2.0, noise_multiplier=5.0)
    assert budget.epsilon(plan, noise_multiplier=5.0, rounds=fits) <= 2.0
