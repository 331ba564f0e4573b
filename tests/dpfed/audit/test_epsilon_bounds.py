"""Lower bounds: their coverage exactly and by repetition, their strength, and what choosing on the scores does."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from accounting import gaussian
from dpfed.audit import thresholds
from dpfed.audit.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift, gdp_lower_bound
from dpfed.audit.scores import ErrorCounts
from dpfed.audit.thresholds import HeldOut, Thresholds, best_of_limits
from dpfed.errors import ConfigError

DELTA, ALPHA = 1e-5, 0.05
TRUTH = {1.0: 4.3772, 0.5: 1.9933}  # epsilon of mu at delta = 1e-5


def worlds(rng, n, mu):
    return rng.standard_normal(n), rng.standard_normal(n) + mu


def from_counts(bound, k0, n0, k1, n1, **options):
    """With k0 scores of world 0 at or above the threshold and k1 of world 1 below it."""
    cut = Thresholds(values=(0.5,), origin="fixed in this test")
    scores = (np.arange(n0) < k0).astype(float), (np.arange(n1) >= k1).astype(float)
    return bound(*scores, alpha=ALPHA, thresholds=cut, **options)


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("n", [1, 12, 40])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("bound", [epsilon_lower_bound, gdp_lower_bound])
def test_above_the_truth_with_probability_at_most_alpha_exactly(bound, mu, n):
    """Summed over all pairs of counts, at thresholds in the middle and in the tail."""
    truth = float(gaussian.smallest_epsilon(DELTA, mu=mu))
    table = np.array(
        [[from_counts(bound, a, n, b, n, delta=DELTA).epsilon for b in range(n + 1)] for a in range(n + 1)]
    )
    for t in (mu / 2, mu + 1.0, -0.5):
        p0, p1 = (binom.pmf(np.arange(n + 1), n, rate) for rate in (norm.sf(t), norm.cdf(t - mu)))
        assert p0 @ (table > truth) @ p1 <= ALPHA


def test_a_pure_mechanism_meets_its_epsilon_and_never_more_often_than_alpha_goes_above():
    """Randomised response is the worst case of (epsilon, 0): the errors are 1 / (1 + e^epsilon)."""
    n, truth = 60, 1.0
    table = np.array(
        [[from_counts(epsilon_lower_bound, a, n, b, n, delta=0.0).epsilon for b in range(n + 1)] for a in range(n + 1)]
    )
    pmf = binom.pmf(np.arange(n + 1), n, 1 / (1 + math.e))
    assert 0.001 < pmf @ (table > truth) @ pmf <= ALPHA


@pytest.mark.parametrize("mu", [1.0, 0.5])
def test_hundred_thousand_trials_show_nearly_the_epsilon_of_a_gaussian(mu):
    """Medians of 25; the bound without the Gaussian assumption is far weaker, which is why it is not the verdict."""
    rng = np.random.default_rng(1)
    n = 50_000
    cut = thresholds.claimed_gaussian(mu, trials=n, alpha=ALPHA)
    tail = thresholds.claimed_gaussian(mu, trials=n, alpha=ALPHA, delta=DELTA)
    shown = {"gdp": [], "any": [], "gdp held out": [], "any held out": []}
    for seed in range(25):
        scores = worlds(rng, n, mu)
        for name, bound, fixed in (("gdp", gdp_lower_bound, cut), ("any", epsilon_lower_bound, tail)):
            shown[name].append(bound(*scores, delta=DELTA, alpha=ALPHA, thresholds=fixed).epsilon)
            held = bound(*scores, delta=DELTA, alpha=ALPHA, thresholds=HeldOut(seed=seed))
            shown[name + " held out"].append(held.epsilon)
    medians = {name: float(np.median(values)) for name, values in shown.items()}
    expected = {
        1.0: {"gdp": 4.26, "any": 2.60, "gdp held out": 4.18, "any held out": 2.37},
        0.5: {"gdp": 1.90, "any": 1.13, "gdp held out": 1.83, "any held out": 0.90},
    }[mu]
    for name, value in expected.items():
        assert medians[name] == pytest.approx(value, abs=0.05 if name.startswith("gdp") else 0.2)
    assert TRUTH[mu] > medians["gdp"] > (4.2 if mu == 1.0 else 1.85)


@pytest.mark.parametrize("n", [50, 500, 50_000])
def test_coverage_over_500_repetitions(n):
    """The counts of 500 audits are drawn from their binomial laws. More than 41 above the truth of 500 has
    probability 0.001 at 5%."""
    rng = np.random.default_rng(n)
    (t,) = thresholds.claimed_gaussian(1.0, trials=n, alpha=ALPHA).values
    k0, k1 = rng.binomial(n, norm.sf(t), 500), rng.binomial(n, norm.cdf(t - 1.0), 500)
    above = 0
    for a, b in zip(k0, k1, strict=True):
        result = from_counts(gdp_lower_bound, int(a), n, int(b), n, delta=DELTA)
        above += result.mu > 1.0
    assert above <= int(binom.ppf(0.999, 500, ALPHA)) == 41


def test_choosing_and_measuring_on_the_same_scores_breaks_coverage():
    """Planted fault: the loudest of all thresholds taken as if it had been fixed.

    Laplace noise is at its epsilon at every threshold in the tails, so each is a chance to go above it. One fixed
    threshold, held-out trials, and all thresholds at once (Bonferroni) stay within alpha.
    """
    rng = np.random.default_rng(4)
    n, epsilon, repetitions = 20_000, 3.0, 100
    candidates = np.linspace(-4, 5, 901)
    above = {"snooped": 0, "fixed": 0, "held out": 0, "bonferroni": 0}
    for seed in range(repetitions):
        scores = rng.laplace(0, 1 / epsilon, n), rng.laplace(1, 1 / epsilon, n)
        every = ErrorCounts.of(*scores, candidates)
        one = ErrorCounts(**{**vars(every), "thresholds": np.zeros(1)})  # forgets how many were tried
        loudest = candidates[np.argmax(best_of_limits(*one.upper_limits(alpha=ALPHA), 0.0))]
        cuts = {
            "snooped": Thresholds(values=(float(loudest),), origin="a lie"),
            "fixed": Thresholds(values=(1.2,), origin="fixed in this test"),
            "held out": HeldOut(seed=seed),
            "bonferroni": Thresholds(values=tuple(candidates[::10].tolist()), origin="a grid"),
        }
        for name, cut in cuts.items():
            above[name] += epsilon_lower_bound(*scores, delta=0.0, alpha=ALPHA, thresholds=cut).epsilon > epsilon
    allowed = int(binom.ppf(0.999, repetitions, ALPHA))
    assert above.pop("snooped") > allowed == 13
    assert max(above.values()) <= allowed


def test_held_out_scores_are_not_measured():
    result = epsilon_lower_bound(
        np.zeros(100), np.ones(60), delta=0.0, alpha=ALPHA, thresholds=HeldOut(seed=0, fraction=0.25)
    )
    assert (result.trials0, result.trials1) == (75, 45)
    assert result.epsilon == pytest.approx(math.log(0.025 ** (1 / 45) / (1 - 0.025 ** (1 / 75))))


@pytest.mark.parametrize(
    ("t", "delta", "epsilon"),
    [
        (2.0, 0.0, 1.0247937367661484),
        (2.0, 0.01, 1.0023162278165132),
        (3.0, 1e-5, 0.6667881244263469),
        (3.9, 0.0, 2.045013226017006),
        (3.9, 1e-5, 2.0449847872065683),
    ],
)
def test_equal_to_jax_privacy_at_an_explicit_threshold(t, delta, epsilon):
    """jax-privacy 2.0.0, file auditing.py: CanaryScoreAuditor(in, out).epsilon_clopper_pearson(0.05, delta,
    one_sided=False, threshold_strategy=Explicit(t)) with these scores."""
    scores0 = np.arange(400) / 100
    cut = Thresholds(values=(t,), origin="fixed in this test")
    result = epsilon_lower_bound(scores0, scores0 + 1.5, delta=delta, alpha=0.05, thresholds=cut)
    assert result.epsilon == pytest.approx(epsilon, rel=1e-9)


def test_equal_to_jax_privacy_for_gaussians():
    """epsilon_from_gdp(0.05, 1e-5) of the same scores, with alpha shared by the 6 thresholds that it kept; the largest
    of their bounds is at 1.5."""
    scores0 = np.arange(400) / 100
    cut = Thresholds(values=(1.5,), origin="fixed in this test")
    result = gdp_lower_bound(scores0, scores0 + 1.5, delta=1e-5, alpha=0.05 / 6, thresholds=cut)
    assert result.epsilon == pytest.approx(8.300858718371861, rel=1e-8)


@pytest.mark.parametrize("mu", [1e-6, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_epsilon_of_a_shift_is_rounded_downwards(mu, delta):
    epsilon = epsilon_of_shift(mu, delta=delta)
    assert epsilon == 0 or float(gaussian.privacy_profile(epsilon, mu=mu)) >= delta
    assert epsilon <= gaussian.smallest_epsilon(delta, mu=mu)
    assert epsilon == pytest.approx(gaussian.smallest_epsilon(delta, mu=mu), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("bound", [epsilon_lower_bound, gdp_lower_bound])
@pytest.mark.parametrize("scores", [([0.0], [1.0]), ([1.0] * 50, [1.0] * 50), ([0.0] * 50, [0.0] * 50)])
def test_nothing_seen_is_zero(bound, scores):
    """A single trial, k = n in one world and 0 in the other, all scores on one side."""
    cut = Thresholds(values=(0.5,), origin="fixed in this test")
    assert bound(*scores, delta=DELTA, alpha=ALPHA, thresholds=cut).epsilon == 0


@pytest.mark.parametrize("cut", [0.5, [0.5], None])
def test_a_bare_number_is_no_threshold(cut):
    with pytest.raises(ConfigError, match="settled before the scores were drawn, or HeldOut"):
        epsilon_lower_bound([0.0], [1.0], delta=0.0, alpha=ALPHA, thresholds=cut)


def test_delta_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"delta=1.0"):
        from_counts(epsilon_lower_bound, 0, 5, 0, 5, delta=1.0)


def test_nan_scores_are_refused():
    with pytest.raises(ConfigError, match="scores0: 1 of 1 scores are NaN"):
        gdp_lower_bound([math.nan], [1.0], delta=DELTA, alpha=ALPHA, thresholds=HeldOut(seed=0))


def test_infinite_scores_held_out():
    result = epsilon_lower_bound([-math.inf] * 40, [math.inf] * 40, delta=0.0, alpha=ALPHA, thresholds=HeldOut(seed=0))
    assert result.epsilon > 1
