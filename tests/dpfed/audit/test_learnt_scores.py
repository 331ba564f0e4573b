"""Scores that are learnt from a pilot: noise that coordinates share is seen however wide outputs are, at any scale."""

import numpy as np
import pytest

from accounting import Adjacency, Gaussian
from dpfed.audit.functions.audit import audit_calls
from dpfed.audit.functions.claim import claim_of
from dpfed.audit.functions.learnt_scores import learn_scores
from dpfed.audit.functions.outputs import Worlds, output_of, output_table

CLAIM = claim_of(Gaussian(noise_multiplier=1.0, adjacency=Adjacency.ADD_REMOVE))
PAIR = [Worlds(name="a client", one=1.0, other=0.0)]


class Sums:
    """A client's vector of norm 1, and noise. kind: sound, layers (one seed for four layers), neighbours (for every two
    coordinates), nearly (layers, with 3% of the variance of their own)."""

    def __init__(self, kind, width, scale=1.0, std=1.0):
        self.kind, self.width, self.scale, self.std = kind, width, scale, std
        self.client = np.where(np.random.default_rng(7).random(width) < 0.5, 1.0, -1.0) / width**0.5

    def noise(self, seed):
        rng, quarter = np.random.default_rng(seed), self.width // 4
        if self.kind == "neighbours":
            return rng.standard_normal(self.width // 2).repeat(2)
        if self.kind == "sound":
            return rng.standard_normal(self.width)
        own = 0.03 if self.kind == "nearly" else 0.0
        tiled = np.tile(rng.standard_normal(quarter), 4)
        return (1 - own) ** 0.5 * tiled + own**0.5 * rng.standard_normal(self.width)

    def outputs(self, inputs, which, seeds):
        return [self.seen(inputs[k], seed) for k, seed in zip(which, seeds, strict=True)]

    def seen(self, given, seed):
        return output_of(self.scale * (given * self.client + self.std * self.noise(seed)))

    def pilot(self, count=50):
        rows = [
            output_table([self.seen(world, seed) for seed in range(first, first + count)]) for world, first in WORLDS
        ]
        return learn_scores((rows[0], rows[1]), (rows[2], rows[3]), shared=True)


WORLDS = [(1.0, 0), (1.0, 1000), (0.0, 0), (0.0, 2000)]


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("kind", "width"), [("layers", 32), ("layers", 400), ("layers", 4_000), ("neighbours", 800), ("nearly", 800)]
)
def test_noise_that_coordinates_share_is_found_at_any_width(kind, width):
    """Planted: the pilot has fewer calls than the noise has dimensions."""
    assert max(score.separation for score in Sums(kind, width).pilot()) > 3
    assert audit_calls(Sums(kind, width), CLAIM, PAIR, trials=400).verdict == "fail"


@pytest.mark.parametrize("width", [32, 400, 4_000])
def test_sound_noise_has_no_more_than_its_direction(width):
    assert [score.kind for score in Sums("sound", width).pilot()] == ["direction"]


def test_noise_of_low_rank_is_found_in_wide_outputs():
    """Planted: twenty directions of noise in 800 coordinates."""
    sums = Sums("sound", 800)
    basis = np.random.default_rng(3).standard_normal((20, 800)) / 20**0.5
    sums.noise = lambda seed: np.random.default_rng(seed).standard_normal(20) @ basis
    assert {score.kind for score in sums.pilot()} >= {"contrast"}
    assert audit_calls(sums, CLAIM, PAIR, trials=400).verdict == "fail"


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("scale", [1e-160, 1e-10, 1.0, 1e160, 1e300])
def test_a_verdict_does_not_depend_on_the_scale(scale):
    sound = audit_calls(Sums("sound", 8, scale), CLAIM, PAIR, trials=3_000)
    assert sound.verdict == "pass"
    assert sound.score_gap == pytest.approx(audit_calls(Sums("sound", 8), CLAIM, PAIR, trials=3_000).score_gap)
    assert audit_calls(Sums("sound", 8, scale, std=0.5), CLAIM, PAIR, trials=1_000).verdict == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 800])
def test_false_alarms_of_wide_and_narrow_noise(width):
    """60 sound audits at 5%; more than 9 alarms have probability 0.001."""
    found = [audit_calls(Sums("sound", width), CLAIM, PAIR, trials=100, seed=seed).verdict for seed in range(60)]
    assert found.count("fail") <= 9
