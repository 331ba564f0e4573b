"""Every coin of the fixed-point code rounds as its definition says, in float32 and in doubles."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from reference.fake_gpu import fake_gpu

from dpfed.compress import fixed_point
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

SIMULATED = Simulated(seeds=Seeds(root=3))


class Script:
    """Coins that are given: bytes for the first bits, then all other bits alike."""

    name = "script"

    def __init__(self, heads, other_bits):
        self.heads, self.other_bits = np.array(heads, dtype=np.uint8), other_bits

    def bits(self, count, purpose, *path):
        if purpose.endswith(".rest"):
            return np.full(count, (2**64 - 1) * self.other_bits, dtype=np.uint64)
        return np.concatenate([self.heads, np.zeros(8 * count - len(self.heads), np.uint8)]).view(np.uint64)


def wrongly_rounded(value, steps, others=0.0, device="cpu"):
    """Of all 256 first bits of a coin, those whose rounding is not the definition's at an end of the coin's cell.

    The definition: down, or up where U of 53 bits < the fraction of steps · value, as doubles have it. The ends of a
    cell are where all other bits are 0 and where they are 1; if they are not asked for, both must have the same.
    others: a value that stands beside it, whose square may call for doubles.
    """
    scaled = float(np.float64(value) * np.float64(steps))
    down = math.floor(scaled)
    fraction = Fraction(scaled - down)
    values = torch.from_numpy(np.append(np.full(256, value), others).astype(value.dtype)).to(device)
    wrong = set()
    for other_bits in (0, 1):
        out = torch.zeros(257, dtype=torch.int32, device=device)
        script = Script([*range(256), 0], other_bits)
        assert fixed_point._round_within(values, 1 << 62, out, script, "test", steps=steps)
        found = out.tolist()
        ends = [(head << 45) + (2**45 - 1) * other_bits for head in range(256)]
        wrong |= {head for head, end in enumerate(ends) if found[head] != down + (Fraction(end, 1 << 53) < fraction)}
    return len(wrong)


def hard_values(magnitude, dtype):
    """Near and at multiples of 2^-8 and whole numbers, of both signs; and any."""
    rng = np.random.default_rng(int(magnitude))
    values = [magnitude + one for one in (0.0, 2**-8, 0.5, 1 - 2**-8, *rng.random(4))]
    near = [np.nextafter(dtype(one), dtype(way)) for one in values[:4] for way in (-np.inf, np.inf)]
    return [sign * dtype(one) for one in (*values, *near) for sign in (1, -1)]


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("magnitude", [0, 1, 77, 4000, 5000, 2**20])
def test_every_coin_rounds_as_the_definition_says(magnitude, dtype):
    """Up to 4,000 in float32, beyond in doubles; steps of 1, and of 3 with values of a third, which are not exact."""
    for value in hard_values(magnitude, dtype):
        assert not wrongly_rounded(value, 1.0), value
        assert not wrongly_rounded(dtype(value / 3), 3.0000001), value


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_coin_rounds_on_a_gpu_as_the_definition_says(dtype, monkeypatch):
    """Then a planted fault: an undecided entry is believed."""
    with fake_gpu() as gpu:
        for value in (*hard_values(1, dtype), dtype(2**20 + 0.3)):
            assert not wrongly_rounded(value, 3.0000001, device=gpu), value
        monkeypatch.setattr(fixed_point, "_DOUBT", -(2.0**-8))
        assert any(wrongly_rounded(value, 3.0000001, device=gpu) for value in hard_values(1, dtype))


@pytest.mark.parametrize("steps", [1e-38, 1e-31, 1e31, 1e37])
def test_steps_that_float32_does_not_have_are_taken_in_doubles(steps):
    for value in (0.0, 0.3, 1.7, -2.5):
        assert not wrongly_rounded(np.float64(value / steps), steps)


@pytest.mark.parametrize("others", [3.0, 1e4, 2e9])
def test_a_large_value_beside_others_changes_none_of_them(others):
    for value in hard_values(1, np.float32):
        assert not wrongly_rounded(value, 1.0, others)


def test_the_largest_values_that_float32_rounds(monkeypatch):
    monkeypatch.setattr(fixed_point, "_AT_ONCE", 1)  # so that squares allow for it
    for value in hard_values(4000, np.float32):
        assert not wrongly_rounded(value, 1.0), value
        assert not wrongly_rounded(np.float32(value / 3), 3.0000001), value


def test_float32_and_first_bits_that_are_believed_too_readily_are_caught(monkeypatch):
    """Planted faults: no room for what float32 has wrong, which shows at the edges; then cells that are cut in half."""
    values = np.random.default_rng(0).uniform(-66, 66, 2000)[1000:1200]
    assert sum(wrongly_rounded(value, 3.0000001) for value in values) == 0
    monkeypatch.setattr(fixed_point, "_DOUBT", 0.0)
    assert sum(wrongly_rounded(value, 3.0000001) for value in values) == 1
    monkeypatch.setattr(fixed_point, "_DOUBT", -(2.0**-10))
    assert sum(wrongly_rounded(value, 3.0000001) for value in values) > 50


def test_the_squares_of_a_row_are_those_of_what_it_became():
    """Settled places and all, in float32 and in doubles: the largest norm that lets it pass is its own."""
    for magnitude in (1.0, 100.0, 1e6):
        values = torch.from_numpy(np.random.default_rng(1).standard_normal(70_000) * magnitude)
        out = torch.zeros(len(values), dtype=torch.int32)
        assert fixed_point._round_within(values, 1 << 62, out, SIMULATED, "squares")
        own = sum(one * one for one in out.tolist())
        again = torch.zeros_like(out)
        assert fixed_point._round_within(values, own, again, SIMULATED, "squares")
        assert torch.equal(again, out)
        fixed_point._round_within(values, own - 1, again, SIMULATED, "squares")
        assert not torch.equal(again, out)
