"""Schedules and correlated noise over several rounds, in two worlds: faults are found, sound runs are not flagged."""

import numpy as np
import pytest

from accounting.factorisation.toeplitz import squared_sensitivity
from dpfed.audit.round.method_setting import audited_configuration, round_of
from dpfed.audit.round.several_rounds import RepeatedRounds
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.participation.schedules import CyclicCohorts
from dpfed.runs.experiment import build

SMALL = ("model.hidden=[2]", "federation.cohort=2", "federation.rounds=6")
BINS = (*SMALL, "federation.sampling=balls-and-bins")
SECRET = (
    "model.hidden=[2]", "federation.clients=8", "federation.cohort=2", "federation.rounds=8",
    "federation.sampling=balls-and-bins", "federation.lanes=2", "federation.lane_secrecy=secret",
)  # fmt: skip
ORDER = (*SMALL, "federation.sampling=cyclic", "privacy.buffers=2")


def stream(settings, rounds=6, noise=0.7):
    return RepeatedRounds(one_round=round_of(build(audited_configuration("dp-fedavg", settings, noise))), rounds=rounds)


@pytest.mark.slow
def test_the_score_of_correlated_noise_has_the_claimed_law():
    """Without the client N(0, 1), with it N(sens / z, 1): 5 standard errors, a wrong alarm with probability 1e-6."""
    one = stream(ORDER)
    mu = squared_sensitivity(one.schedule, one.rounds) ** 0.5 / 0.7
    for world, mean in ((0, 0.0), (1, mu)):
        scores = one.scores(world, range(world * 100, world * 100 + 20))
        assert abs(scores.mean() - mean) < 5 / np.sqrt(20)
        assert 0.3 < scores.std() < 2.0


def half_the_noise(self, like, number, now):
    return REAL_NOISE(self, like, number, now) / 2


def in_every_round(self, randomness, number):
    return np.union1d(REAL_ORDER(self, randomness, number), [0])


REAL_NOISE, REAL_ORDER = GaussianNoise._fresh_noise, CyclicCohorts.sample
FAULTS = {
    "half of the noise in secret lanes": (SECRET, 1.0, GaussianNoise, "_fresh_noise", half_the_noise),
    "half of the noise under balls-and-bins": (BINS, 1.0, GaussianNoise, "_fresh_noise", half_the_noise),
    "a client in every round of correlated noise": (ORDER, 1.5, CyclicCohorts, "sample", in_every_round),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_gross_faults_are_found(name, monkeypatch):
    """A sound stream is rejected with probability 5% at most; seeded. Bins that are reused cost little more in six
    rounds: they are for `dpfed audit run`."""
    settings, noise, part, method, broken = FAULTS[name]
    monkeypatch.setattr(part, method, broken)
    assert stream(settings, noise=noise).claim_test(240, alpha=0.05, seed=1).rejected


@pytest.mark.slow
def test_their_twin_is_not_flagged():
    assert not stream(BINS, noise=1.0).claim_test(120, alpha=0.05, seed=1).rejected


def test_the_score_of_secret_lanes_is_of_all_rounds_of_each_lane():
    """The audit's score for 8 rounds in 2 lanes is a sum over lanes of products over epochs of sums over bins."""
    one = stream(SECRET, rounds=8)
    assert one.schedule.secret_lanes
    y = np.random.default_rng(1).standard_normal(8)
    s, c = 1 / 0.7, np.array(one.schedule.coefficients)
    columns = np.array([[c[t - r] if 0 <= t - r < len(c) else 0.0 for t in range(8)] for r in range(8)])
    v = np.exp(s * columns @ np.convolve(c, y)[:8] - s * s * np.square(columns).sum(axis=1) / 2)
    direct = np.log(sum((v[r] + v[r + 2]) * (v[r + 4] + v[r + 6]) for r in range(2)))
    assert one._score([(value, False) for value in y]) == pytest.approx(direct)
