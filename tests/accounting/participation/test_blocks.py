"""Blocks of unfinished allocations and of rests: the number of participations, and divergences by quadrature."""

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pytest
from reference.shorthand import gaussian
from refusals import refused
from scipy.stats import hypergeom

from accounting import Composed, Plan, budget, subsample
from accounting.compose import lower_bound, pld
from accounting.errors import InvalidParameter
from accounting.mechanisms import Allocation, MinSeparation
from accounting.participation import blocks, ratio_distribution
from accounting.participation.blocks import OnceInBlock, dominating_blocks, participations_of_beginning

DELTA = 6000**-1.1


def epsilon(schedule, rounds, noise=1.4, delta=DELTA):
    run = Composed(parts=((subsample(gaussian(noise, "zero-out"), schedule), rounds),))
    found = pld.epsilon(run, delta=delta)
    assert lower_bound.epsilon(run, delta=delta) <= found * (1 + 1e-6)
    return found


def test_one_round_of_an_allocation_is_exact():
    assert epsilon(Allocation(participations=15, rounds=62), 1, 22.0, 2.4e-5) == pytest.approx(0.0286, abs=6e-5)
    assert epsilon(Allocation(participations=10, rounds=100), 1, 1.0, 1e-5) == pytest.approx(1.6845, abs=1e-4)


@pytest.mark.parametrize(
    "schedule",
    [MinSeparation(separation=10**11, probability=1e-12), Allocation(participations=10**10, rounds=10**12)],
)
def test_a_beginning_needs_memory_for_its_own_rounds_only(schedule):
    counts = lower_bound.counts_distribution(schedule, 5)
    assert counts.sum() == pytest.approx(1, rel=1e-14)
    assert counts @ np.arange(len(counts)) == pytest.approx(5 * schedule.probability, rel=1e-14)
    assert sum(block.rounds * times for block, times in dominating_blocks(schedule, 5)) == 5


@pytest.mark.parametrize(
    ("inside", "rounds", "count"), [(3, 7, 5), (1, 1, 1), (40, 60, 59), (300, 10**4, 5000), (5, 10**9, 7)]
)
def test_numbers_of_participations_are_exact_fractions(inside, rounds, count):
    found = lower_bound.counts_distribution(Allocation(participations=inside, rounds=rounds), count)
    ways = [math.comb(count, k) * math.comb(rounds - count, inside - k) for k in range(len(found))]
    exact = [float(Fraction(one, math.comb(rounds, inside))) for one in ways]
    assert found == pytest.approx(exact, rel=3e-13)


def test_the_first_block_of_rests_is_exact():
    """A page states the block of a separation of 15 (`test_page.py`)."""
    assert epsilon(MinSeparation(separation=60, probability=1 / 60), 60) == pytest.approx(0.3180, abs=6e-5)
    (first, _), *_ = dominating_blocks(MinSeparation(separation=4, probability=0.2), 3)
    assert first == OnceInBlock(weights=((0.2, 3),))


def test_the_better_first_block_of_rests_is_taken():
    """17 rounds at a separation of 5: a whole exact block leaves 12 rounds, an incomplete one of 2 leaves 15."""
    schedule = MinSeparation(separation=5, probability=0.1)
    found = dominating_blocks(schedule, 17)
    assert sum(block.rounds * times for block, times in found) == 17
    waiting = schedule.coin * (1 - schedule.coin) ** np.arange(5)
    whole = 5 * 0.1**2 + 2 * (waiting**2).sum() + (waiting[:2] ** 2).sum()
    incomplete = 2 * 0.1**2 + 3 * (waiting**2).sum()
    assert sum(block.squares * times for block, times in found) == pytest.approx(min(whole, incomplete))


@pytest.mark.parametrize(
    ("rounds", "times", "count"),
    [(180, 3, 1), (180, 3, 178), (62, 15, 30), (62, 15, 55), (400, 100, 390), (10, 10, 4), (10, 1, 10), (2, 1, 1)],
)
def test_participations_of_a_beginning_are_a_sum_of_coins(rounds, times, count):
    coins, law = participations_of_beginning(rounds, times, count), np.ones(1)
    for coin in coins:
        law = np.convolve(law, [1 - coin, coin])
    truth = hypergeom.pmf(np.arange(len(law)), rounds, times, count)
    assert np.abs(law - truth).max() < 1e-8
    assert coins.sum() >= count * times / rounds
    assert np.all(np.diff(coins) <= 0)


def test_coins_of_a_large_allocation():
    """Where scipy's roots of Jacobi polynomials are no numbers."""
    coins, law = participations_of_beginning(10**6, 1000, 2000), np.ones(1)
    for coin in coins:
        law = np.convolve(law, [1 - coin, coin])
    assert np.abs(law - hypergeom.pmf(np.arange(1001), 10**6, 1000, 2000)).max() < 1e-7


def quadrature(count):
    """Grids of `count` axes and the standard normal weight of their points."""
    points = np.linspace(-7, 9, 201 if count == 2 else 65)
    weights = np.exp(-points * points / 2)
    axes = np.meshgrid(*[points] * count, indexing="ij", sparse=True)
    return axes, math.prod(np.meshgrid(*[weights / weights.sum()] * count, indexing="ij", sparse=True))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("rounds", "times", "count"), [(3, 2, 2), (4, 2, 2), (5, 2, 2), (4, 3, 2), (6, 3, 3), (5, 2, 3), (7, 4, 3)]
)
@pytest.mark.parametrize("shift", [0.5, 1.6])
def test_blocks_dominate_a_beginning_by_quadrature(rounds, times, count, shift):
    """And coins that are a hundredth too small do not, nor blocks of another number."""
    axes, weight = quadrature(count)
    ratios = [np.exp(shift * axis - shift * shift / 2) for axis in axes]
    truth = 0 * weight
    for number in range(max(0, times + count - rounds), min(times, count) + 1):
        subsets = list(itertools.combinations(range(count), number))
        chance = math.comb(count, number) * math.comb(rounds - count, times - number) / math.comb(rounds, times)
        for subset in subsets:
            truth = truth + chance / len(subsets) * math.prod([ratios[k] for k in subset], start=1 + 0 * weight)

    def claimed(factor):
        found, first = 1 + 0 * weight, 0
        for block, often in dominating_blocks(Allocation(participations=times, rounds=rounds), count):
            for _ in range(often):
                here = sum(ratios[first : first + block.rounds])
                taking = factor * block.taking_part
                found, first = found * (1 - taking + taking / block.rounds * here), first + block.rounds
        assert first == count
        return found

    for gamma in (1.0, 1.3, 2.0, 4.0):
        for stick in (lambda s, g=gamma: np.maximum(s - g, 0), lambda s, g=gamma: np.maximum(1 - g * s, 0)):
            shown = (weight * stick(truth)).sum()
            assert shown <= (weight * stick(claimed(1.0))).sum() + 1e-8
    assert (weight * np.maximum(truth - 1, 0)).sum() > (weight * np.maximum(claimed(0.7) - 1, 0)).sum()


def test_many_coins_are_few_blocks_and_no_fewer_participations(monkeypatch):
    schedule = Allocation(participations=300, rounds=1000)
    found = dominating_blocks(schedule, 500)
    assert len({block.taking_part for block, _ in found}) <= 24
    assert sum(block.rounds * times for block, times in found) == 500
    few = sum(block.squares * times for block, times in found)
    monkeypatch.setattr(blocks, "_MOST_PROBABILITIES", 10**6)
    exact = sum(block.squares * times for block, times in dominating_blocks(schedule, 500))
    assert exact < few < 1.2 * exact
    assert few < 300**2 / 1000  # the whole plan


def test_more_rounds_than_planned_are_refused():
    refused(InvalidParameter, "an allocation of 180 rounds", epsilon, Allocation(participations=3, rounds=180), 181)


def geometric(coin, rounds):
    return OnceInBlock(weights=tuple((coin * (1 - coin) ** b, 1) for b in range(rounds)))


@pytest.mark.parametrize("coin", [1e-5, 0.003, 0.1, 0.7])
def test_few_weights_majorise_many(coin):
    """Equal sums, and the sum of the k largest is no smaller for any k; squares grow by at most 5e-4."""
    block = geometric(coin, 3000)
    few = block.with_few_weights
    assert len(few.weights) <= 450
    many, fewer = (np.sort(np.repeat(*zip(*one.weights, strict=True)))[::-1].cumsum() for one in (block, few))
    fewer = np.append(fewer, np.full(len(many) - len(fewer), fewer[-1]))
    assert fewer[-1] == pytest.approx(many[-1], rel=1e-14)
    assert (fewer >= many * (1 - 1e-14)).all()
    assert block.squares * (1 - 1e-14) <= few.squares <= block.squares * (1 + 5e-4)


@pytest.mark.slow
def test_divergences_of_few_weights_are_no_smaller(monkeypatch):
    monkeypatch.setattr(ratio_distribution, "_JUMP_GROUPS", 200)  # else the values above the threshold are grouped, too
    block, losses = geometric(0.02, 110), np.linspace(0.0, 2.0, 4)
    exact = ratio_distribution.divergences(block, 1.0, losses)
    monkeypatch.setattr(blocks, "_MOST_WEIGHTS", 5)
    few = geometric(0.02, 110)
    assert len(few.with_few_weights.weights) < 110
    for above, below in zip(ratio_distribution.divergences(few, 1.0, losses), exact, strict=True):
        assert (above >= below - 1e-13).all()
        assert (above <= below * 1.01 + 1e-13).all()


@pytest.mark.slow
def test_a_long_rest_takes_seconds():
    """separation=3000 took 53 s and more; its bound is within 1e-4 of what all weights gave."""
    plan = Plan(clients=60_000, cohort=10, sampling="min-separation", separation=3000, delta=1e-6)
    began = time.process_time()
    assert budget.epsilon(plan, noise_multiplier=1.0, rounds=10_000) == pytest.approx(0.104967, rel=1e-4)
    assert time.process_time() - began < 30
