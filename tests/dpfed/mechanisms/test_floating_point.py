"""The attack on floating-point noise, mounted on what the package draws (Mironov, "On Significance of the Least
Significant Bits for Differential Privacy", CCS 2012; Haney, Desfontaines, Hartman, Shrestha, Hay, "Precision-based
attacks and interval refining", 2022; Jin, McMurtry, Rubinstein, Ohrimenko, "Are We There Yet?", S&P 2022).

A sum f is 0 or 1, noise N is added, y = f + N is seen. Near 0 a floating-point number has finer last bits than near -1:
a small y that is no multiple of the step of numbers near -1 cannot be 1 + N, so f was 0, for certain.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from dpfed.audit.statistics.rejection import upper_limit
from dpfed.mechanisms.bernoulli import Coins
from dpfed.mechanisms.integer_distributions import DiscreteGaussianLaw, SkellamLaw, draw
from dpfed.mechanisms.integers import Integers
from dpfed.randomness import Secure, Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.chain import client_halves, server_halves

from ...rounds import configured
from ..announced import a_round, announced

TRIALS = 20_000
SMALL = 0.25


def certain_it_was_zero(seen, step):
    """y in (0, 1/4) off the grid of 1 + N, whose N is in (-1, -3/4): its step there is exact in 1 + N."""
    units = seen.astype(np.float64) / step
    return (seen > 0) & (seen < SMALL) & (units != np.rint(units))


def added(value, noise):
    """value + noise as this number format has it."""
    return (np.asarray(value, dtype=noise.dtype) + noise).astype(noise.dtype)


def normals(sampler, count):
    randomness = {"simulated": Simulated(seeds=Seeds(root=3)), "secure": Secure()}.get(sampler)
    if randomness is not None:
        return randomness.normal(count, "noise.sum", 0).numpy()
    return np.random.default_rng(3).standard_normal(count)  # the ziggurat, float64


@pytest.mark.parametrize("sampler", ["simulated", "secure", "numpy"])
def test_floating_point_noise_tells_some_inputs_for_certain(sampler):
    """About 9% of y = 0 + N are small and positive; most of them cannot have come from 1 + N. Delta of a Gaussian with
    noise multiplier 1 and epsilon 5 is 4e-4 (Balle, Wang 2018), so the certainty alone refutes it."""
    step = {"simulated": 2.0**-24, "secure": 2.0**-24, "numpy": 2.0**-53}[sampler]
    noise = normals(sampler, 2 * TRIALS)
    zeros, ones = added(0, noise[:TRIALS]), added(1, noise[TRIALS:])
    told = int(certain_it_was_zero(zeros, step).sum())
    assert not certain_it_was_zero(ones, step).any()
    assert told > 0.03 * TRIALS > 4e-4 * TRIALS * 10


@pytest.mark.parametrize("law", [DiscreteGaussianLaw(300**2), SkellamLaw(300**2)], ids=["discrete-gaussian", "skellam"])
def test_discrete_noise_on_a_grid_tells_nothing_by_its_bits(law):
    """The same attack, and any set of low bits: no event is surer than epsilon allows. sigma = the sensitivity, 300
    steps: epsilon 5 at delta 4e-4. 64 events, each wrong with probability 1e-9."""
    noise = draw(law, 2 * 10 * TRIALS, Secure(), "noise").astype(np.int64)
    zeros, ones = noise[: 10 * TRIALS], 300 + noise[10 * TRIALS :]
    step = 2.0**-24
    for seen, other in ((zeros / 300, ones / 300), (ones / 300, zeros / 300)):
        told, elsewhere = (int(certain_it_was_zero(one.astype(np.float32), step).sum()) for one in (seen, other))
        assert math.log(_least(told)) <= 5.0 + math.log(_most(elsewhere) + 4e-4)
    for bits in range(1, 6):
        for low in range(1 << bits):
            counts = [int(((one & ((1 << bits) - 1)) == low).sum()) for one in (zeros, ones)]
            assert _least(counts[0]) <= math.exp(5.0) * _most(counts[1]) + 4e-4
            assert _least(counts[1]) <= math.exp(5.0) * _most(counts[0]) + 4e-4
            # Far stronger: the low bits of either are uniform, so that they say nothing at all.
            assert all(_least(count) <= 2.0**-bits <= _most(count) for count in counts)


def _least(count):
    return 1 - float(upper_limit(10 * TRIALS - count, 10 * TRIALS, alpha=1e-9)) or 1e-300


def _most(count):
    return float(upper_limit(count, 10 * TRIALS, alpha=1e-9))


def released(settings, value):
    """The noisy sum of a round as it leaves the server, when one client's first coordinate is `value` and nothing else
    was sent."""
    experiment = build(configured(*settings))
    stages, now = experiment.method.stages, announced(experiment, uploads=1)
    row = torch.zeros(1, experiment.model.size)
    row[0, 0] = value
    total = client_halves(stages, row, np.array([0]), now).sum(dim=0).to(stages.summed_as)
    return experiment, server_halves(stages, total, now).double().numpy()


def test_a_release_of_the_whole_package_is_on_a_public_grid_in_secure_mode_alone():
    """Without rotation a released coordinate is a whole number of public steps, whichever input it hides."""
    discrete = ("privacy.noise=discrete-gaussian", "aggregation.rotation=false", "aggregation.steps=1024")
    for value in (0.0, 1.0):
        experiment, seen = released([*discrete, "run.randomness=secure"], value)
        steps = seen * experiment.method.stages.find(Integers).fixed_point.steps_per_unit
        np.testing.assert_array_equal(steps, np.rint(steps))
        _, floats = released([], value)
        assert (floats * 1024 != np.rint(floats * 1024)).mean() > 0.99


class Fixed:
    """Randomness whose one uniform, of 53 bits, is given: its first 16 bits, and the other 37 if they are asked for."""

    def __init__(self, unit):
        self._unit = unit

    def bits(self, count, purpose, *path):
        assert count == 1
        word = (self._unit % 2**37) << 27 if purpose.endswith(".rest") else self._unit >> 37
        return np.array([word], dtype=np.uint64)


@pytest.mark.parametrize("probability", [0.01, 0.1, 1 / 3, 0.5, 0.7, 0.99, 0.010000001, 0.001, 0.9999])
def test_a_coin_has_its_probability_to_the_53rd_bit(probability):
    """Uniforms are u = k 2^-53, and a coin shows 1 for exactly ceil(p 2^53) of them: less than 2^-53 above p, never
    below. p is exact: a float32 origin and a float32 move, added as doubles, kept in [c, 1 - c]."""
    origin, row = torch.tensor([0.5]), torch.tensor([probability - 0.5], dtype=torch.float32)
    exact = min(max(Fraction(0.5) + Fraction(float(row)), Fraction(0.01)), Fraction(0.99))
    favourable = math.ceil(exact * 2**53)
    for k, shown in ((favourable - 1, 1.0), (favourable, 0.0), (0, 1.0), (2**53 - 1, 0.0)):
        coins = Coins(randomness=Fixed(k), edge=0.01, bits=4)
        assert float(coins.client(row[None], np.array([0]), a_round(origin))) == shown
    assert 0 <= Fraction(favourable, 2**53) - exact < Fraction(1, 2**53)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("edge", [0.0, 0.01])
def test_a_coin_is_whether_the_uniform_is_below_the_probability_in_every_cell(edge):
    """All 2^16 first words with random origins, moves and other bits: 1 where U < p in float64, and only there.

    Probabilities are put at the ends of cells, next to them in float32, and anywhere.
    """
    rng, cells = np.random.default_rng(0), np.arange(1 << 16, dtype=np.uint16)
    for near in (0.0, 1e-7, 0.3, 1.0):
        probabilities = np.clip((cells + near * rng.uniform(-1, 2, len(cells))) / 2**16, 0, 1)
        origin = rng.uniform(0, 1, len(cells)).astype(np.float32)
        row = (probabilities - origin).astype(np.float32)
        asked = []

        class Words:
            def bits(self, count, purpose, *path, asked=asked):
                if not purpose.endswith(".rest"):
                    return cells.view(np.uint64)
                asked.append(rng.integers(0, 2**64, count, dtype=np.uint64))
                return asked[-1]

        coins = Coins(randomness=Words(), edge=edge, bits=4)
        now = a_round(torch.from_numpy(origin))
        shown = coins.client(torch.from_numpy(row)[None], np.array([0]), now)[0].numpy()
        exact = np.clip(origin.astype(np.float64) + row.astype(np.float64), edge, 1 - edge)
        low, unsure = cells / 2**16, coins_that_are_unsure(origin, row, cells, edge)
        one, zero = exact >= low + 2.0**-16, exact <= low  # whatever the other bits are
        assert (one | zero)[~unsure].all()
        np.testing.assert_array_equal(shown[~unsure], one[~unsure])
        rest = iter((asked[0] >> np.uint64(27)).tolist())
        for place in np.flatnonzero(unsure):
            assert shown[place] == (np.ldexp(float(int(cells[place]) << 37 | next(rest)), -53) < exact[place])
        assert next(rest, None) is None


def coins_that_are_unsure(origin, row, heads, edge):
    """Those whose probability, in float32, is within 2^-22 of their cell of 2^-16."""
    low, high = np.float32(edge), np.float32(1 - edge)
    above = np.clip(origin + row, low, high) * np.float32(65536) - heads.astype(np.float32)
    return (above >= np.float32(-(2.0**-6))) & (above < np.float32(1 + 2.0**-6))


def test_secure_uniforms_are_the_2_to_the_53_that_coins_count_on():
    drawn = Secure().uniform(10_000, "coins") * 2.0**53
    np.testing.assert_array_equal(drawn, np.rint(drawn))
    assert drawn.min() >= 0
    assert drawn.max() < 2.0**53
    assert (drawn % 2).mean() == pytest.approx(0.5, abs=0.03)  # 6 standard deviations
