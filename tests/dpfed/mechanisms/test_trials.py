"""Several coins of each probability: the Poisson binomial mechanism."""

import itertools
import math

import numpy as np
import pytest
import torch
from reference import poisson_binomial
from refusals import refused
from scipy import stats

from accounting import BernoulliAggregate, guarantee
from accounting.mechanisms import FullParticipation, unsampled
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.randomness import Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import preset
from ..announced import a_round

SIZE, TRIALS, COHORT = 20_000, 4, 6
# Seeded; the rate at which a right implementation would fail for another seed.
FALSE_ALARM = 1e-4


def stage(trials=TRIALS, cohort=COHORT):
    coins = BernoulliAggregate(dimension=trials * SIZE, floor=0.1, adjacency="zero-out", linf_clip=0.4, cohort=cohort)
    return PrivateCoins(
        coins=coins, sampling=FullParticipation(), randomness=Simulated(seeds=Seeds(root=2)), trials=trials
    )


def half(uploads=0):
    return a_round(torch.full((SIZE,), 0.5), uploads=uploads)


def p_value(counts, probability):
    """Of the counts' frequencies against the binomial law, chi-square."""
    law = stats.binom(TRIALS, probability).pmf(range(TRIALS + 1))
    return stats.chisquare(np.bincount(counts, minlength=TRIALS + 1), len(counts) * law).pvalue


@pytest.mark.parametrize("move", [-0.4, 0.0, 0.13])
def test_an_upload_holds_a_binomial_number_of_ones(move):
    (counts,) = stage().client(torch.full((1, SIZE), move), np.array([3]), half())
    assert p_value(counts.long().numpy(), 0.5 + move) > FALSE_ALARM


def test_one_coin_counted_several_times_is_caught(monkeypatch):
    """Planted fault: all trials draw the same coin."""
    made = stage()
    real = PrivateCoins._draw_samples
    monkeypatch.setattr(PrivateCoins, "_draw_samples", lambda self, *given: real(self, *given[:-1], 0))
    (counts,) = made.client(torch.zeros(1, SIZE), np.array([3]), half())
    assert p_value(counts.long().numpy(), 0.5) < FALSE_ALARM


@pytest.mark.parametrize("uploads", [0, 2, COHORT])
def test_a_sum_decodes_to_the_sum_of_moves(uploads):
    """The mean over entries, at 5 standard deviations; padding coins have mean 0 and fill the sum up."""
    made, move = stage(), 0.2
    rows = made.client(torch.full((uploads, SIZE), move), np.arange(uploads), half())
    decoded = made.server(rows.sum(dim=0), half(uploads)).double()
    assert float(decoded.mean()) == pytest.approx(uploads * move, abs=5 * math.sqrt(COHORT / 4 / TRIALS / SIZE))
    variance = ((uploads * (0.25 - move**2)) + (COHORT - uploads) / 4) / TRIALS
    assert float(decoded.var()) == pytest.approx(variance, rel=0.06)


def hockey_stick(one, other, gamma):
    return np.maximum(np.asarray(one) - gamma * np.asarray(other), 0).sum()


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("trials", [1, 2, 5])
def test_the_sum_shows_no_more_than_is_charged(trials):
    """Exact laws of one coordinate's count, over all ends where the others may lie: delta at the charged epsilon is
    never above delta, in both orders."""
    delta, edge, move, others = 0.01, 0.2, 0.15, 2
    coins = BernoulliAggregate(
        dimension=trials, floor=edge, adjacency="zero-out", l2_clip=math.sqrt(trials) * move, cohort=others + 1
    )
    epsilon = guarantee(coins, delta=delta).epsilon
    for ends in itertools.product((edge, 0.5, 1 - edge), repeat=others):
        rest = [p for p in ends for _ in range(trials)]
        for sign in (1, -1):
            one, other = (poisson_binomial.law([*rest, *[p] * trials]) for p in (0.5 + sign * move, 0.5))
            assert hockey_stick(one, other, math.exp(epsilon)) <= delta
            assert hockey_stick(other, one, math.exp(epsilon)) <= delta


def chosen(*settings):
    how = ("federation.rounds=3", "method.options.bound=0.2", "privacy.noise=coins", "privacy.epsilon=3")
    return preset("stochastic-sign-digits", *how, *settings)


@pytest.mark.slow
def test_what_is_charged_is_every_coin():
    """m times as many coins; the same epsilon allows the same length of all probabilities together, so a clip norm
    1/sqrt(m) of that of one."""
    one, four = (build(chosen(f"privacy.trials={m}")) for m in (1, 4))
    charged = unsampled(four.privacy_target.mechanism)
    assert charged.dimension == 4 * unsampled(one.privacy_target.mechanism).dimension
    assert charged.l2_clip == pytest.approx(2 * four.privacy_target.clip_norm)
    assert four.privacy_target.clip_norm == pytest.approx(one.privacy_target.clip_norm / 2, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("privacy.noise_std=0.1",), "noise_std"),
        (("audit.canaries=4",), "canaries"),
        (("privacy.noise=gaussian", "privacy.clip_norm=1"), "trials"),
        (("method.name=fedmrns", "method.shared=true", "method.options={noise='bernoulli'}"), "fedmrns"),
    ],
)
def test_what_trials_are_not_for_is_refused(settings, named):
    refused(ConfigError, named, lambda: build(chosen("privacy.trials=4", *settings)))


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("kind", ["plain", "protocol"])
def test_a_run_through_sums_of_either_kind(kind, tmp_path):
    from dpfed.audit.run import audit_run
    from dpfed.runs.loop import run

    clip = ("privacy.epsilon=", "privacy.clip_norm=1")  # no clip is searched
    cohort = ("federation.clients=40", "federation.cohort=8", "federation.rounds=2", "local.epochs=1")
    run(build(chosen(f"aggregation.kind={kind}", "privacy.trials=3", *clip, *cohort)), tmp_path / "run")
    assert audit_run(tmp_path / "run").verdict == "pass"
