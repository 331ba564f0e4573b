"""The noise that is drawn is the noise that is charged."""

import math

import numpy as np
import pytest
import torch
from refusals import refused
from scipy import stats

from accounting import Adjacency, FixedSizeSampling, Gaussian, PoissonSampling, Subsampled
from accounting.mechanisms.samplings.planned import sampling_of_keys
from dpfed.errors import ConfigError
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.randomness import Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.clip import AdaptiveClip

from ...rounds import configured
from ..announced import a_round

SIZE = 100_000
# Seeded; the rate at which a right implementation would fail for another seed.
FALSE_ALARM = 1e-4


def private(placement="server", sampling="fixed", cohort=25, **options):
    return GaussianNoise(
        noise=Gaussian(
            noise_multiplier=options.pop("noise_multiplier", 1.3),
            adjacency=options.pop("adjacency", Adjacency.ZERO_OUT),
        ),
        sampler=sampling_of_keys(sampling, {"cohort": cohort}).cohorts(100),
        randomness=Simulated(seeds=Seeds(root=5)),
        placement=placement,
        **options,
    )


def noise_of_the_sum(privacy, norm, cohort=25):
    now = a_round(torch.zeros(SIZE), clip_norm=norm, uploads=cohort)
    rows = privacy.client(torch.zeros(cohort, SIZE), np.arange(cohort), now)
    return privacy.server(rows.sum(dim=0), now).double().numpy()


def shares(privacy, clients, size=SIZE, number=0):
    """The noise of these clients."""
    clients = np.array(clients)
    return privacy.client(torch.zeros(len(clients), size), clients, a_round(torch.zeros(size), number=number))


def variance_p_value(noise, std):
    """Two-sided chi-square test that the noise has this standard deviation."""
    statistic = (noise**2).sum() / std**2
    return 2 * min(stats.chi2(SIZE).cdf(statistic), stats.chi2(SIZE).sf(statistic))


@pytest.mark.parametrize("placement", ["server", "clients"])
@pytest.mark.parametrize("norm", [0.1, 3.0])
def test_noise_on_the_sum_has_the_charged_deviation(placement, norm):
    privacy = private(placement)
    noise = noise_of_the_sum(privacy, norm)
    assert privacy.release(a_round(torch.zeros(SIZE), clip_norm=norm, uploads=25)).noise_std == pytest.approx(
        1.3 * norm
    )
    assert variance_p_value(noise, 1.3 * norm) > FALSE_ALARM
    assert stats.kstest(noise / (1.3 * norm), "norm").pvalue > FALSE_ALARM


def test_shares_of_a_r_th_of_the_deviation_are_caught():
    """Planted fault: shares z C / r instead of z C / sqrt(r)."""
    privacy = private("clients")
    rows = shares(privacy, range(25)) / math.sqrt(25)
    assert variance_p_value(rows.sum(dim=0).double().numpy(), 1.3) < FALSE_ALARM


def test_shares_do_not_depend_on_the_group_a_client_is_in():
    privacy = private("clients")
    together = shares(privacy, [1, 2, 3], size=10)
    alone = shares(privacy, [2], size=10)
    assert together[1].equal(alone[0])


def test_the_mechanism_names_sampler_and_adjacency():
    mechanism = private(sampling="poisson", adjacency=Adjacency.ADD_REMOVE).mechanism()
    assert mechanism == Subsampled(
        mechanism=Gaussian(noise_multiplier=1.3, adjacency=Adjacency.ADD_REMOVE),
        sampling=PoissonSampling(probability=0.25),
    )
    assert private().mechanism().sampling == FixedSizeSampling(cohort=25, clients=100)


def adaptive_clip(cohort=25.0, **options):
    options = {"quantile": 0.5, "rate": 0.2, "count_noise_std": 1.25} | options
    return AdaptiveClip(cohort=cohort, randomness=Simulated(seeds=Seeds(root=5)), **options)


ADAPTIVE = adaptive_clip()


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
    refused(ConfigError, "count_noise_std", lambda: private(adaptive=adaptive_clip(count_noise_std=0.6)))


def test_the_clip_norm_finds_the_quantile():
    """Norms uniform in [0, 10], quantile 0.7, no noise: the fixed point is 7."""
    norms = np.linspace(0, 10, 1001)
    adaptive = adaptive_clip(quantile=0.7, rate=0.3, cohort=len(norms))
    norm = 0.1
    for _ in range(200):
        norm = adaptive.moved_norm(norm, float((norms <= norm).sum() - len(norms) / 2))
    assert norm == pytest.approx(7.0, abs=0.05)


@pytest.mark.parametrize("field", ["quantile", "rate", "count_noise_std"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_adaptive_settings_are_refused(field, value):
    refused(ConfigError, field, adaptive_clip, **{field: value})


def test_shares_of_noise_that_an_upload_cannot_hold_are_refused():
    """Rows with entries above 1e20 count as zero: at these settings 7 of 8 uploads, with their noise."""
    settings = ("privacy.placement=clients", "privacy.adjacency=zero-out", "federation.sampling=fixed")
    extreme = ("privacy.clip_norm=1e15", "privacy.noise_multiplier=1e5")
    refused(ConfigError, "shares of noise have a standard deviation", lambda: build(configured(*settings, *extreme)))
    assert build(configured(*settings, *extreme[:1])).method.stages.noise_in_rows
    shares = private("clients", noise_multiplier=1e5)
    refused(ConfigError, "shares of noise", shares.release, a_round(torch.zeros(3), clip_norm=1e15, uploads=25))
