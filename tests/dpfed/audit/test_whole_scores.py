"""One run from whole scores under a known law: its error rate, measured; its strength; and what breaks it."""

import numpy as np
import pytest
from scipy.stats import binom

from accounting.mechanisms import FixedSizeSampling
from dpfed.audit.epsilon_bounds import epsilon_of_shift
from dpfed.audit.score_law import Deviation, drawn, plain
from dpfed.audit.whole_scores import WholeScores
from dpfed.errors import ConfigError

ALPHA = 0.05
LAWS = {
    "gaussian": plain(1.0),
    "weak": plain(0.2),
    "a drawn cohort": drawn(FixedSizeSampling(clients=20, cohort=5), 20, 1.5, out=0.5, rest=0.0, expected=0.0),
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


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("canaries", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_error_rate_is_what_is_stated(name, canaries):
    """600 runs; above 1.2 alpha = 6% by more than chance, 55 of 600, has probability 1e-3."""
    rng, law, above = np.random.default_rng(3), LAWS[name], 0
    ready = WholeScores.of(law)
    for _ in range(600 if canaries == 100 else 200):
        present = rng.random(canaries) < 0.5
        above += ready.moved_at_least(scores_of(law, present, rng), present, alpha=ALPHA) > 1.0
    assert above <= int(binom.ppf(0.999, 600 if canaries == 100 else 200, 1.2 * ALPHA))


def test_a_hundred_thousand_canaries_show_nearly_the_epsilon_of_a_gaussian():
    """Medians of 9, truth 4.377: thresholds show 2.8, or 3.5 along a Gaussian's curve."""
    rng, law, shown = np.random.default_rng(5), plain(1.0), []
    ready = WholeScores.of(law)
    for _ in range(9):
        present = rng.random(100_000) < 0.5
        factor = ready.moved_at_least(scores_of(law, present, rng), present, alpha=ALPHA)
        shown.append(epsilon_of_shift(factor, delta=1e-5))
    assert 4.25 < np.median(shown) < 4.3772


def test_a_canary_that_moves_too_far_is_noticed():
    """Planted fault: half as far again as claimed, in 1,000 canaries."""
    rng, law = np.random.default_rng(7), plain(1.0)
    present = rng.random(1000) < 0.5
    scores = scores_of(law, present, rng, Deviation(too_far=0.5))
    assert 1.2 < WholeScores.of(law).moved_at_least(scores, present, alpha=ALPHA) < 1.5


def test_scores_that_say_nothing_show_nothing():
    rng = np.random.default_rng(1)
    present = rng.random(400) < 0.5
    ready = WholeScores.of(plain(1.0))
    assert ready.moved_at_least(rng.standard_normal(400), present, alpha=ALPHA) < 0.2
    assert ready.moved_at_least(-5.0 * present, present, alpha=ALPHA) == 0.0


def test_coins_of_the_wrong_kind_break_the_bound():
    """Planted fault: those present are chosen by their scores; nearly every bound is above the truth."""
    rng, law, above = np.random.default_rng(2), plain(1.0), 0
    ready = WholeScores.of(law)
    for _ in range(20):
        present = rng.random(200) < 0.5
        scores = scores_of(law, present, rng)
        chosen = scores > np.median(scores)
        above += ready.moved_at_least(scores, chosen, alpha=ALPHA) > 1.0
    assert above == 20


@pytest.mark.parametrize("included", [np.zeros(80, dtype=bool), np.ones(80), np.ones(3, dtype=bool)])
def test_coins_that_are_none_are_refused(included):
    with pytest.raises(ConfigError, match=r"included|present"):
        WholeScores.of(plain(1.0)).moved_at_least(np.zeros(80), included, alpha=ALPHA)
