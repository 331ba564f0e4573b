"""Schedules and correlated noise over several rounds, in two worlds: faults are found, sound runs are not flagged."""

import numpy as np
import pytest

from accounting.factorisation.public import squares
from dpfed.audit.method_setting import configured, round_of
from dpfed.audit.several_rounds import Stream
from dpfed.participation.schedules import BallsAndBinsCohorts, CyclicCohorts
from dpfed.run.experiment import build

SMALL = ("model.hidden=[2]", "federation.cohort=2", "federation.rounds=6")
BINS = (*SMALL, "federation.sampling=balls-and-bins")
ORDER = (*SMALL, "federation.sampling=cyclic", "privacy.buffers=2")


def stream(settings, rounds=6, noise=0.7):
    return Stream(one=round_of(build(configured("dp-fedavg", settings, noise))), rounds=rounds)


def test_the_score_of_correlated_noise_has_the_claimed_law():
    """Without the client N(0, 1), with it N(sens / z, 1): 5 standard errors, a wrong alarm with probability 1e-6."""
    one = stream(ORDER)
    mu = squares(one.schedule, one.rounds) ** 0.5 / 0.7
    for world, mean in ((0, 0.0), (1, mu)):
        scores = one.scores(world, range(world * 100, world * 100 + 20))
        assert abs(scores.mean() - mean) < 5 / np.sqrt(20)
        assert 0.3 < scores.std() < 2.0


REAL_BINS, REAL_ORDER = BallsAndBinsCohorts.sample, CyclicCohorts.sample
FAULTS = {
    "bins of the first epoch": (BINS, BallsAndBinsCohorts, lambda self, r, n: REAL_BINS(self, r, n % self.bins)),
    "a client in every round": (ORDER, CyclicCohorts, lambda self, r, n: np.union1d(REAL_ORDER(self, r, n), [0])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_schedules_are_found(name, monkeypatch):
    """A sound stream is rejected with probability 5% at most; seeded."""
    settings, part, broken = FAULTS[name]
    monkeypatch.setattr(part, "sample", broken)
    assert stream(settings).tested(200, alpha=0.05, seed=1).rejected


@pytest.mark.slow
def test_their_twin_is_not_flagged():
    assert not stream(BINS).tested(200, alpha=0.05, seed=1).rejected
