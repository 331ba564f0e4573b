"""Balls-and-bins in public lanes: the account against all patterns at few rounds, and what breaks it."""

import itertools
import math

import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused
from scipy.linalg import toeplitz

from accounting import Composed
from accounting.compose import accountant, lower_bound, rdp
from accounting.compose.profiles import profile
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.factorisation import sensitivity, square_root
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import BallsAndBins, DiscreteGaussian, Subsampled, from_dict, subsample
from accounting.mechanisms.samplings.allocation import divisors

DELTA = 6000**-1.1
DRAWS = 100_000


def of(schedule, rounds, z=1.0, adjacency="zero-out"):
    noise = gaussian(z, adjacency)
    return times(Subsampled(mechanism=noise, sampling=schedule), rounds)


def matrix(c, rounds):
    return toeplitz(np.append(c, np.zeros(max(rounds - len(c), 0)))[:rounds], np.zeros(rounds))


def patterns_of(rounds, bins, lane_of, lane):
    """Every set of rounds of a client of this lane: one of its lane's rounds in each epoch, cut at the last round."""
    of_lane = [[t for t in range(first, first + bins) if lane_of(t) == lane] for first in range(0, rounds, bins)]
    return [[t for t in chosen if t < rounds] for chosen in itertools.product(*of_lane)]


def divergences(patterns, c, rounds, z, epsilons, seed=3):
    """H(P || Q) and H(Q || P) of the mixture over all patterns, with standard errors: shapes [orders, epsilons]."""
    columns, rng = matrix(c, rounds) / z, np.random.default_rng(seed)
    means = np.array([columns[:, pattern].sum(axis=1) for pattern in patterns])
    halves = np.square(means).sum(axis=1) / 2
    found = []
    for order in (0, 1):
        x = rng.standard_normal((DRAWS, rounds))
        if order == 0:
            x += means[rng.integers(len(means), size=DRAWS)]
        ratio = np.exp(x @ means.T - halves).mean(axis=1) ** (1 if order == 0 else -1)
        shown = np.maximum(1 - np.exp(epsilons) / ratio[:, None], 0)
        found.append((shown.mean(axis=0), shown.std(axis=0) / math.sqrt(DRAWS)))
    return np.array([one for one, _ in found]), np.array([error for _, error in found])


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("rounds", "bins", "lanes", "bands"),
    [(4, 4, 2, 2), (8, 4, 2, 2), (6, 6, 3, 2), (7, 4, 2, 2), (6, 6, 2, 1), (5, 2, 2, 2)],
)
def test_all_lanes_are_below_the_account_and_one_attains_it(rounds, bins, lanes, bands):
    """Draws 100,000 of all patterns, 5 standard errors: a wrong alarm with probability below 1e-5 a case."""
    c, z, epsilons = square_root(bands), 1.1, np.array([0.1, 0.7, 1.5])
    schedule = BallsAndBins(bins=bins, lanes=lanes, coefficients=tuple(c))
    claimed = profile(of(schedule, rounds, z))(epsilons)
    largest = np.zeros(3)
    for lane in range(lanes):
        shown, error = divergences(patterns_of(rounds, bins, lambda t: t % lanes, lane), c, rounds, z, epsilons)
        assert np.all(shown - 5 * error <= claimed)
        largest = np.maximum(largest, (shown + 5 * error).max(axis=0))
    if rounds % lanes == 0:
        assert np.all(largest >= claimed * (1 - 1e-3))


def broken(patterns, c, rounds, z, claim, delta=1e-3):
    """True if the patterns show more, by 5 standard errors, than is claimed at `delta`."""
    epsilon = accountant.epsilon(claim, delta=delta)
    shown, error = divergences(patterns, c, rounds, z, np.array([epsilon]))
    return bool(np.any(shown - 5 * error > delta))


C = np.array([1.0, 0.8])
NORM = float(np.linalg.norm(C))
FAULTS = {
    # (patterns, coefficients, rounds, what would be claimed)
    "lanes of unequal length": (
        patterns_of(6, 3, lambda t: t % 2, 1), C, 6, of(BallsAndBins(bins=2), 4, 1 / NORM),
    ),
    "a lane counted from the epoch's start": (
        patterns_of(6, 3, lambda t: t % 3 % 2, 0), C, 6, of(BallsAndBins(bins=2), 4, 1 / NORM),
    ),
    "another order of lanes in every epoch": (
        [[1, 2]], C, 4, of(BallsAndBins(bins=1), 2, 1 / NORM),
    ),
    "bands one too many": (
        patterns_of(8, 4, lambda t: t % 2, 0), np.array([1.0, 0.9, 0.8]), 8,
        of(BallsAndBins(bins=2), 4, 1 / float(np.linalg.norm([1.0, 0.9, 0.8]))),
    ),
    "a client in rounds of two lanes": (
        [[a, 4 + b] for a in (1, 3) for b in (0, 2)] + [[3, 4]] * 12, C, 8, of(BallsAndBins(bins=2), 4, 1 / NORM),
    ),
    "bins kept for the next run": (
        [[t, 8 + t] for t in (0, 2, 4, 6)], C, 16,
        Composed(parts=tuple(of(BallsAndBins(bins=4, stream=run), 4, 1 / NORM).parts[0] for run in "ab")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_condition_is_needed(name):
    """Without it the account would state too small an epsilon, which the same check finds."""
    patterns, c, rounds, claim = FAULTS[name]
    assert broken(patterns, c, rounds, 1.0, claim)


def test_the_sound_twin_is_not_flagged():
    for lane in (0, 1):
        claim = of(BallsAndBins(bins=4, lanes=2, coefficients=tuple(C)), 8)
        assert not broken(patterns_of(8, 4, lambda t: t % 2, lane), C, 8, 1.0, claim)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bins": 3, "lanes": 2}, "lanes must divide"),
        ({"bins": 4, "lanes": 2, "coefficients": (1.0, 0.9, 0.8)}, "Use at most 2 bands"),
        ({"bins": 4, "lanes": 2, "coefficients": (1.0, -0.5)}, "coefficients"),
        ({"bins": 4, "lanes": 2, "coefficients": ()}, "coefficients"),
        ({"bins": 4, "lanes": 0}, "lanes"),
        ({"bins": 10**12, "lanes": 7}, "lanes must divide"),
    ],
)
def test_what_the_account_does_not_cover_is_refused(fields, words):
    refused(InvalidParameter, words, BallsAndBins, **fields)


def test_only_gaussian_noise_is_taken_back_and_a_secret_bin_has_no_replacement():
    bands = BallsAndBins(bins=4, lanes=2, coefficients=(1.0, 0.5))
    integers = DiscreteGaussian(dimension=9, l2_bound=9.0, share_variance=99.0, adjacency="zero-out")
    refused(UnsupportedMechanism, "not an integer", subsample, integers, bands)
    with pytest.raises(UnsupportedMechanism, match="replace-one"):
        subsample(gaussian(1.0, "replace-one"), bands)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("lanes", [1, 4, 10, 20, 60])
def test_the_account_is_that_of_a_lane_and_meets_the_lower_bound(lanes):
    c = tuple(square_root(lanes))
    norm = math.hypot(*c)
    run = of(BallsAndBins(bins=60, lanes=lanes, coefficients=c), 180, 1.4 * norm)
    stated = accountant.epsilon(run, delta=DELTA)
    lane = of(BallsAndBins(bins=60 // lanes), 180 // lanes, 1.4)
    assert stated == pytest.approx(accountant.epsilon(lane, delta=DELTA), rel=1e-6)
    assert stated * 0.999 < lower_bound.epsilon(run, delta=DELTA) <= stated
    assert rdp.curve(run, 8.0) == pytest.approx(3 * 8 / 2 / 1.4**2)


def test_a_beginning_costs_no_more_and_is_bracketed():
    schedule, z = BallsAndBins(bins=12, lanes=4, coefficients=tuple(square_root(4))), 2.0
    counts = (1, 2, 3, 4, 5, 8, 11, 12, 13, 17, 23, 24)
    stated = [accountant.epsilon(of(schedule, count, z), delta=1e-4) for count in counts]
    assert np.all(np.diff(stated) >= -1e-9)
    for count in (2, 13, 24):
        assert lower_bound.epsilon(of(schedule, count, z), delta=1e-4) <= stated[counts.index(count)] + 1e-12


def test_as_many_lanes_as_rounds_of_an_epoch_are_a_public_order():
    """One Gaussian of the sensitivity, the columns that are cut off at the end as they are."""
    c, z = square_root(4), 2.0
    for count in (1, 2, 4, 5, 8, 11):
        run = of(BallsAndBins(bins=4, lanes=4, coefficients=tuple(c)), count, z)
        truth = smallest_epsilon(1e-4, mu=sensitivity(c, rounds=count, separation=4) / z)
        assert accountant.epsilon(run, delta=1e-4) == pytest.approx(truth, rel=1e-6)
        assert lower_bound.epsilon(run, delta=1e-4) <= truth * (1 + 1e-12)
    assert not BallsAndBins(bins=4, lanes=4).secret


def test_ledger_lines_are_as_they_were_and_are_checked():
    assert BallsAndBins(bins=60).to_dict() == {"name": "balls-and-bins", "bins": 60, "stream": ""}
    line = of(BallsAndBins(bins=60, lanes=4), 3).to_dict()
    line["parts"][0][0]["sampling"]["lanes"] = 7
    refused(InvalidParameter, "must divide", from_dict, line)


def test_divisors():
    assert divisors(60) == (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
    assert divisors(1) == (1,)
