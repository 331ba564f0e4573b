"""The laws behind the audit of runs, against enumeration and sampling; each test sees the fault it is for."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from dpfed.audit.evidence import cohort_members, noise_evidence
from dpfed.audit.evidence.noise_evidence import ChargedNoise
from dpfed.diagnostics import watch
from dpfed.mechanisms.integer_distributions import DiscreteGaussianLaw, SkellamLaw
from dpfed.participation import sampling
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds


@pytest.mark.parametrize("ids", [[], [0], [5, 5, 9], [0, 299], list(range(300)), [7, 299_999], [1, 70_000, 2**33]])
def test_members_are_read_back_and_stay_small(ids):
    clients = max(300, max(ids, default=0) + 1)
    assert sampling.parse_members(
        sampling.members_text(np.array(ids, dtype=np.int64), clients), clients
    ).tolist() == sorted(ids)
    large = np.sort(np.random.default_rng(1).choice(10**6, 10_000, replace=False))
    text = sampling.members_text(large, 10**6)
    assert np.array_equal(sampling.parse_members(text, 10**6), large)
    assert len(text) < 27_000
    assert sampling.members_text(np.arange(10**5), 10**5) == "all"


@pytest.mark.parametrize("text", ["", "3:AA==", "1:AAA", "2:AA==", "1:é", "8://////////8=", "1:/w==", "x"])
def test_members_that_nobody_wrote_are_one_error(text):
    with pytest.raises(ValueError, match="members"):
        sampling.parse_members(text, 60)


def test_the_law_of_overlaps_is_that_of_enumeration():
    clients, sizes = 5, (2, 3, 2)
    subsets = {k: [set(one) for one in itertools.combinations(range(clients), k)] for k in (2, 3)}
    exact = np.zeros(10)
    for a, b, c in itertools.product(*(subsets[k] for k in sizes)):
        exact[len(a & b) + len(b & c)] += 1 / (10 * 10 * 10)
    first, mass = cohort_members.distribution_of_total(cohort_members.overlap_distributions(sizes, 1, clients))
    assert np.allclose(exact[first : first + len(mass)], mass, atol=1e-14)
    assert exact.sum() == pytest.approx(exact[first : first + len(mass)].sum())


def finding(clients, rounds, draw, alpha):
    cohorts = [(number + 1, np.sort(draw(number))) for number in range(rounds)]
    return cohort_members.members_finding(None, clients, cohorts, alpha=alpha)


@pytest.mark.slow
def test_cohorts_drawn_anew_seldom_fail_and_are_looked_at():
    """400 runs at 5%: more than the exact limit with probability 1e-4. At 100% the tests do see chance."""
    generator = np.random.default_rng(3)
    wrong = loose = 0
    for _ in range(400):
        cohorts = [np.flatnonzero(generator.random(40) < 0.2) for _ in range(12)]
        wrong += finding(40, 12, cohorts.__getitem__, 0.05)[0] is False
        loose += finding(40, 12, cohorts.__getitem__, 1.0)[0] is False
    assert wrong <= binom.isf(1e-4, 400, 0.05)
    assert loose > 40


def test_cohorts_that_are_not_drawn_anew_fail():
    generator = np.random.default_rng(4)
    kept = generator.choice(1000, 30, replace=False)
    periodic = [generator.choice(1000, 30, replace=False) for _ in range(9)]
    drawn = {
        "kept": lambda t: kept,
        "a period beyond the lags": lambda t: periodic[t % 9],
        "half kept": lambda t: np.union1d(kept[:15], 15 + generator.choice(985, 15, replace=False))[:30],
        "in turn": lambda t: np.arange(30 * t, 30 * t + 30) % 1000,
        "in pairs": lambda t: np.add.outer([0, 500], generator.choice(500, 15, replace=False)).ravel(),
    }
    for name, draw in drawn.items():
        rounds = {"in turn": 300, "in pairs": 80}.get(name, 20)
        assert finding(1000, rounds, draw, 0.001)[0] is False, name
    few = [generator.choice(20, 4, replace=False) for _ in range(50)]
    assert finding(20, 60, lambda t: few[generator.integers(50)], 0.001)[0] is False  # 60 of 4,845 cohorts
    assert finding(1000, 300, lambda t: generator.choice(1000, 30, replace=False), 0.001)[0]


def test_a_thousand_rounds_of_a_million_clients_take_seconds():
    generator = np.random.default_rng(5)
    assert finding(10**6, 40, lambda t: np.flatnonzero(generator.random(10**6) < 0.01), 1e-6)[0]
    laws = cohort_members.overlap_distributions([10_000 + t % 90 for t in range(1000)], 1, 10**6)
    first, mass = cohort_members.distribution_of_total(laws)
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-7)
    mean = sum((10_000 + t % 90) * (10_000 + (t + 1) % 90) / 10**6 for t in range(999))
    assert float(((first + np.arange(len(mass))) * mass).sum()) == pytest.approx(mean, rel=1e-7)


def test_the_bound_on_correlations_holds_and_is_of_use():
    """Of fresh Gaussians a twentieth at most is beyond the value where the bound is 5%; tiled ones all are."""
    torch.manual_seed(1)
    for entries in (20, 200, 5_000):
        limit = noise_evidence.correlation_that_is_found(entries, 0.05)
        assert noise_evidence.p_value_of_correlation(entries, limit) == pytest.approx(0.05)
        fresh = [float(watch.correlations(torch.randn(entries).double()).abs().max()) for _ in range(400)]
        assert sum(one > limit for one in fresh) <= binom.isf(1e-4, 400, 0.05)
    for parts in (2, 3, 10):
        tiled = torch.randn(5_000 // parts).repeat(parts).double()
        assert float(watch.correlations(tiled).abs().max()) > 0.45
    assert noise_evidence.correlation_that_is_found(5_000, 1e-6) < 0.1


@pytest.mark.parametrize("entries", [2, 3, 64, 997, 5_000])
def test_correlations_are_those_of_the_definition(entries):
    noise = torch.randn(entries, generator=torch.Generator().manual_seed(entries)).double()
    whole = np.correlate(noise.numpy(), noise.numpy(), "full")[entries - 1 :]
    assert np.allclose(watch.correlations(noise), whole[1:] / whole[0], rtol=0, atol=3e-7)
    assert np.allclose(watch.correlations(1e200 * noise), whole[1:] / whole[0], rtol=0, atol=3e-7)
    assert np.allclose(watch.correlations(1e-300 * noise), whole[1:] / whole[0], rtol=0, atol=3e-7)


def test_rounding_of_long_correlations_is_within_its_bound():
    """300 of the 262,143 lags of the longest noise, each against its sum in float64."""
    generator = np.random.default_rng(6)
    noise = generator.standard_normal(1 << 18)
    found = watch.correlations(torch.from_numpy(noise)).numpy()
    for lag in generator.choice(len(found), 300, replace=False):
        exact = float(noise[: len(noise) - lag - 1] @ noise[lag + 1 :]) / float(noise @ noise)
        assert abs(float(found[lag]) - exact) < watch.CORRELATION_ERROR / 30


def test_folded_noise_is_still_normal_and_still_tiled(monkeypatch):
    monkeypatch.setattr(watch, "_MOST_BINS", 64)
    assert watch.bin_count(1_000) == 62
    torch.manual_seed(3)
    assert float(watch.correlations(torch.randn(1_000).double()).abs().max()) < 0.6
    assert float(watch.correlations(torch.randn(20).repeat(50).double()).abs().max()) > 0.6


def charged(variance, *, whole_numbers=True, excess=0.0):
    return ChargedNoise(share_variance=variance, least_draws=1, entries=1, whole_numbers=whole_numbers, excess=excess)


@pytest.mark.parametrize("variance", [1, 9, 400, 40_000])
@pytest.mark.parametrize("law", [DiscreteGaussianLaw, SkellamLaw])
def test_tails_of_integer_noise_are_those_that_are_drawn(law, variance):
    """200,000 draws; each count is outside of its exact limits with probability 2e-6."""
    drawn = np.abs(law(variance).sample(200_000, Simulated(seeds=Seeds(root=3)), "noise", 0))
    one = charged(float(variance), excess=1 / variance if law is SkellamLaw else 0.0)
    for largest in (0, math.isqrt(variance), 2 * math.isqrt(variance), 3 * math.isqrt(variance) + 1):
        for reached in (False, True):
            chance = noise_evidence.tail_probability(one, 1, float(largest), reached=reached)
            count = int((drawn >= largest).sum() if reached else (drawn > largest).sum())
            low, high = binom.ppf(1e-6, len(drawn), chance), binom.isf(1e-6, len(drawn), chance)
            assert low <= count <= high


def test_tails_of_gaussian_noise_are_the_normal_ones():
    for largest in (0.1, 3.0, 9.0):
        found = noise_evidence.tail_probability(charged(4.0, whole_numbers=False), 2, largest, reached=True)
        assert found == pytest.approx(2 * norm.sf(largest / math.sqrt(8)), rel=1e-12)


def test_values_of_counts_are_seldom_as_near_as_the_bound_says():
    generator = np.random.default_rng(6)
    near = [noise_evidence._p_value_of_nearest_counts(generator.standard_normal(6)) for _ in range(4_000)]
    for level in (0.01, 0.1):
        assert sum(one < level for one in near) <= binom.isf(1e-5, 4_000, level)
    assert sum(one < 0.1 for one in near) > 200


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_probes_of_integers_are_exact(rows, dtype):
    drawn = np.random.default_rng(7).integers(-(2**31), 2**31, (rows, 1_000))
    signs = [int(one) for one in watch.direction(1_000, torch.device("cpu"))]
    exact = sum(int(value) * signs[place] for row in drawn for place, value in enumerate(row))
    assert int(watch.probe(torch.from_numpy(drawn).to(dtype))) == exact
