"""Accounts of whole schedules: golden numbers, brackets, beginnings, composition, refusals."""

import itertools
import math
import time

import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting import Composed, PoissonSampling, guarantee, subsample
from accounting.compose import accountant, lower_bound, pld, rdp
from accounting.compose.profiles import profile
from accounting.compose.running import Running, epsilons
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import (
    Allocation,
    BallsAndBins,
    Cyclic,
    DiscreteGaussian,
    MinSeparation,
    Skellam,
    Subsampled,
    from_dict,
)
from tests.accounting.participation.test_ratio_law import chain_law, ratio_of_patterns

DELTA = 6000**-1.1
GOLDEN = gaussian(1.4)
BINS = BallsAndBins(bins=60)
ALLOCATION = Allocation(participations=3, rounds=180)


def of(schedule, rounds=180, noise=GOLDEN) -> Composed:
    return times(subsample(noise, schedule), rounds)


def test_golden_balls_and_bins_within_half_a_percent_and_a_second():
    began = time.perf_counter()
    stated = guarantee(of(BINS), delta=DELTA)
    assert time.perf_counter() - began < 3  # 0.3 s; on a busy machine
    assert 0.5730 < stated.epsilon <= 0.5738 * 1.005
    assert stated.epsilon * 0.9995 < stated.lower_bound <= stated.epsilon
    assert any("independently of each other" in note for note in stated.notes)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(("sigma", "delta"), [(0.8, 1e-6), (2.0, 1e-4)])
def test_bounds_of_balls_and_bins_meet(epochs, sigma, delta):
    """Each epoch's likelihood ratio is a sum over its rounds, so both bounds are of nearly the same pair of laws."""
    run = of(BallsAndBins(bins=30), rounds=30 * epochs, noise=gaussian(sigma))
    stated = pld.epsilon(run, delta=delta)
    assert stated * 0.998 < lower_bound.epsilon(run, delta=delta) <= stated


def test_golden_allocation_is_inside_the_bracket_of_pld_accounting():
    """PLD_accounting 2.0 states 0.5625 to 0.5872 for 3 of 180 rounds."""
    stated = guarantee(of(ALLOCATION), delta=DELTA)
    assert 0.5625 < stated.lower_bound < stated.epsilon < 0.5872
    assert stated.epsilon - stated.lower_bound < 0.0025


def test_cyclic_order_is_the_gaussian_of_the_client_that_takes_part_most():
    truth = smallest_epsilon(DELTA, mu=math.sqrt(3) / 1.4)
    stated = guarantee(of(Cyclic(period=60)), delta=DELTA)
    assert stated.epsilon == pytest.approx(truth, rel=1e-4)
    assert stated.lower_bound <= truth <= stated.epsilon
    replaced = gaussian(2.8, "replace-one")
    assert guarantee(of(Cyclic(period=60), noise=replaced), delta=DELTA).epsilon == pytest.approx(truth, rel=1e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.slow
@pytest.mark.parametrize("z", [0.3, 0.05, 0.03, 0.01])
@pytest.mark.parametrize("schedule", [BINS, ALLOCATION])
def test_at_tiny_noise_a_secret_schedule_costs_no_more_than_a_public_one(schedule, z):
    """And hides at most which round it was: log 60 in each of the three epochs, log of 180 over 3 in one of 180."""
    run = of(schedule, noise=gaussian(z))
    public = smallest_epsilon(DELTA, mu=math.sqrt(3) / z)
    stated = pld.epsilon(run, delta=DELTA)
    hidden = 3 * math.log(60) if schedule is BINS else math.log(math.comb(180, 3))
    assert max(public - hidden, lower_bound.epsilon(run, delta=DELTA)) <= stated <= public * (1 + 1e-6)


def test_no_rest_is_poisson_sampling():
    poisson = times(subsample(GOLDEN, PoissonSampling(probability=1 / 60)), 60)
    resting = of(MinSeparation(separation=1, probability=1 / 60), 60)
    truth = pld.epsilon(poisson, delta=DELTA)
    assert pld.epsilon(resting, delta=DELTA) == pytest.approx(truth, rel=3e-4)
    assert lower_bound.epsilon(resting, delta=DELTA) == pytest.approx(truth, rel=1e-3)


def test_rests_are_bracketed():
    """Monte Carlo of theorem3's table: 0.607 at 15, 0.587 at 45, both +- 0.003."""
    for separation, truth in ((15, 0.607), (45, 0.587)):
        run = of(MinSeparation(separation=separation, probability=1 / 60))
        assert lower_bound.epsilon(run, delta=DELTA) < truth + 0.004
        assert pld.epsilon(run, delta=DELTA) > truth - 0.004


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(
    ("schedule", "patterns"),
    [
        (MinSeparation(separation=3, probability=0.25), chain_law(3, 0.25, 6)),
        (
            Allocation(participations=2, rounds=6),
            {tuple(int(t in pair) for t in range(6)): 1 / 15 for pair in itertools.combinations(range(6), 2)},
        ),
        (
            BallsAndBins(bins=3),
            {tuple(int(t in (a, 3 + b)) for t in range(6)): 1 / 9 for a in range(3) for b in range(3)},
        ),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
@pytest.mark.parametrize("rounds", [4, 6])
def test_every_schedule_lies_between_its_bounds_by_monte_carlo(schedule, patterns, rounds):
    """150,000 draws of all patterns at once, 5 standard errors: a wrong alarm with probability below 1e-5 a case."""
    shift = 1.0
    x = np.random.default_rng(11).standard_normal((150_000, rounds))
    begun: dict[tuple[int, ...], float] = {}
    for pattern, chance in patterns.items():
        begun[pattern[:rounds]] = begun.get(pattern[:rounds], 0.0) + chance
    ratio = ratio_of_patterns(begun, x, shift)
    run = of(schedule, rounds, gaussian(1 / shift, "zero-out"))
    claim = profile(run, accountant="pld")
    for epsilon in (0.2, 1.0, 2.0):
        draws = np.maximum(ratio - math.exp(epsilon), 0), np.maximum(1 - math.exp(epsilon) * ratio, 0)
        errors = [5 * one.std() / math.sqrt(len(one)) for one in draws]
        assert all(one.mean() - error <= float(claim(epsilon)) for one, error in zip(draws, errors, strict=True))
        shown = lower_bound.epsilon(
            run, delta=max(one.mean() + error for one, error in zip(draws, errors, strict=True))
        )
        assert shown <= epsilon + 1e-9


def test_a_bin_that_is_reused_shows_more_than_the_account():
    """The planted fault: the same bins in every epoch are one epoch with sqrt(3) of the shift."""
    reused = of(BINS, 60, gaussian(1.4 / math.sqrt(3)))
    assert lower_bound.epsilon(reused, delta=DELTA) > 1.15 > 2 * pld.epsilon(of(BINS), delta=DELTA)
    assert pld.epsilon(reused, delta=DELTA) == pytest.approx(1.2740, rel=2e-3)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("schedule", [BINS, MinSeparation(separation=30, probability=1 / 60), ALLOCATION])
def test_a_beginning_costs_less_and_never_less_than_is_shown(schedule):
    uppers = [pld.epsilon(of(schedule, n), delta=DELTA) for n in (1, 20, 60, 61, 180)]
    lowers = [lower_bound.epsilon(of(schedule, n), delta=DELTA) for n in (1, 20, 60, 61, 180)]
    assert uppers == sorted(uppers)
    assert all(low <= high for low, high in zip(lowers, uppers, strict=True))


@pytest.mark.slow
def test_running_accounts_follow_the_rounds():
    one = subsample(GOLDEN, BINS)
    stream = epsilons(one, delta=DELTA, rounds=180)
    values = [next(stream) for _ in range(62)]
    running = Running(delta=DELTA, typical=one, rounds=180)
    running.add(one, 60)
    assert running.epsilon(one) == pytest.approx(values[60], rel=1e-3)
    running.add(one)
    assert running.epsilon() == pytest.approx(pld.epsilon(of(BINS, 61), delta=DELTA), rel=1e-3)
    also = subsample(GOLDEN, PoissonSampling(probability=0.01))
    running.add(also)
    whole = Composed(parts=((one, 61), (also, 1)))
    assert running.epsilon() == pytest.approx(pld.epsilon(whole, delta=DELTA), rel=1e-3)


def test_streams_keep_epochs_apart():
    """Two halves of epochs that were drawn apart are not one epoch."""
    one, other = (subsample(GOLDEN, BallsAndBins(bins=60, stream=name)) for name in "ab")
    halves = Composed.of([one] * 30 + [other] * 30)
    assert [count for _, count in halves.parts] == [30, 30]
    assert pld.epsilon(halves, delta=DELTA) > 1.02 * pld.epsilon(of(BINS, 60), delta=DELTA)
    assert lower_bound.epsilon(halves, delta=DELTA) <= pld.epsilon(halves, delta=DELTA)


def test_integer_noise_is_its_gaussian():
    integers = DiscreteGaussian(dimension=100, l2_bound=100.0, share_variance=140.0**2, adjacency="zero-out")
    run = of(BINS, noise=integers)
    assert accountant.epsilon(run, delta=DELTA) == pytest.approx(pld.epsilon(of(BINS), delta=DELTA), rel=1e-3)


def test_renyi_curves_are_those_without_secrecy():
    curve = rdp.curve(of(BINS, 61), [2.0, 8.0])
    assert curve == pytest.approx([2 * 2 / 1.4**2 / 2, 2 * 8 / 1.4**2 / 2])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: of(BINS, noise=gaussian(1.0, "replace-one")), "cyclic"),
        (lambda: of(ALLOCATION, 181), "ends after them"),
        (lambda: Allocation(participations=4, rounds=3), "at most once"),
        (lambda: MinSeparation(separation=61, probability=1 / 60), "cannot rest for"),
        (lambda: BallsAndBins(bins=0), "whole number"),
        (lambda: BallsAndBins(bins=3, stream="x" * 101), "100 characters"),
        (
            lambda: from_dict({**subsample(GOLDEN, BINS).to_dict(), "sampling": {"name": "cyclic", "bins": 3}}),
            "sampling",
        ),
        (
            lambda: Subsampled(
                mechanism=DiscreteGaussian(
                    dimension=9, l2_bound=9.0, share_variance=99.0, adjacency="zero-out", shares=3
                ),
                sampling=BINS,
            ),
            "shares",
        ),
        (
            lambda: Subsampled(
                mechanism=Skellam(dimension=9, l2_bound=9.0, share_variance=99.0, adjacency="zero-out"), sampling=BINS
            ),
            "skellam",
        ),
    ],
)
def test_what_has_no_account_is_refused(make, words):
    refused((InvalidParameter, UnsupportedMechanism), words, make)


@pytest.mark.parametrize(
    ("sigma", "rounds", "participations", "delta", "low", "high"),
    [
        (0.9, 100, 1, 1e-5, 0.88077, 0.91288),
        pytest.param(0.7, 240, 4, 1e-6, 4.59327, 4.65703, marks=pytest.mark.slow),
        pytest.param(1.1, 60, 2, 1e-5, 1.27999, 1.33341, marks=pytest.mark.slow),
        pytest.param(0.8, 90, 3, 1e-6, 3.94263, 4.00329, marks=pytest.mark.slow),
    ],
)
def test_allocations_lie_in_the_bracket_of_pld_accounting(sigma, rounds, participations, delta, low, high):
    """PLD_accounting 2.0, gaussian_allocation_epsilon_range: its lower and upper bound, settings held back."""
    law = Allocation(participations=participations, rounds=rounds)
    release = Subsampled(mechanism=gaussian(sigma), sampling=law)
    run = times(release, rounds)
    stated = accountant.epsilon(run, delta=delta)
    assert low < stated < high
    if participations < 3:  # beyond, the lower bound is loose where each participation shows much
        assert stated - lower_bound.epsilon(run, delta=delta) < high - low


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("z", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("schedule", [BINS, ALLOCATION])
def test_hardly_any_noise_has_both_bounds(schedule, z):
    """Cells of the lower bound grew with 1 / z^2 and did not fit in memory. In public rounds it is a Gaussian."""
    stated = guarantee(of(schedule, noise=gaussian(z)), delta=DELTA)
    public = smallest_epsilon(DELTA, mu=math.sqrt(3) / z)
    assert 0 <= stated.lower_bound <= stated.epsilon <= public * 1.0001
    assert stated.epsilon > 1 / (2 * z * z)


def test_a_loud_signal_that_is_cut_off_shows_what_it_did():
    """An epsilon of 22 for each of the three epochs, of losses up to 170."""
    loud = of(BINS, noise=gaussian(0.1))
    assert 65.9 < lower_bound.epsilon(loud, delta=DELTA) <= smallest_epsilon(DELTA, mu=math.sqrt(3) / 0.1)


@pytest.mark.parametrize("delta", [1e-5, 1e-13])
def test_rounds_in_a_public_order_are_the_closed_form_at_any_delta(delta):
    """A client takes part in the first round and the eleventh. Below 1e-12 there was no first value."""
    release = subsample(gaussian(2.0), Cyclic(period=10))
    for chosen in ("best", "pld"):
        found = itertools.islice(epsilons(release, delta=delta, rounds=20, accountant=chosen), 20)
        for count, epsilon in enumerate(found, start=1):
            shift = math.sqrt(1 if count <= 10 else 2) / 2.0
            assert epsilon == pytest.approx(smallest_epsilon(delta, mu=shift), rel=1e-9)
