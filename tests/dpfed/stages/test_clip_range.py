"""Clip norms that float32 holds: the bound is kept to the last bit for all of them, and others are refused by name."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from accounting import Adjacency, BernoulliAggregate
from accounting.budget import Plan
from accounting.errors import InvalidParameter
from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.randomness import Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages import clip
from dpfed.stages.clip import AdaptiveClip, ClippedRows, clip_rows, row_norms

from ..announced import bound
from ..conftest import config_with
from .test_hostile_updates import WAYS, built

pytestmark = pytest.mark.slow_but_one_in(3)

LARGEST = torch.finfo(torch.float32).max
DENORMAL = 2.0**-149
norms = st.floats(min_value=math.log10(SMALLEST_CLIP), max_value=math.log10(LARGEST_CLIP)).map(
    lambda power: min(max(10**power, SMALLEST_CLIP), LARGEST_CLIP)
)
rows_of_floats = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False)
    | st.sampled_from([LARGEST, -LARGEST, DENORMAL, -DENORMAL, 1.2e-38]),
    min_size=1,
    max_size=6,
)


def longer(row, norm):
    """Whether a row of floats is longer than the norm, in rational arithmetic."""
    return sum(Fraction(float(x)) ** 2 for x in row) > Fraction(norm) ** 2


@pytest.mark.slow
@settings(max_examples=500, deadline=None, derandomize=True)
@given(row=rows_of_floats, norm=norms)
def test_no_row_is_longer_than_any_norm_that_is_allowed(row, norm):
    (clipped,) = clip_rows(torch.tensor([row], dtype=torch.float32), norm).rows
    assert not longer(clipped, norm)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    norm=norms,
    times=st.floats(min_value=-8, max_value=0.5).map(lambda power: 1 + 10**power),
    sign=st.sampled_from([1, -1]),
    size=st.sampled_from([1, 2, 7, 1000]),
    seed=st.integers(0, 1000),
)
def test_rows_just_around_the_norm_keep_to_it(norm, times, sign, size, seed):
    """Where a bound with slack lets rows through that no random row would show."""
    row = torch.randn(1, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    row = (row / row.norm() * norm * times**sign).float()
    (clipped,) = clip_rows(row.clone(), norm).rows
    assert not longer(clipped, norm)
    assert float(clipped.double().norm()) >= (1 - 3e-6) * min(norm, float(row.double().norm()))


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("norm", [SMALLEST_CLIP, 3e-7, 1.0, 7e9, LARGEST_CLIP])
@pytest.mark.parametrize("scale", [DENORMAL, 1e-38, 1e-20, 1.0, 1e20, LARGEST])
def test_long_rows_of_any_size_keep_to_it(norm, scale):
    generator = torch.Generator().manual_seed(0)
    size = 100_003 if norm == 1.0 else 10_007
    row = (torch.rand(1, size, generator=generator, dtype=torch.float64) * scale).clamp(max=LARGEST).float()
    assert not longer(clip_rows(row, norm).rows[0], norm)


@pytest.mark.parametrize("norm", [1e-44, 1e-16, 0.0, -1.0, 1e16, 3e38, 1e300, math.inf, math.nan])
def test_a_norm_beyond_them_is_refused(norm):
    refused(ConfigError, r"a clip norm of .*: must be from 1e-15 to 1e\+15", lambda: clip_rows(torch.ones(1, 3), norm))


# Slack

NEAR = (1 - 1e-3, 1 - 1e-7, 1.0, 1 + 1e-7, 1 + 1e-5, 1.001, 1.005, 1.0099, 1.011, 1.5, 1e3, 1e30)


def worst_norm(experiment, norm, size=50):
    """Of bounded rows whose norms are just around the clip norm, and far above: the longest, in units of it."""
    row = torch.randn(1, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    row /= row.norm()
    entry = torch.zeros(1, size, dtype=torch.float64)
    entry[0, 3] = 1.0
    rows = torch.cat([one * norm * times for times in NEAR for one in (row, entry)]).float()
    return float(row_norms(bound(experiment, rows, norm)).max()) / norm


@pytest.mark.slow_but_one_in(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("norm", [1e-3, 0.5, 40.0])
def test_no_method_has_a_bound_with_slack(way, norm):
    worst = worst_norm(built(way), norm)
    assert worst <= 1.0
    assert "linf" in way or worst > 1 - 1e-5  # the bound is reached: the test has power


def only_beyond(slack):
    """The planted fault: rows are left alone up to a norm that is longer."""

    def clip(rows, norm):
        lengths = row_norms(rows)
        inside = lengths <= norm * (1 + slack)
        rows.mul_(torch.where(inside, 1.0, norm * (1 - 1e-6) / lengths).float()[:, None])
        return ClippedRows(rows=rows, inside=inside, outside=~inside, not_finite=0)

    return clip


def everywhere(slack):
    """Another: to a longer norm."""
    return lambda rows, norm: clip_rows(rows, norm * (1 + slack))


@pytest.mark.parametrize("fault", [only_beyond, everywhere], ids=lambda one: one.__name__)
@pytest.mark.parametrize("slack", [0.01, 0.0001, 2e-5])
def test_slack_is_caught(monkeypatch, fault, slack):
    monkeypatch.setattr(clip, "clip_rows", fault(slack))
    assert worst_norm(built("server"), 0.5) > 1 + slack / 20


def test_the_planted_clip_without_slack_would_pass():
    """So that it is the slack which is caught above."""
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(2))
    assert float(row_norms(only_beyond(0.0)(rows, 1.0).rows).max()) <= 1.0


# Where clip norms come in

KEYS = {
    "privacy.clip_norm": (),
    "privacy.linf_clip": ("method.name=fedpm", "privacy.noise_multiplier="),
    "aggregation.clip_norm": (),
    "local.record.clip_norm": ("local.record.noise_multiplier=1.0",),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["1e-44", "1e-16", "1e16", "3e38", "1e300", "inf", "nan"])
def test_one_error_names_the_key(key, value):
    with pytest.raises(ConfigError) as error:
        config_with(*KEYS[key], f"{key}={value}")
    assert key in str(error.value)
    assert "must be from 1e-15 to 1e+15" in str(error.value)
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize("value", ["1e-15", "1e15"])
def test_a_run_at_the_ends_is_finite_and_noised(value):
    experiment = build(config_with(f"privacy.clip_norm={value}"))
    from ...rounds import Book, watched_round

    book = Book()
    after, observed = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=book)
    assert bool(torch.isfinite(after.broadcast).all())
    assert observed.largest_norm <= 1.0
    assert observed.noise.mean_square**0.5 == pytest.approx(2.0 * float(value), rel=0.1)


@pytest.mark.parametrize("norm", [1e-44, 1e-16, 1e16, 1e300])
def test_plans_and_parts_refuse_them_too(norm):
    coins = {"dimension": 10, "edge": 0.1, "clients": 100, "cohort": 10, "delta": 1e-5}
    for name in ("clip_norm", "linf_clip"):
        with pytest.raises(InvalidParameter, match=f"{name}=.*from 1e-15 to 1e\\+15"):
            Plan(mechanism="bernoulli-aggregate", **coins, **{name: norm})
    with pytest.raises(InvalidParameter, match="l2_clip="):
        BernoulliAggregate(dimension=10, floor=0.1, adjacency=Adjacency.ZERO_OUT, l2_clip=norm, cohort=10)
    with pytest.raises(ConfigError, match=r"local\.record\.clip_norm="):
        GaussianRecords(clip_norm=norm, noise=gaussian_noise(1.0), randomness=Simulated(seeds=Seeds(root=0)))


def test_the_command_says_so_in_one_line(capsys):
    command = [
        "budget", "--clients", "5900", "--cohort", "100", "--rounds", "40",
        "--mechanism", "bernoulli-aggregate", "--dimension", "100", "--edge", ".1", "--clip-norm", "1e-44",
    ]  # fmt: skip
    assert status(command) == 2
    assert "clip_norm=1e-44: must be from 1e-15 to 1e+15" in capsys.readouterr().err


@pytest.mark.parametrize("count", [-1e9, -50.0, 50.0, 1e9])
@pytest.mark.parametrize("rate", [0.2, 1e3, 1e300])
def test_an_adapted_norm_stays_inside(count, rate):
    draws = Simulated(seeds=Seeds(root=0))
    adaptive, norm = AdaptiveClip(quantile=0.5, rate=rate, count_noise_std=1.0, cohort=10.0, randomness=draws), 1.0
    for noise in np.random.default_rng(0).standard_normal(400):
        norm = adaptive.moved_norm(norm, count + float(noise))
        assert SMALLEST_CLIP <= norm <= LARGEST_CLIP
    assert norm in (SMALLEST_CLIP, LARGEST_CLIP)
