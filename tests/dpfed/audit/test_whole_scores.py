"""Whole scores under a known law: the error rate of what they bound, measured; their strength; and what breaks it."""

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom

from accounting.bernoulli.exact import channel_epsilon
from accounting.mechanisms import FixedSizeSampling, PoissonSampling
from dpfed.audit.round.bernoulli_ratios import (
    BernoulliBias,
    BernoulliRatio,
    BernoulliScores,
    least_epsilon,
    whole_scores_of_samples,
)
from dpfed.audit.round.known_distributions import integer_epsilon
from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.score_distribution import Deviation, scores_of_all_clients, scores_of_drawn_cohort
from dpfed.audit.statistics.whole_scores import WholeScores

ALPHA = 0.05
LAWS = {
    "gaussian": scores_of_all_clients(1.0),
    "weak": scores_of_all_clients(0.2),
    "a Poisson cohort": scores_of_drawn_cohort(
        PoissonSampling(probability=0.3), 10, 1.0, out=0.0, rest=-1.0, expected=2.7
    ),
    "a drawn cohort": scores_of_drawn_cohort(
        FixedSizeSampling(clients=20, cohort=5), 20, 1.5, out=0.5, rest=0.0, expected=0.0
    ),
}


def scores_of(law, present, rng, fault=Deviation()):  # noqa: B008 - frozen
    """From a normal mixture, of either world, with a fault."""
    scores = np.empty(present.size)
    for world in (0, 1):
        here = present == bool(world)
        parts = rng.choice(law.means[world].size, int(here.sum()), p=law.weights[world] / law.weights[world].sum())
        means = (law.means[world] + fault.too_far * law.own[world])[parts]
        scores[here] = means + (1 - fault.noise_short) * rng.standard_normal(int(here.sum()))
    return scores


def moved(ready, scores, present):
    return ready.factor_bound(scores[~present], scores[present], alpha=ALPHA)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("canaries", [40, 100, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_error_rate_is_what_is_stated(name, canaries):
    """600 runs; more than 46 of 600 above the truth has probability 1e-3 at 5%."""
    rng, law, above = np.random.default_rng(3), LAWS[name], 0
    ready = WholeScores.from_mixture(law)
    for _ in range(600 if canaries < 2000 else 200):
        present = rng.random(canaries) < 0.5
        above += moved(ready, scores_of(law, present, rng), present) > 1.0
    assert above <= int(binom.ppf(0.999, 600 if canaries < 2000 else 200, ALPHA))


@pytest.mark.parametrize("alpha", [ALPHA, 0.005])
def test_the_error_rate_of_left_skewed_scores(alpha):
    """8,000 runs of 100 scores of a cohort that few are left out of; Student's quantile alone errs in 6.0% and 0.9%.
    More above the truth than allowed here has probability 1e-3 at alpha."""
    law = scores_of_drawn_cohort(FixedSizeSampling(clients=100, cohort=95), 100, 5.0, out=-4.0, rest=0.0, expected=0.0)
    rng, ready, runs = np.random.default_rng(3), WholeScores.from_mixture(law), 8_000
    absent, present = (scores_of(law, np.full(50 * runs, world), rng).reshape(runs, 50) for world in (False, True))
    above = sum(ready.factor_bound(*pair, alpha=alpha) > 1.0 for pair in zip(absent, present, strict=True))
    assert above <= int(binom.ppf(0.999, runs, alpha))


def coins_that_move(bound, edge=0.2, entries=40, others=3, start=0.5):
    """All coins of one client up by `bound` in norm; the others stay."""
    at = torch.full((entries,), start, dtype=torch.float64)
    up = at + bound / entries**0.5
    coins = BernoulliBias(edge=edge)
    ratio = BernoulliRatio.from_probabilities(coins, up, at, at, others)
    return BernoulliScores(coins=coins, ends=(up, at, at), origin=at, ratio=ratio)


def coin_scores(law, factor, count, rng):
    return [law.ratio.draw_ratios(law.ratio_after_move(factor), world, count, rng) for world in (0, 1)]


@pytest.mark.parametrize("start", [0.5, 0.2])
def test_the_error_rate_of_coins_is_what_is_stated(start):
    """600 times 100 sums, drawn from their law; more than 46 above the truth has probability 1e-3 at 5%."""
    rng, law = np.random.default_rng(4), coins_that_move(0.8, start=start)
    ready = whole_scores_of_samples(law)
    absent, present = coin_scores(law, 1.0, 30_000, rng)
    above = sum(ready.factor_bound(absent[k::600], present[k::600], alpha=ALPHA) > 1.0 for k in range(600))
    assert 10 < above <= int(binom.ppf(0.999, 600, ALPHA))


def test_coins_that_move_too_far_are_noticed_and_by_how_much():
    """Planted: half as far again. 6,000 sums show most of it, and D at factor 1.5 is the mean that draws have."""
    rng, law = np.random.default_rng(6), coins_that_move(0.8)
    ready = whole_scores_of_samples(law)
    absent, present = coin_scores(law, 1.5, 3_000, rng)
    assert 1.3 < ready.factor_bound(absent, present, alpha=ALPHA) < 1.5
    drawn_apart, error = present.mean() - absent.mean(), np.hypot(present.std(), absent.std()) / 3_000**0.5
    assert drawn_apart == pytest.approx(np.interp(1.5, ready.factors, ready.differences), abs=5 * error)
    assert ready.smallest_excess_found(3_000, 3_000, alpha=ALPHA, probability=0.9) < 0.2


def test_what_coins_show_is_below_the_exact_epsilon_and_near_it():
    """One coin more of each entry, enumerated: channel_epsilon of single uploads."""
    at, up = np.full(12, 0.5), np.full(12, 0.6)
    ratio = BernoulliRatio.from_probabilities(
        BernoulliBias(edge=0.1), *(torch.from_numpy(one) for one in (up, at, at)), 0
    )
    exact = channel_epsilon(1e-5, p=up, q=at)
    assert 0.995 * exact < least_epsilon(ratio, delta=1e-5) <= exact


@pytest.mark.parametrize("steps", [3, 10])
def test_what_whole_numbers_show_is_below_a_gaussians_and_near_it(steps):
    """Discrete Gaussian noise of 10 steps: the Gaussian's epsilon to 2%; exact for the pair, at a grid of its own."""
    at = np.arange(-130, 131)
    noise = np.exp(-(at**2) / 200.0)
    noise /= noise.sum()
    assert integer_epsilon(noise, steps, delta=1e-5) == pytest.approx(
        epsilon_of_shift(steps / 10, delta=1e-5), rel=0.02
    )
    assert integer_epsilon(noise, steps, delta=1e-5, taking_part=0.1) < 0.7 * integer_epsilon(noise, steps, delta=1e-5)


def test_whole_numbers_need_no_law_of_their_noise():
    """Skellam noise of variance 1, a move of two steps: far from normal, 600 times 100; and a planted third step."""
    rng, above, caught = np.random.default_rng(8), 0, 0
    ready = WholeScores.linear(2.0)
    for _ in range(600):
        absent, present = (rng.poisson(0.5, 50) - rng.poisson(0.5, 50) + world * 2.0 for world in (0, 1))
        above += ready.factor_bound(absent, present, alpha=ALPHA) > 1.0
        caught += ready.factor_bound(absent, present + 1.0, alpha=ALPHA) > 1.0
    assert above <= int(binom.ppf(0.999, 600, ALPHA))
    assert caught > 570


@pytest.mark.parametrize("name", LAWS)
def test_lines_between_factors_are_where_the_difference_is(name):
    """Seven digits by quadrature over a fine grid, halfway between two factors: off by less than is taken off."""
    law, ready, at = LAWS[name], WholeScores.from_mixture(LAWS[name]), np.linspace(-12, 12, 200_001)
    weights = ready.weigh(at[:-1] + np.diff(at) / 2)
    for factor in (0.5125, 0.9875, 1.0125, 1.5125):
        masses = [
            np.diff(sum(chance * ndtr(at - mean) for chance, mean in zip(law.weights[w], means, strict=True)))
            for w, means in enumerate(mean + (factor - 1) * own for mean, own in zip(law.means, law.own, strict=True))
        ]
        exact = float((masses[1] - masses[0]) @ weights)
        assert np.interp(exact, ready.differences, ready.factors) == pytest.approx(factor, abs=1e-4)


def test_power_is_what_draws_show():
    """A client that moves as much too far as `finds` says is found nine times in ten (400 times; 0.9 - 4 errors)."""
    rng, ready = np.random.default_rng(9), WholeScores.from_mixture(scores_of_all_clients(1.0))
    far = ready.smallest_excess_found(500, 500, alpha=ALPHA, probability=0.9)
    found = sum(
        ready.factor_bound(rng.standard_normal(500), 1 + far + rng.standard_normal(500), alpha=ALPHA) > 1.0
        for _ in range(400)
    )
    assert found > 400 * 0.9 - 4 * (400 * 0.09) ** 0.5
    assert ready.smallest_excess_found(5, 500, alpha=ALPHA, probability=0.9) is None


def test_a_hundred_thousand_canaries_show_nearly_the_epsilon_of_a_gaussian():
    """Medians of 9, truth 4.377: thresholds show 2.8, or 3.5 along a Gaussian's curve."""
    rng, law, shown = np.random.default_rng(5), scores_of_all_clients(1.0), []
    ready = WholeScores.from_mixture(law)
    for _ in range(9):
        present = rng.random(100_000) < 0.5
        factor = moved(ready, scores_of(law, present, rng), present)
        shown.append(epsilon_of_shift(factor, delta=1e-5))
    assert 4.25 < np.median(shown) < 4.3772


def test_a_canary_that_moves_too_far_is_noticed():
    """Planted fault: half as far again as claimed, in 1,000 canaries."""
    rng, law = np.random.default_rng(7), scores_of_all_clients(1.0)
    present = rng.random(1000) < 0.5
    scores = scores_of(law, present, rng, Deviation(too_far=0.5))
    assert 1.2 < moved(WholeScores.from_mixture(law), scores, present) < 1.5


def test_scores_that_say_nothing_show_nothing():
    rng = np.random.default_rng(1)
    present = rng.random(400) < 0.5
    ready = WholeScores.from_mixture(scores_of_all_clients(1.0))
    assert moved(ready, rng.standard_normal(400), present) < 0.2
    assert moved(ready, -5.0 * present, present) == 0.0


def test_coins_of_the_wrong_kind_break_the_bound():
    """Planted fault: those present are chosen by their scores; nearly every bound is above the truth."""
    rng, law, above = np.random.default_rng(2), scores_of_all_clients(1.0), 0
    ready = WholeScores.from_mixture(law)
    for _ in range(20):
        present = rng.random(200) < 0.5
        scores = scores_of(law, present, rng)
        chosen = scores > np.median(scores)
        above += moved(ready, scores, chosen) > 1.0
    assert above == 20
