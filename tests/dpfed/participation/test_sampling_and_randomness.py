"""Cohorts follow the law that is charged; randomness repeats where it should and only there."""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from accounting import FixedSizeSampling, FullParticipation, PoissonSampling
from accounting.budget import Everyone, FixedSize, Poisson
from accounting.errors import InvalidParameter
from accounting.mechanisms.samplings.planned import sampling_of_keys
from dpfed.randomness import Secure, Simulated
from dpfed.seeds import Seeds

SOURCES = [Simulated(seeds=Seeds(root=11)), Secure()]
# Tests on Secure() cannot be seeded: their false-alarm rate is set to one in a million, the seeded ones pass or fail
# for ever.
ALPHA = 1e-6


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_poisson_cohort_sizes_follow_the_binomial_law(source):
    who = Poisson(cohort=30).cohorts(200)
    sizes = [len(who.sample(source, t)) for t in range(4000)]
    law = stats.binom(200, 30 / 200)
    cuts = [-1, 22, 25, 27, 29, 31, 33, 35, 38, 200]
    expected = 4000 * np.diff(law.cdf(cuts))
    observed = np.histogram(sizes, bins=np.array(cuts) + 0.5)[0]
    assert stats.chisquare(observed, expected).pvalue > ALPHA


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["poisson", "fixed"])
def test_every_client_is_drawn_equally_often(name, source):
    who = sampling_of_keys(name, {"cohort": 10}).cohorts(50)
    counts = np.bincount(np.concatenate([who.sample(source, t) for t in range(3000)]), minlength=50)
    # The counts of a fixed-size sampler are slightly anticorrelated, which only lowers the statistic.
    statistic = ((counts - 600) ** 2 / (3000 * 0.2 * 0.8)).sum()
    assert stats.chi2(50).sf(statistic) > ALPHA


def test_a_fixed_size_sampler_fails_the_poisson_test():
    """The planted fault: the conformance test above must catch it."""
    who = FixedSize(cohort=30).cohorts(200)
    assert {len(who.sample(SOURCES[0], t)) for t in range(100)} == {30}


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_cohorts_are_sorted_without_repeats(source):
    for name in ("poisson", "fixed", "all"):
        cohort = sampling_of_keys(name, {"cohort": 20}).cohorts(40).sample(source, 3)
        assert np.all(np.diff(cohort) > 0)
        assert cohort.dtype == np.int64


def test_the_law_is_the_accountants_own():
    assert Poisson(cohort=6).cohorts(60).law == PoissonSampling(probability=0.1)
    assert FixedSize(cohort=6).cohorts(60).law == FixedSizeSampling(cohort=6, clients=60)
    assert Everyone().cohorts(60).law == FullParticipation()


@pytest.mark.parametrize("cohort", [0, -1, 61])
def test_an_impossible_cohort_is_refused(cohort):
    with pytest.raises(InvalidParameter):
        Poisson(cohort=cohort).cohorts(60)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_a_population_of_a_million_is_drawn_block_by_block_by_the_same_law(source):
    """Sizes are binomial, ids uniform over all blocks, and no two blocks draw alike."""
    who = Poisson(cohort=2000).cohorts(1_000_000)
    cohorts = [who.sample(source, t) for t in range(20)]
    together = np.concatenate(cohorts)
    law = stats.binom(20_000_000, 2000 / 1_000_000)
    assert 2 * min(law.cdf(len(together)), law.sf(len(together) - 1)) > ALPHA
    assert stats.kstest(together / 1_000_000, "uniform").pvalue > ALPHA
    assert all(np.all(np.diff(cohort) > 0) for cohort in cohorts)
    blocks = [set(cohorts[0][cohorts[0] // (1 << 17) == block] % (1 << 17)) for block in range(7)]
    # Two random subsets of 262 of 131,072 share one in two cases; a stream used twice shares all.
    assert max(len(one & other) for one in blocks for other in blocks if one is not other) < 20


def test_the_coins_of_a_million_take_no_memory_for_all_of_them():
    who = Poisson(cohort=100).cohorts(1_000_000)
    tracemalloc.start()
    who.sample(SOURCES[0], 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000  # of 8 MB for a number each


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_normals_are_standard_normal(source):
    draws = source.normal(200_000, "noise", 0).double().numpy()
    assert stats.kstest(draws, "norm").pvalue > ALPHA
    # Variance by the chi-square law, both tails.
    assert 2 * min(stats.chi2(200_000).cdf((draws**2).sum()), stats.chi2(200_000).sf((draws**2).sum())) > ALPHA


def test_noise_one_percent_short_is_caught():
    """The planted fault of the test above, at its own false-alarm rate."""
    draws = 0.99 * SOURCES[0].normal(200_000, "noise", 0).double().numpy()
    assert 2 * stats.chi2(200_000).cdf((draws**2).sum()) < ALPHA


def test_poisson_sampling_never_draws_more_often_than_is_charged():
    """The uniforms are k / 2^53, so q's of clients / cohorts that are no multiples need a bound below q."""

    class Grid(Secure):
        def uniform(self, count, purpose, *path):
            return (first + np.arange(count)) * 2.0**-53

    for cohort, clients in ((1, 3), (7, 1000), (1, 10**6 + 3), (3, 4)):
        q = Fraction(cohort / clients)
        first, count = int(q * 2**53) - 1, 4
        drawn = Poisson(cohort=cohort).cohorts(clients)
        inside = [k for k in range(first, first + count) if (k - first) in set(drawn.sample(Grid(), 0).tolist())]
        share = Fraction(max(inside) + 1, 2**53)  # the k from 0 to the largest drawn are drawn
        assert q - Fraction(1, 2**53) < share <= q
