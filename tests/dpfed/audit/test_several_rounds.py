"""Schedules and correlated noise over several rounds, in two worlds: faults are found, sound runs are not flagged."""

import numpy as np
import pytest

from accounting.factorisation.toeplitz import squares
from dpfed.audit.round.method_setting import configured, round_of
from dpfed.audit.round.several_rounds import Stream
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.participation.schedules import CyclicCohorts
from dpfed.runs.experiment import build

SMALL = ("model.hidden=[2]", "federation.cohort=2", "federation.rounds=6")
BINS = (*SMALL, "federation.sampling=balls-and-bins")
ORDER = (*SMALL, "federation.sampling=cyclic", "privacy.buffers=2")


def stream(settings, rounds=6, noise=0.7):
    return Stream(one=round_of(build(configured("dp-fedavg", settings, noise))), rounds=rounds)


@pytest.mark.slow
def test_the_score_of_correlated_noise_has_the_claimed_law():
    """Without the client N(0, 1), with it N(sens / z, 1): 5 standard errors, a wrong alarm with probability 1e-6."""
    one = stream(ORDER)
    mu = squares(one.schedule, one.rounds) ** 0.5 / 0.7
    for world, mean in ((0, 0.0), (1, mu)):
        scores = one.scores(world, range(world * 100, world * 100 + 20))
        assert abs(scores.mean() - mean) < 5 / np.sqrt(20)
        assert 0.3 < scores.std() < 2.0


def half_the_noise(self, like, number, now):
    return REAL_NOISE(self, like, number, now) / 2


def in_every_round(self, randomness, number):
    return np.union1d(REAL_ORDER(self, randomness, number), [0])


REAL_NOISE, REAL_ORDER = GaussianNoise._fresh, CyclicCohorts.sample
FAULTS = {
    "half of the noise under balls-and-bins": (BINS, 1.0, GaussianNoise, "_fresh", half_the_noise),
    "a client in every round of correlated noise": (ORDER, 1.5, CyclicCohorts, "sample", in_every_round),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_gross_faults_are_found(name, monkeypatch):
    """A sound stream is rejected with probability 5% at most; seeded. Bins that are reused cost little more in six
    rounds: they are for `dpfed audit run`."""
    settings, noise, part, method, broken = FAULTS[name]
    monkeypatch.setattr(part, method, broken)
    assert stream(settings, noise=noise).tested(240, alpha=0.05, seed=1).rejected


@pytest.mark.slow
def test_their_twin_is_not_flagged():
    assert not stream(BINS, noise=1.0).tested(120, alpha=0.05, seed=1).rejected
