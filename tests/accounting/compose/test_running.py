"""Adding releases one by one gives the account of their composition."""

import random
from dataclasses import replace

import pytest
from reference.shorthand import fixed
from refusals import refused

from accounting import Composed, FixedSizeSampling, Gaussian, PoissonSampling, Subsampled
from accounting.compose import accountant, lower_bound, pld
from accounting.compose.running import Running
from accounting.compose.twins import continuous
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import (
    Allocation,
    BallsAndBins,
    BernoulliAggregate,
    BernoulliChannel,
    Cyclic,
    MinSeparation,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.integers import DiscreteGaussian, Skellam

SAMPLING = PoissonSampling(probability=0.1)


def shares(law, count):
    noise = law(dimension=100, l2_bound=50.0, share_variance=400.0, shares=count, adjacency="zero-out", overflow=1e-9)
    return Subsampled(mechanism=noise, sampling=SAMPLING)


def gaussian(z):
    return Subsampled(mechanism=Gaussian(noise_multiplier=z, adjacency="zero-out"), sampling=SAMPLING)


RUNS = {
    "gaussian": [gaussian(z) for z in (2.0, 1.8, 2.0, 1.9, 1.7)],
    "discrete-gaussian": [shares(DiscreteGaussian, count) for count in (10, 9, 9, 10, 8)],
    "skellam": [shares(Skellam, count) for count in (10, 9, 9, 10, 8)],
    "unsampled": [Gaussian(noise_multiplier=z, adjacency="zero-out") for z in (5.0, 4.0, 5.0)],
    "fixed": [fixed(30, 300, z) for z in (4.0, 4.0, 4.0, 3.0)],
    "mixed": [gaussian(2.0), shares(DiscreteGaussian, 9), shares(Skellam, 9)],
}


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("chosen", ["best", "rdp", "pld"])
@pytest.mark.parametrize("name", RUNS)
def test_every_prefix_costs_what_its_composition_costs(name, chosen):
    run = RUNS[name]
    running = Running(delta=1e-5, typical=run[-1], rounds=len(run), accountant=chosen)
    assert running.epsilon() == 0.0
    for count, release in enumerate(run, start=1):
        expected = accountant.epsilon(Composed.of(run[:count]), delta=1e-5, accountant=chosen)
        assert running.epsilon(release) == pytest.approx(expected, rel=2e-3)
        running.add(release)
        assert running.epsilon() == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("law", [Gaussian, DiscreteGaussian])
@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_first_rounds_of_an_allocation_have_their_closed_form_in_both_accounts(law, rounds):
    """A run whose noise was calibrated by it ended one round too early, and its audit failed."""
    inside = gaussian(2.0).mechanism if law is Gaussian else replace(shares(law, 1).mechanism, overflow=0.0)
    release = subsample(inside, Allocation(participations=2, rounds=3, stream="a"))
    running = Running(delta=1e-3, typical=release, rounds=3)
    running.add(release, rounds)
    expected = accountant.guarantee(Composed(parts=((release, rounds),)), delta=1e-3, with_lower_bound=False)
    assert expected.method == "analytic-gaussian"
    assert running.epsilon() == pytest.approx(expected.epsilon, rel=1e-9)


FAR = shares(Skellam, 9)
FAR = replace(FAR, mechanism=replace(FAR.mechanism, share_variance=1e14, l2_bound=1e7))


def test_a_release_that_is_below_no_gaussian_leaves_the_renyi_account():
    """Skellam noise beyond what is searched; before it was added the smaller account was the other one."""
    running = Running(delta=1e-5, typical=shares(Skellam, 10), rounds=3)
    running.add(shares(Skellam, 10))
    expected = accountant.epsilon(Composed.of([shares(Skellam, 10), FAR]), delta=1e-5, accountant="rdp")
    assert running.epsilon(FAR) == pytest.approx(expected, rel=1e-9)
    running.add(FAR)
    assert running.epsilon() == pytest.approx(expected, rel=1e-9)


def test_a_release_without_a_distribution_is_refused_where_others_had_one():
    running = Running(delta=1e-5, typical=gaussian(2.0), rounds=3, accountant="pld")
    refused(UnsupportedMechanism, "no privacy loss distribution", running.add, FAR)


@pytest.mark.parametrize("law", [Gaussian, DiscreteGaussian])
def test_without_a_renyi_bound_the_privacy_loss_distribution_stands_alone(law):
    """Replace-one under Poisson sampling."""
    inside = gaussian(2.0).mechanism if law is Gaussian else shares(law, 10).mechanism
    release = Subsampled(mechanism=replace(inside, adjacency="replace-one"), sampling=SAMPLING)
    running = Running(delta=1e-5, typical=release, rounds=3)
    for count in (1, 2, 3):
        expected = accountant.epsilon(Composed(parts=((release, count),)), delta=1e-5)
        assert running.epsilon(release) == pytest.approx(expected, rel=2e-3)
        running.add(release)
    assert running.epsilon() == pytest.approx(expected, rel=2e-3)
    with pytest.raises(UnsupportedMechanism, match="no Renyi bound"):
        Running(delta=1e-5, typical=release, rounds=3, accountant="rdp").add(release)


def test_overflow_of_slots_is_taken_off_delta():
    noise = DiscreteGaussian(
        dimension=100, l2_bound=50.0, share_variance=400.0, shares=9, adjacency="zero-out", overflow=6e-6
    )
    running = Running(delta=1e-5, typical=noise, rounds=2)
    running.add(noise)
    certain = replace(noise, overflow=0.0)
    assert running.epsilon() == pytest.approx(accountant.epsilon(noise, delta=1e-5), rel=1e-4)
    assert running.epsilon() == pytest.approx(accountant.epsilon(certain, delta=4e-6), rel=1e-4)
    assert running.epsilon(noise) == float("inf")


def test_coins_run_on_their_orders():
    coins = BernoulliChannel(dimension=50, floor=0.2, adjacency="zero-out", l2_clip=0.1)
    running = Running(delta=1e-5, typical=coins, rounds=2)
    running.add(coins)
    expected = accountant.epsilon(coins, delta=1e-5, accountant="rdp")
    assert running.epsilon() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "discrete-gaussian", "skellam", "unsampled", "fixed"])
def test_many_alike_added_at_once_cost_what_they_cost_one_by_one(name):
    release, other = RUNS[name][0], RUNS[name][1]
    at_once, singly = (Running(delta=1e-5, typical=release, rounds=15) for _ in range(2))
    for one, count in ((release, 9), (other, 1), (release, 5)):
        at_once.add(one, count)
        for _ in range(count):
            singly.add(one)
    assert at_once.epsilon() == pytest.approx(singly.epsilon(), rel=1e-6)
    assert at_once.epsilon(other) == pytest.approx(singly.epsilon(other), rel=1e-6)


def test_noise_that_is_felt_to_be_discrete():
    """Shares of a standard deviation below one step: what they are away from a Gaussian costs in every round, once."""
    noise = DiscreteGaussian(dimension=3, l2_bound=1.0, share_variance=0.7, shares=40, adjacency="zero-out")
    release, rounds = Subsampled(mechanism=noise, sampling=SAMPLING), 20
    running = Running(delta=1e-5, typical=release, rounds=rounds, accountant="pld")
    running.add(release, rounds)
    composed = Composed(parts=((release, rounds),))
    twin = Subsampled(mechanism=continuous(composed).mechanism.parts[0][0].mechanism, sampling=SAMPLING)
    smooth = accountant.epsilon(Composed(parts=((twin, rounds),)), delta=1e-5, accountant="pld")
    expected = accountant.epsilon(composed, delta=1e-5, accountant="pld")
    assert expected > 1.001 * smooth
    assert running.epsilon() == pytest.approx(expected, rel=1e-4)


def test_keeps_its_digits_at_the_smallest_delta():
    """One convolution after the other misplaces 1e-15 each, not little of 1e-12: charged, by tilted laws."""
    noise = Gaussian(noise_multiplier=1.0, adjacency=Adjacency.ADD_REMOVE)
    release = Subsampled(mechanism=noise, sampling=PoissonSampling(probability=0.01))
    running = Running(delta=1e-12, typical=release, rounds=20)
    for _ in range(20):
        running.add(release)
    assert running.epsilon() == pytest.approx(pld.epsilon(Composed(parts=((release, 20),)), delta=1e-12), rel=1e-5)


def added(z, sampling):
    return subsample(Gaussian(noise_multiplier=z, adjacency=Adjacency.ADD_REMOVE), sampling)


POISSON, PLAIN = added(1.0, PoissonSampling(probability=0.01)), added(20.0, PoissonSampling(probability=1.0))
BINS = added(1.0, BallsAndBins(bins=10, stream="a"))
SEPARATED = added(1.0, MinSeparation(separation=5, probability=0.1, stream="b"))
ALLOCATED = added(1.0, Allocation(participations=2, rounds=20, stream="c"))
PUBLIC = added(1.0, Cyclic(period=10, stream="d"))
MIXTURES = {
    "poisson, then balls and bins": [(POISSON, 40), (BINS, 15)],
    "balls and bins, then poisson": [(BINS, 15), (POISSON, 40)],
    "min-separation": [(POISSON, 40), (SEPARATED, 12)],
    "an allocation in progress": [(POISSON, 40), (ALLOCATED, 15)],
    "a public order": [(POISSON, 40), (PUBLIC, 15)],
    "plain and two schedules": [(PLAIN, 3), (POISSON, 100), (BINS, 10), (SEPARATED, 5)],
}


@pytest.mark.slow_but_one_in(24)
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-8, 1e-12])
@pytest.mark.parametrize("name", MIXTURES)
def test_no_mixture_is_cheaper_than_what_an_attack_shows_of_it(name, delta):
    """At a small delta rounds of a schedule cost nothing, since laws that are held tilted did not have them."""
    mixture = MIXTURES[name]
    running = Running(delta=delta, typical=mixture[0][0], rounds=sum(count for _, count in mixture))
    for release, count in mixture:
        running.add(release, count)
    shown = lower_bound.epsilon(Composed(parts=tuple(mixture)), delta=delta)
    assert shown > 0.5
    assert running.epsilon() >= shown
    last, count = mixture[-1]
    ahead = Running(delta=delta, typical=mixture[0][0], rounds=sum(count for _, count in mixture))
    for release, times in (*mixture[:-1], (last, count - 1)):
        ahead.add(release, times)
    assert ahead.epsilon(last) >= shown


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("delta", [1e-6, 1e-10])
def test_a_loud_release_after_quiet_ones_has_room(delta):
    """On the grid of the quiet ones it wanted 77 GiB. If all rounds were public they would be one Gaussian."""
    quiet, loud = added(1000.0, PoissonSampling(probability=1e-4)), added(1.0, PoissonSampling(probability=1.0))
    running = Running(delta=delta, typical=quiet, rounds=1000)
    running.add(quiet, 100)
    for ahead in (running.epsilon(loud), running.add(loud) or running.epsilon()):
        most = smallest_epsilon(delta, mu=(1 + 100 / 1000**2) ** 0.5)
        assert smallest_epsilon(delta, mu=1.0) <= ahead <= most * 1.0005
    for release in (added(0.5, PoissonSampling(probability=0.1)), added(0.3, BallsAndBins(bins=10))):
        running.add(release)
        shown = lower_bound.epsilon(Composed(parts=((loud, 1), (release, 1))), delta=delta)
        assert shown <= running.epsilon() < float("inf")
    running.add(quiet, 10)
    assert running.epsilon(quiet) >= shown


def random_mixture(seed, longest):
    """Two or three kinds of rounds under one adjacency, each some times in a row."""
    draw = random.Random(seed)
    adjacency = draw.choice(["zero-out", "zero-out", "replace-one", "add-remove"])
    kinds = ["gaussian", "discrete-gaussian", "plain"] + (["skellam", "coins"] if adjacency != "add-remove" else [])
    schedules = ["allocation", "balls-and-bins"] if adjacency != "replace-one" else []
    return [
        (random_release(draw, kind, adjacency), draw.randint(1, longest))
        for kind in draw.sample(kinds + schedules, draw.randint(2, 3))
    ]


def random_release(draw, kind, adjacency):
    z, rate, about = draw.uniform(0.8, 4), draw.choice([0.01, 0.05, 0.1]), {"adjacency": adjacency}
    noise = Gaussian(noise_multiplier=z, **about)
    poisson, size = PoissonSampling(probability=rate), round(1000 * rate)
    fixed = adjacency != "add-remove" and draw.random() < 0.6
    fixed = fixed or kind == "coins" or (kind == "skellam" and adjacency == "replace-one")  # no Poisson account
    sampling = FixedSizeSampling(clients=1000, cohort=size) if fixed else poisson
    if kind == "plain":
        return Gaussian(noise_multiplier=5 * z, **about)
    if kind == "allocation":
        return subsample(noise, Allocation(participations=2, rounds=300, stream="a"))
    if kind == "balls-and-bins":
        return subsample(noise, BallsAndBins(bins=20, stream="b"))
    if kind == "coins":
        return subsample(BernoulliAggregate(dimension=20, floor=0.2, l2_clip=0.3, cohort=size, **about), sampling)
    if kind == "gaussian":
        return subsample(noise, sampling)
    law, shares = {"skellam": Skellam, "discrete-gaussian": DiscreteGaussian}[kind], 1 if not fixed else 10
    variance = float(round((50 * z) ** 2 / shares))
    return subsample(law(dimension=50, l2_bound=50.0, share_variance=variance, shares=shares, **about), sampling)


def differs(mixture, delta=1e-5):
    """How far the account of releases added one by one is from that of their composition, relative."""
    running = Running(delta=delta, typical=mixture[0][0], rounds=sum(count for _, count in mixture))
    for release, count in mixture:
        running.add(release, count)
    return running.epsilon() / accountant.epsilon(Composed(parts=tuple(mixture)), delta=delta) - 1


QUICK = (*range(9), 10, 11, 18)


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60) if seed not in QUICK)]
)
def test_random_mixtures_cost_the_same_in_both_accounts(seed):
    """Fixed-size rounds of coins or Skellam noise among others had only a Renyi account as a composition."""
    assert abs(differs(random_mixture(seed, 30 if seed in QUICK else 200))) < 0.01


def test_gaussians_fixed_skellam_and_an_allocation_cost_the_same_in_both_accounts():
    """Under zero-out, ten, six and sixteen rounds of them."""
    sampling = FixedSizeSampling(clients=100, cohort=20)
    noise = Skellam(dimension=50, l2_bound=50.0, share_variance=400.0, shares=20, adjacency="zero-out")
    allocation = Allocation(participations=4, rounds=16, stream="c")
    mixture = [
        (gaussian(1.0), 10),
        (subsample(noise, sampling), 6),
        (subsample(Gaussian(noise_multiplier=1.0, adjacency="zero-out"), allocation), 16),
    ]
    assert abs(differs(mixture)) < 0.01
    composed = Composed(parts=tuple(mixture))
    assert accountant.epsilon(composed, delta=1e-5) < 0.9 * accountant.epsilon(composed, delta=1e-5, accountant="rdp")
