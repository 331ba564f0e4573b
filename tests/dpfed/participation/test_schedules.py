"""Cohorts of schedules: drawn as their law says, the same whenever they are drawn; planted faults are found."""

import math
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused
from scipy.stats import binom, chi2

from accounting import cohorts as blocks
from accounting.budget import Allocation, BallsAndBins, Cyclic, MinSeparation
from accounting.compose.lower_bound import counts_distribution
from dpfed.audit.evidence.cohort_distribution import sizes_follow_schedule
from dpfed.audit.evidence.cohort_members import cohorts_follow_schedule, rounds_of_clients
from dpfed.errors import ConfigError
from dpfed.participation.sampling import rounds_per_client
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

SEEDED = Simulated(seeds=Seeds(root=5))
BINS = BallsAndBins(cohort=500).cohorts(3000, "s")
ALLOCATED = Allocation(cohort=750, participations=3).cohorts(3000, "s")
RESTED = MinSeparation(cohort=500, separation=4).cohorts(3000, "s")
CYCLIC = Cyclic(cohort=500).cohorts(3000, "s")
LANES = BallsAndBins(cohort=500, lanes=3).cohorts(3000, "s")
SECRET = BallsAndBins(cohort=500, lanes=3, secret_lanes=True).cohorts(3000, "s")
ALL = [BINS, LANES, SECRET, ALLOCATED, RESTED, CYCLIC]


def drawn(who, rounds=12, seed=5):
    return [who.sample(Simulated(seeds=Seeds(root=seed)), number) for number in range(rounds)]


@pytest.mark.parametrize("who", ALL, ids=lambda who: who.law.name)
def test_cohorts_keep_to_their_schedule_and_sizes(who):
    """False alarm: 1e-6 of each check."""
    cohorts = drawn(who)
    assert cohorts_follow_schedule(who.law, cohorts, who.clients, alpha=1e-6)[0] is True
    assert sizes_follow_schedule(who.law, who, [len(ids) for ids in cohorts], 1e-6)[0] is True
    assert all(np.all(np.diff(ids) > 0) for ids in cohorts)
    assert who.expected == pytest.approx(500 if who is not ALLOCATED else 750)


@pytest.mark.parametrize("who", ALL, ids=lambda who: who.law.name)
def test_a_round_is_the_same_whenever_it_is_drawn(who):
    assert np.array_equal(who.sample(SEEDED, 7), drawn(who)[7])


def test_a_lane_has_its_rounds_from_the_start_of_the_run():
    for number, ids in enumerate(drawn(LANES)):
        assert np.all(ids % 3 == number % 3)
    epoch = drawn(LANES, 6)
    assert np.all(rounds_of_clients(epoch, LANES.clients) == 1)
    same = len(np.intersect1d(epoch[0], drawn(LANES)[6]))  # of 1,000 in the lane 500, in either epoch
    assert abs(same - 250) < 5 * math.sqrt(1000 * 0.25 * 0.75)


@pytest.mark.parametrize("who", [BINS, ALLOCATED, RESTED], ids=lambda who: who.law.name)
@pytest.mark.parametrize("rounds", [4, 9, 12])
def test_numbers_of_participations_have_the_accounted_law(who, rounds):
    """Chi-square against the law that accounts rest on; a wrong alarm with probability 1e-6 a case."""
    times = np.bincount(rounds_of_clients(drawn(who, rounds), who.clients))
    law = counts_distribution(who.law, rounds)
    expected = who.clients * law
    assert not times[len(law) :].any()
    times = np.pad(times, (0, max(len(law) - len(times), 0)))
    assert not times[expected == 0].any()
    some = expected > 5
    statistic = float(((times[some] - expected[some]) ** 2 / expected[some]).sum())
    assert statistic < chi2.isf(1e-6, max(int(some.sum()) - 1, 1)) + 1e-9


def test_subsets_of_an_allocation_are_uniform():
    """All 66 pairs of 12 rounds alike, of 60,000 clients; a wrong alarm with probability 1e-6."""
    who = Allocation(cohort=10_000, participations=2).cohorts(60_000, "s")
    first = np.full(who.clients, -1)
    pairs = np.zeros((12, 12))
    for number, ids in enumerate(drawn(who)):
        again = ids[first[ids] >= 0]
        np.add.at(pairs, (first[again], number), 1)
        first[ids] = np.where(first[ids] < 0, number, first[ids])
    counts = pairs[np.triu_indices(12, 1)]
    assert counts.sum() == who.clients
    expected = who.clients / 66
    assert float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-6, 65)


def test_rests_end_by_a_fair_coin():
    """Of free clients each takes part with the coin's probability: 5 standard errors."""
    last = np.full(RESTED.clients, -RESTED.law.separation)
    free = came = 0
    for number, ids in enumerate(drawn(RESTED, 30)):
        if number >= RESTED.law.separation:
            free += int((number - last >= RESTED.law.separation).sum())
            came += len(ids)
        last[ids] = number
    coin = RESTED.law.coin
    assert abs(came - free * coin) < 5 * math.sqrt(free * coin * (1 - coin))


def test_blocks_of_clients_are_drawn_apart(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 100)
    for who in ALL:
        cohorts = drawn(who)
        assert cohorts_follow_schedule(who.law, cohorts, who.clients, alpha=1e-6)[0] is True
        first, second = ([ids[(ids >= low) & (ids < low + 100)] - low for ids in cohorts] for low in (0, 100))
        same = all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
        assert same == (who is CYCLIC and 100 % who.law.period == 0)


# planted faults


def fault_in(who, cohorts):
    """The audit's words about cohorts that it refuses."""
    passed, words = cohorts_follow_schedule(who.law, cohorts, who.clients, alpha=1e-6)
    assert passed is False
    return words


@pytest.mark.parametrize("who", [BINS, LANES], ids=["bins", "bins of lanes"])
def test_reused_bins_are_found(who):
    assert "not drawn anew" in fault_in(who, drawn(who, 6) * 2)


def test_a_tenth_of_reused_bins_is_found():
    """Of 3,000 clients a tenth keep their bin: 500 + 250 have the same one, 12 standard deviations off."""
    cohorts = drawn(BINS)
    for place in range(6):
        keeps = np.concatenate([ids[ids < 300] for ids in (cohorts[place],)])
        cohorts[6 + place] = np.sort(np.concatenate([cohorts[6 + place][cohorts[6 + place] >= 300], keeps]))
    assert binom(3000, 1 / 6).sf(740) < 1e-20
    assert fault_in(BINS, cohorts)


def test_a_lane_that_is_changed_is_found():
    cohorts = drawn(LANES)
    cohorts[7] = np.sort(np.append(cohorts[7][1:], 2))
    assert "of lane 2 takes part in a round of lane 1" in fault_in(LANES, cohorts)


def test_lanes_counted_from_the_start_of_an_epoch_of_another_length_are_found():
    """Cohorts in epochs of 5 rounds, where lane 0 follows lane 1."""
    cohorts = [np.flatnonzero(np.arange(3000) % 3 == number % 5 % 3)[::2] for number in range(12)]
    assert "round 6" in fault_in(LANES, cohorts)


def test_cohorts_of_one_lane_alone_are_found():
    sizes = [len(ids) for ids in drawn(LANES)]
    uneven = replace(LANES, clients=3)
    assert sizes_follow_schedule(LANES.law, LANES, sizes, 1e-6)[0] is True
    assert sizes_follow_schedule(uneven.law, uneven, [1, 1, 1, 3], 1e-6)[0] is False


def test_an_epoch_that_is_skipped_is_found():
    cohorts = drawn(BINS)
    cohorts[3] = np.zeros(0, dtype=np.int64)
    assert "in none" in fault_in(BINS, cohorts)
    assert sizes_follow_schedule(BINS.law, BINS, [len(ids) for ids in cohorts], 1e-6)[0] is False


@pytest.mark.parametrize("who", [BINS, ALLOCATED, RESTED], ids=lambda who: who.law.name)
def test_too_many_participations_are_found(who):
    cohorts = drawn(who)
    for number in range(6):
        cohorts[number] = np.union1d(cohorts[number], [17])
    assert fault_in(who, cohorts)


def test_another_order_than_the_public_one_is_found():
    cohorts = drawn(CYCLIC)
    assert fault_in(CYCLIC, cohorts[1:] + cohorts[:1])


def test_a_coin_a_round_is_not_balls_and_bins():
    rng = np.random.default_rng(3)
    assert fault_in(BINS, [np.flatnonzero(rng.random(3000) < 1 / 6) for _ in range(6)])


def test_an_allocation_needs_whole_participations():
    assert rounds_per_client(6000, 100, 180) == 3
    refused(ConfigError, "180 rounds", rounds_per_client, 6000, 100, 181)


def test_secret_lanes_are_kept_for_a_run_drawn_for_each_id_and_audited():
    """A lane belongs to a client's id, whoever else there is; another run draws anew, here 1 of 3 lanes the same."""
    cohorts = drawn(SECRET, rounds=18)
    passed, words = cohorts_follow_schedule(SECRET.law, cohorts, 3000, alpha=1e-6)
    assert passed
    assert "each in its secret lane of 3, drawn anew" in words
    lane, other = np.zeros(3000, dtype=int), np.zeros(3000, dtype=int)
    for number in range(6):
        lane[cohorts[number]] = number % 3
        other[drawn(SECRET, seed=9)[number]] = number % 3
    fewer = drawn(replace(SECRET, clients=1000))
    for number in range(6):
        assert np.array_equal(fewer[number], cohorts[number][cohorts[number] < 1000])
    assert abs((lane == other).mean() - 1 / 3) < 5 * (2 / 9 / 3000) ** 0.5
    assert not np.array_equal(lane, np.arange(3000) % 3)


def test_faults_of_secret_lanes_are_found():
    """A lane drawn anew each epoch, lanes that are public ones, unequal lanes, a bin kept, sizes of unequal lanes."""
    sound = drawn(SECRET, rounds=18)
    anew = [*sound[:6], *drawn(SECRET, seed=9)[:6], *sound[12:]]
    assert "of lane" in fault_in(SECRET, anew)
    bins = [*sound[:6], *sound[:6], *sound[:6]]
    assert "not drawn anew" in fault_in(SECRET, bins)
    lane = np.zeros(3000, dtype=int)
    for number in range(6):
        lane[sound[number]] = number % 3
    moved = np.flatnonzero(lane == 0)[:200]  # from lane 0 to lane 1, in all epochs
    unequal = [np.setdiff1d(ids, moved) if number % 3 == 0 else ids for number, ids in enumerate(sound)]
    for epoch in range(3):
        halves = np.array_split(np.random.default_rng(epoch).permutation(moved), 2)
        for half, number in zip(halves, (6 * epoch + 1, 6 * epoch + 4), strict=True):
            unequal[number] = np.union1d(unequal[number], half)
    assert "not drawn uniformly" in fault_in(SECRET, unequal)
    once = [ids[1:] if number == 3 else ids for number, ids in enumerate(sound)]
    assert "takes part in none" in fault_in(SECRET, once)
