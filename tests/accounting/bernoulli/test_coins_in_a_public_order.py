"""Uploads of coins that are seen one by one, from clients in a public order: charged by participations."""

import itertools

import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting.bernoulli.exact import channel_epsilon
from accounting.budget import Plan
from accounting.budget import epsilon as epsilon_of_plan
from accounting.compose import accountant, rdp
from accounting.compose.running import Running, epsilons
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import BallsAndBins, Composed, Cyclic, MinSeparation, PoissonSampling, Subsampled, subsample
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel

DELTA = 1e-4
ORDER = Cyclic(period=3)
FEW = BernoulliChannel(dimension=2, floor=0.3, adjacency="zero-out", linf_clip=0.2)
MANY = BernoulliChannel(dimension=5000, floor=0.4, adjacency="zero-out", l2_clip=0.5, linf_clip=0.05, reference=0.5)


def shown(coins: BernoulliChannel, uploads: int) -> float:
    """Epsilon of the worst corners of so many uploads, by enumeration of every outcome in both worlds."""
    p, q = coins.floor + coins.linf_clip, coins.floor
    worst = 0.0
    for ends in itertools.product([(p, q), (q, p)], repeat=coins.dimension * uploads):
        one, other = np.array(ends).T
        worst = max(worst, channel_epsilon(DELTA, p=one, q=other))
    return worst


def test_a_client_is_charged_for_the_uploads_that_the_order_gives_it():
    """7 rounds of a period of 3 are 3 uploads of the first client. To charge two would claim too little."""
    claimed = accountant.epsilon(times(subsample(FEW, ORDER), 7), delta=DELTA)
    truth = shown(FEW, 3)
    assert truth <= claimed < 1.05 * truth
    assert accountant.epsilon(times(FEW, 2), delta=DELTA) < truth


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("coins", [FEW, MANY])
@pytest.mark.parametrize("rounds", [1, 3, 4, 30])
def test_it_costs_what_so_many_uploads_cost(coins, rounds):
    by_order = times(subsample(coins, ORDER), rounds)
    uploads = times(coins, -(-rounds // 3))
    alone = accountant.epsilon(uploads, delta=DELTA)
    assert alone <= accountant.epsilon(by_order, delta=DELTA) * (1 + 1e-9) <= alone * 1.002
    orders = np.array([2.0, 8.0, 64.0])
    assert rdp.curve(by_order, orders) == pytest.approx(rdp.curve(uploads, orders))


def test_accounts_of_rounds_that_come_one_by_one_agree():
    release = subsample(MANY, ORDER)
    one, two = (accountant.epsilon(times(release, number), delta=DELTA) for number in (3, 4))
    stream = epsilons(release, delta=DELTA, rounds=4)
    assert list(itertools.islice(stream, 4)) == pytest.approx([one, one, one, two], rel=2e-3)
    running = Running(delta=DELTA, typical=release, rounds=4)
    assert running.epsilon(release) == pytest.approx(one, rel=2e-3)
    running.add(release, 3)
    assert running.epsilon() == pytest.approx(one, rel=2e-3)
    assert running.epsilon(release) == pytest.approx(two, rel=2e-3)
    assert two > 1.2 * one


@pytest.mark.slow
def test_beside_other_releases():
    """On a ledger with Gaussian rounds: what both cost together is more than either."""
    coins, noise = subsample(MANY, ORDER), gaussian(2.0, "zero-out")
    both = Composed(parts=((coins, 6), (noise, 2)))
    stated = accountant.epsilon(both, delta=DELTA)
    assert stated > max(accountant.epsilon(Composed(parts=(part,)), delta=DELTA) for part in both.parts)
    running = Running(delta=DELTA, typical=noise, rounds=8)
    running.add(coins, 6)
    running.add(noise, 2)
    assert running.epsilon() == pytest.approx(stated, rel=0.02)


def test_plans_have_it():
    plan = Plan(
        clients=6000, cohort=100, mechanism="bernoulli-channel", sampling="cyclic", dimension=5000, edge=0.4,
        clip_norm=0.5, linf_clip=0.05, reference=0.5,
    )  # fmt: skip
    assert plan.round() == subsample(MANY, Cyclic(period=60))
    one = epsilon_of_plan(plan, rounds=60)
    assert one == pytest.approx(epsilon_of_plan(plan, rounds=1), rel=2e-3)
    assert epsilon_of_plan(plan, rounds=61) > 1.2 * one


@pytest.mark.parametrize(
    "sampling", [BallsAndBins(bins=3), MinSeparation(separation=2, probability=0.3), PoissonSampling(probability=0.1)]
)
def test_an_order_that_is_secret_hides_nothing_of_uploads_that_are_seen(sampling):
    refused(InvalidParameter, "public order", Subsampled, mechanism=MANY, sampling=sampling)


def test_sums_of_coins_have_no_account_in_a_public_order():
    """Cohorts of an order need not be equally large, and a sum of coins rests on their number."""
    coins = BernoulliAggregate(dimension=9, floor=0.3, adjacency="zero-out", l2_clip=0.5, cohort=10)
    refused(UnsupportedMechanism, "bernoulli-aggregate", Subsampled, mechanism=coins, sampling=ORDER)
