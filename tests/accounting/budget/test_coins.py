"""Budgets of coins: against the law of a single coin, and against themselves one round or one step of clip further."""

import math
from dataclasses import replace

import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting import Composed, Plan, budget
from accounting.bernoulli import accounts
from accounting.bernoulli import sums as bernoulli_sum
from accounting.budget import Everyone, FixedSize, Poisson
from accounting.budget import coins as coin_rounds
from accounting.budget.coin_clip import widest_clip
from accounting.compose.accountant import epsilon as epsilon_of
from accounting.compose.accountant import guarantee
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import CappedPoissonSampling, FixedSizeSampling, FullParticipation, Subsampled, unsampled
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.samplings.independent import rarely_exceeded

MASKS = Plan(mechanism="bernoulli-aggregate", clients=50, cohort=5, dimension=20, edge=0.25, clip_norm=0.2, delta=1e-5)
SEEN = Plan(
    clients=10, cohort=10, dimension=1, edge=0.1, mechanism="bernoulli-channel", sampling="all", linf_clip=1.0,
    adjacency="replace-one", delta=1e-3,
)  # fmt: skip


@pytest.mark.parametrize(("looks", "heads"), [(1, (0.9, 0.1)), (2, (0.81, 0.01))])
def test_looks_at_one_coin_cost_what_its_two_laws_say(looks, heads):
    """Pr = 0.9 against 0.1: delta = 0.9 - 0.1 e^epsilon; of two looks only two heads tell more than e^epsilon."""
    stated = budget.solve(SEEN, rounds=looks, accountant="exact")
    assert stated.epsilon == pytest.approx(math.log((heads[0] - 1e-3) / heads[1]), rel=1e-9)
    assert (stated.rounds, stated.noise_multiplier, stated.notes) == (looks, None, ())
    record = stated.to_dict()
    assert (record["dimension"], record["edge"], record["linf_clip"], record["cohort"]) == (1, 0.1, 1.0, 10)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("sampling", [Poisson(cohort=5), FixedSize(cohort=5)])
def test_the_rounds_that_fit_and_not_one_more(sampling):
    plan = replace(MASKS, sampling=sampling, adjacency=None)
    target = 2 * budget.solve(plan, rounds=3).epsilon
    answer = budget.solve(plan, epsilon=target)
    assert answer.epsilon <= target < budget.solve(plan, rounds=answer.rounds + 1).epsilon
    assert answer.rounds > 3


def test_rounds_are_counted_and_stated_by_the_account_that_was_asked_for():
    assert budget.solve(SEEN, epsilon=9.0, accountant="exact").accountant == "exact"
    assert budget.solve(SEEN, epsilon=9.0, accountant="rdp").accountant == "rdp"


def test_not_even_one_round_fits():
    refused(CalibrationError, "not even one round fits", budget.solve, MASKS, epsilon=1e-4)


def test_poisson_masks_are_padded_to_a_cap_that_is_seldom_reached():
    coins = MASKS.mechanism.release(MASKS)
    assert isinstance(coins, BernoulliAggregate)
    assert coins.cohort == MASKS.cohort_cap == rarely_exceeded(5, 50, delta=1e-5)
    assert f"padded to {coins.cohort} uploads" in budget.solve(MASKS, rounds=1).notes[-1]
    assert unsampled(MASKS.changed(slots=40).round()).cohort == 40


def test_the_law_of_a_round_is_that_of_the_sampler():
    fixed, everybody = replace(MASKS, sampling=FixedSize(cohort=5), adjacency=None), replace(MASKS, sampling=Everyone())
    assert fixed.sampler == FixedSizeSampling(cohort=5, clients=50)
    assert str(fixed.adjacency) == "replace-one"
    assert fixed.mechanism.release(fixed).cohort == 5
    assert everybody.sampler == FullParticipation()
    assert everybody.mechanism.release(everybody).cohort == 50
    assert MASKS.sampler == CappedPoissonSampling(probability=0.1, cap=MASKS.cohort_cap, clients=50)
    assert isinstance(MASKS.round(), Subsampled)
    assert isinstance(everybody.round(), BernoulliAggregate)
    assert isinstance(SEEN.round(), BernoulliChannel)
    assert (
        Plan(mechanism="bernoulli-aggregate", clients=50, cohort=5, dimension=9, edge=0.2, clip_norm=1.0).delta == 1e-4
    )


def test_numbers_alone_are_those_of_the_answer():
    stated = budget.solve(SEEN, rounds=2, accountant="exact").epsilon
    assert budget.epsilon(SEEN, rounds=2, accountant="exact") == stated
    assert budget.rounds(SEEN, epsilon=stated, accountant="exact") == 2


def test_coins_have_no_noise_multiplier():
    for asked in (budget.epsilon, budget.solve):
        with pytest.raises(InvalidParameter, match=r"noise_multiplier=1.0 with mechanism='bernoulli-aggregate'"):
            asked(MASKS, noise_multiplier=1.0, rounds=2)
    refused(InvalidParameter, "no noise multiplier to solve for", budget.noise_multiplier, MASKS, epsilon=1.0, rounds=2)
    refused(InvalidParameter, "epsilon and rounds: give all but one", budget.solve, MASKS, epsilon=1.0, rounds=2)
    with pytest.raises(InvalidParameter, match="does not depend on the clip norm"):
        budget.clip_norm(Plan(clients=50, cohort=5), epsilon=1.0, rounds=2)


@pytest.mark.slow
def test_the_largest_clip_within_a_budget():
    epsilon = 3.0
    plan = replace(MASKS, sampling=FixedSize(cohort=5), adjacency=None)
    clip = budget.clip_norm(plan, epsilon=epsilon, rounds=5)
    assert budget.solve(replace(plan, clip_norm=clip), rounds=5).epsilon <= epsilon
    assert budget.solve(replace(plan, clip_norm=1.002 * clip), rounds=5).epsilon > epsilon


@pytest.mark.slow
def test_a_clip_whose_loss_distribution_is_known_at_some_clips_only():
    """At clip 1 the sum is nearly Gaussian and the privacy loss distribution is the best account; at the widest clip
    there is none, which stopped the search."""
    coins = {"dimension": 450_000, "floor": 0.1, "adjacency": "zero-out", "linf_clip": 0.33, "clip_metric": "fisher"}
    sampling = CappedPoissonSampling(probability=0.25, cap=28, clients=40)

    def rounds_of(clip):
        sums = BernoulliAggregate(**coins, cohort=28, others="near-reference", l2_clip=clip)
        return times(Subsampled(mechanism=sums, sampling=sampling), 2)

    widest = widest_clip(0.1, 450_000, "fisher")
    assert guarantee(rounds_of(1.0), delta=1e-4, with_lower_bound=False).method == "pld"
    refused(UnsupportedMechanism, "", lambda: epsilon_of(rounds_of(widest), delta=1e-4, accountant="pld"))
    clip = budget.largest_clip(rounds_of, widest=widest, epsilon=8.0, delta=1e-4, accountant="best")
    assert epsilon_of(rounds_of(clip), delta=1e-4) <= 8.0 < epsilon_of(rounds_of(1.01 * clip), delta=1e-4)


def test_a_budget_that_any_clip_meets():
    two = replace(MASKS, dimension=2, sampling=FixedSize(cohort=5), adjacency=None)
    refused(CalibrationError, "met without any L2 clip", budget.clip_norm, two, epsilon=50.0, rounds=1)


@pytest.mark.parametrize("plan", [MASKS, replace(MASKS, sampling=FixedSize(cohort=5), adjacency=None), SEEN])
def test_what_was_released_before_comes_on_top(plan):
    before = times(gaussian(4.0, plan.adjacency), 2)
    together = replace(plan, before=before)
    alone = budget.solve(plan, rounds=3, accountant="rdp").epsilon
    stated = budget.solve(together, rounds=3, accountant="rdp").epsilon
    assert stated == epsilon_of(Composed(parts=(*before.parts, (plan.round(), 3))), delta=plan.delta, accountant="rdp")
    assert max(alone, epsilon_of(before, delta=plan.delta)) < stated


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"mechanism": "bernoulli-channel"}, UnsupportedMechanism, "sampling does not amplify"),
        ({"clip_norm": None}, InvalidParameter, "at least one bound"),
        ({"edge": 0.5}, InvalidParameter, "floor=0.5"),
        ({"adjacency": "add-remove"}, UnsupportedMechanism, "add-remove"),
        ({"adjacency": "replace-one"}, UnsupportedMechanism, "Poisson-sampled Bernoulli uploads"),
    ],
)
def test_plans_that_have_no_account_are_refused(changes, error, words):
    refused(error, words, MASKS.changed, **changes)


def test_coins_of_another_cohort_than_the_samplers_are_refused():
    coins = BernoulliAggregate(dimension=5, floor=0.2, adjacency="replace-one", l2_clip=0.1, cohort=9)
    with pytest.raises(InvalidParameter, match="10 of the sampler, 9 of the sum"):
        Subsampled(mechanism=coins, sampling=FixedSizeSampling(cohort=10, clients=100))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Poisson(cohort=5), FixedSize(cohort=5), Everyone()])
def test_noise_before_the_coins_counts_under_every_sampling(sampling):
    plain = replace(MASKS, sampling=sampling, adjacency=None, clip_norm=0.5)
    noised = replace(plain, noise_std=0.3)
    assert noised.mechanism.release(noised).noise_std == 0.3
    assert budget.solve(noised, rounds=3).epsilon < 0.9 * budget.solve(plain, rounds=3).epsilon


def test_a_cap_is_at_least_the_mean_cohort_whatever_delta_allows():
    assert rarely_exceeded(10, 100, delta=0.999) >= 10
    assert rarely_exceeded(5, 5, delta=1e-9) == 5


@pytest.mark.slow
def test_a_cohort_of_which_not_all_are_counted_is_said(monkeypatch):
    coins = {"mechanism": "bernoulli-aggregate", "dimension": 3, "edge": 0.2, "clip_norm": 0.3}
    plan = Plan(clients=60, cohort=60, sampling="all", delta=1e-4, **coins)
    before = budget.solve(plan, rounds=2).notes
    for module in (coin_rounds, bernoulli_sum):
        monkeypatch.setattr(module, "LARGEST_COHORT", 50)
    (note,) = set(budget.solve(plan, rounds=2).notes) - set(before)
    assert note == "the account uses 50 of the 60 uploads in a sum, which is an upper bound"


def test_a_floor_beyond_all_scales_has_no_dominating_gaussian():
    coins = BernoulliAggregate(
        dimension=4, floor=5e-324, adjacency="zero-out", linf_clip=1.0, cohort=10, clip_metric="fisher"
    )
    assert accounts.dominating_mu(coins, 1.0, 1e-9) is None
