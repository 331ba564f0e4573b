"""The noise that is drawn is the noise that is charged."""

import math

import numpy as np
import pytest
import torch
from dpfed.stages.client_level import ClientLevelGaussian
from scipy import stats

from accounting import Adjacency, FixedSizeSampling, Gaussian, PoissonSampling, Subsampled
from dpfed.errors import ConfigError
from dpfed.participation.sampling import sampler
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds
from dpfed.stages.adaptive_clip import AdaptiveClip

SIZE = 100_000
# Seeded; the rate at which a right implementation would fail for another seed.
FALSE_ALARM = 1e-4


def private(placement="server", sampling="fixed", cohort=25, **options):
    return ClientLevelGaussian(
        noise_multiplier=options.pop("noise_multiplier", 1.3),
        adjacency=options.pop("adjacency", Adjacency.ZERO_OUT),
        sampler=sampler(sampling, clients=100, cohort=cohort),
        randomness=Simulated(seeds=Seeds(root=5)),
        placement=placement,
        **options,
    )


def noise_of_the_sum(privacy, norm, cohort=25, round=0):
    rows = privacy.share(torch.zeros(cohort, SIZE), np.arange(cohort), norm, round)
    return privacy.finish(rows.sum(dim=0), norm, round).double().numpy()


def variance_p_value(noise, std):
    """Two-sided chi-square test that the noise has this standard deviation."""
    statistic = (noise**2).sum() / std**2
    return 2 * min(stats.chi2(SIZE).cdf(statistic), stats.chi2(SIZE).sf(statistic))


@pytest.mark.parametrize("placement", ["server", "clients"])
@pytest.mark.parametrize("norm", [0.1, 3.0])
def test_noise_on_the_sum_has_the_charged_deviation(placement, norm):
    privacy = private(placement)
    noise = noise_of_the_sum(privacy, norm)
    assert privacy.release(norm, 0, SIZE, 25).noise_std == pytest.approx(1.3 * norm)
    assert variance_p_value(noise, 1.3 * norm) > FALSE_ALARM
    assert stats.kstest(noise / (1.3 * norm), "norm").pvalue > FALSE_ALARM


def test_shares_of_a_r_th_of_the_deviation_are_caught():
    """Planted fault: shares z C / r instead of z C / sqrt(r)."""
    privacy = private("clients")
    rows = privacy.share(torch.zeros(25, SIZE), np.arange(25), 1.0, 0) / math.sqrt(25)
    assert variance_p_value(rows.sum(dim=0).double().numpy(), 1.3) < FALSE_ALARM


def test_noise_differs_between_rounds_and_clients():
    privacy = private("clients")
    rows = privacy.share(torch.zeros(2, SIZE), np.array([3, 4]), 1.0, 0)
    later = privacy.share(torch.zeros(1, SIZE), np.array([3]), 1.0, 1)
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.02
    assert abs(np.corrcoef(rows[0], later[0])[0, 1]) < 0.02


def test_shares_do_not_depend_on_the_group_a_client_is_in():
    privacy = private("clients")
    together = privacy.share(torch.zeros(3, 10), np.array([1, 2, 3]), 1.0, 0)
    alone = privacy.share(torch.zeros(1, 10), np.array([2]), 1.0, 0)
    assert together[1].equal(alone[0])


def test_the_mechanism_names_sampler_and_adjacency():
    mechanism = private(sampling="poisson", adjacency=Adjacency.ADD_REMOVE).mechanism()
    assert mechanism == Subsampled(
        mechanism=Gaussian(noise_multiplier=1.3, adjacency=Adjacency.ADD_REMOVE),
        sampling=PoissonSampling(probability=0.25),
    )
    assert private().mechanism().sampling == FixedSizeSampling(cohort=25, clients=100)


def test_client_shares_under_poisson_sampling_are_refused():
    with pytest.raises(ConfigError, match="secret cohort size"):
        private("clients", sampling="poisson", adjacency=Adjacency.ADD_REMOVE)


def test_add_remove_under_fixed_size_sampling_is_refused():
    with pytest.raises(ValueError, match="replace-one"):
        private(adjacency=Adjacency.ADD_REMOVE)


ADAPTIVE = AdaptiveClip(quantile=0.5, rate=0.2, count_noise_std=1.25)


def test_the_count_is_inside_the_budget():
    """The joint release, as one Gaussian in whitened coordinates, moves by exactly 1 / noise_multiplier."""
    privacy = private(adaptive=ADAPTIVE)
    update_shift = 1 / privacy.update_noise_multiplier  # a vector of norm C over noise z_u C
    count_shift = 0.5 / ADAPTIVE.count_noise_std  # b - 1/2 in {-1/2, 1/2}, or 0 for nobody
    assert math.hypot(update_shift, count_shift) == pytest.approx(1 / 1.3, rel=1e-12)
    assert privacy.mechanism().mechanism.noise_multiplier == pytest.approx(1.3, rel=1e-12)
    assert privacy.update_noise_multiplier > 1.3


def test_noise_with_adaptive_clipping_is_the_larger_one():
    privacy = private(adaptive=ADAPTIVE)
    noise = noise_of_the_sum(privacy, 2.0)
    assert variance_p_value(noise, privacy.update_noise_multiplier * 2.0) > FALSE_ALARM
    assert variance_p_value(noise, 1.3 * 2.0) < FALSE_ALARM


def test_a_count_that_costs_more_than_the_release_is_refused():
    with pytest.raises(ConfigError, match="count_noise_std"):
        private(adaptive=AdaptiveClip(quantile=0.5, rate=0.2, count_noise_std=0.6))


def test_the_clip_norm_finds_the_quantile():
    """Norms uniform in [0, 10], quantile 0.7, tiny noise: the fixed point is 7."""
    norms = np.linspace(0, 10, 1001)
    adaptive = AdaptiveClip(quantile=0.7, rate=0.3, count_noise_std=1e-6)
    norm = 0.1
    for _ in range(200):
        norm = adaptive.next_norm(norm, float((norms <= norm).sum() - len(norms) / 2), 0.0, len(norms))
    assert norm == pytest.approx(7.0, abs=0.05)


@pytest.mark.parametrize("field", ["quantile", "rate", "count_noise_std"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_adaptive_settings_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        AdaptiveClip(**{"quantile": 0.5, "rate": 0.2, "count_noise_std": 1.0, field: value})
