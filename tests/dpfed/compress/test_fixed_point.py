"""Rows become integers that are unbiased and never longer than what the accountant is told."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.linalg import hadamard

from accounting.integers.fixed_point import rounded_l2, rounded_l2_squared, sum_bits
from dpfed.compress import fixed_point
from dpfed.compress.fixed_point import FixedPoint, centre_residues, count_near_ends, to_ring
from dpfed.errors import ConfigError
from dpfed.mechanisms.integer_distributions import DiscreteGaussianLaw
from dpfed.randomness import Secure, Simulated
from dpfed.seeds import Seeds

pytestmark = pytest.mark.slow_but_one_in(3)

SIMULATED = Simulated(seeds=Seeds(root=3))


def encode(code, rows, *, clip_norm=1.0, seed=7, randomness=SIMULATED, number=0, clients=None):
    ids = np.arange(len(rows)) if clients is None else np.array(clients)
    return code.encode(rows, clip_norm=clip_norm, rotation_seed=seed, randomness=randomness, names=ids, path=(number,))


def random_rows(count, size, norm=1.0, seed=0):
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(seed))
    return rows * (norm / rows.double().norm(dim=1, keepdim=True)).float()


def adversarial_rows(size, steps):
    """Of norm 1: all equal, one-hot, halves (rounding adds most), all just above a whole number, spread over a few."""
    whole = steps / math.sqrt(size)
    halves = (math.floor(whole) + 0.5) / steps if whole >= 0.5 else 0.5 / steps
    held = min(size, math.floor(1 / halves**2))
    few = max(1, size // 10)
    rows = torch.zeros(5, size)
    rows[0] = size**-0.5
    rows[1, size // 2] = 1.0
    rows[2, :held] = halves
    rows[3] = (math.floor(whole) + 1e-3) / steps
    rows[4, :few] = few**-0.5
    return rows


class Always:
    """Every coin shows the least there is: everything that is not whole is rounded up."""

    name = "always"

    def bits(self, count, purpose, *path):
        return np.zeros(count, dtype=np.uint64)


def error_text(integers, bits):
    return torch.from_numpy(to_ring(integers, bits).astype(np.int64))


def sum_of_words(rows, bits):
    """Of [c, n], in words of 32 bits that overflow."""
    total = np.add.reduce([to_ring(row, bits) for row in rows], dtype=np.uint32)
    return torch.from_numpy(total.astype(np.int64))


# --- the norm ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
@pytest.mark.parametrize("steps", [0.3, 2.5, 40.0, 3000.0])
@pytest.mark.parametrize("size", [1, 2, 37, 1000])
def test_no_row_is_ever_longer_than_the_accountant_is_told(size, steps, rotate):
    code = FixedPoint(size=size, steps_per_unit=steps, rotate=rotate)
    told = Fraction(rounded_l2(steps, code.padded)) ** 2
    for round in range(20):
        encoded = encode(code, adversarial_rows(size, steps), number=round)
        for row in encoded.integers.tolist():
            assert sum(entry**2 for entry in row) <= told
    assert encoded.integers.dtype == torch.int32
    assert encoded.integers.shape == (5, code.padded)


def test_steps_to_a_clip_norm_never_allow_more_than_steps_alone():
    """The accountant knows whole steps to the clip norm, the code steps per unit: 49 / 0.1 x 0.1 need not be 49."""
    rng = np.random.default_rng(0)
    above = 0
    for steps, clip_norm in zip(rng.integers(1, 10**6, 5000).tolist(), rng.lognormal(size=5000).tolist(), strict=True):
        above += steps / clip_norm * clip_norm > steps
        code = FixedPoint(size=1 << 20, steps_per_unit=steps / clip_norm, rotate=True)
        told = rounded_l2_squared(steps, 1 << 20)
        assert told - 1 - 1e-14 * steps**2 <= code.largest_squared_norm(clip_norm) <= told
    assert above > 100


@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
def test_rows_that_nobody_has_clipped_are_within_the_norm_too(rotate):
    code = FixedPoint(size=50, steps_per_unit=100.0, rotate=rotate)
    rows = random_rows(3, 50) * torch.tensor([[1.001], [1e6], [1e37]])
    encoded = encode(code, rows)
    squares = encoded.integers.double().square().sum(dim=1)
    assert encoded.zeroed_rows == 0
    assert (squares <= code.largest_squared_norm(1.0)).all()
    assert (squares > 0.9e4).all()  # shortened, not lost


@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_rows_at_the_norm_are_not_lost(size, rotate):
    """Up to the largest steps that fit: float32 lengthens a rotated row by more than the bound leaves."""
    for steps in (1.0, 1e3, 1e6, 2.0**31 - 100):
        code = FixedPoint(size=size, steps_per_unit=steps, rotate=rotate)
        assert encode(code, random_rows(10, size)).zeroed_rows == 0


def test_rounding_without_the_condition_breaks_the_bound():
    """The planted fault: what is drawn first of rows of halves is too long once in seventy times."""
    code = FixedPoint(size=37, steps_per_unit=3.0, rotate=False)
    values = adversarial_rows(37, 3.0)[2].double() * 3.0
    largest = code.largest_squared_norm(1.0)
    squares = [
        int((np.floor(values.numpy() + SIMULATED.uniform(37, "fault", draw)) ** 2).sum()) for draw in range(2000)
    ]
    assert max(squares) > largest
    out = torch.zeros(37, dtype=torch.int32)
    for draw in range(2000):
        assert fixed_point._round_within(values, largest, out, SIMULATED, "check", draw)
        assert int(out @ out) <= largest


def test_a_row_that_is_always_too_long_becomes_zero_and_is_counted():
    code = FixedPoint(size=1000, steps_per_unit=3.0, rotate=False)
    rows = torch.stack([torch.full((1000,), 1000**-0.5), torch.zeros(1000)])
    encoded = encode(code, rows, randomness=Always())
    assert encoded.zeroed_rows == 1
    assert not encoded.integers.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
def test_rows_that_are_not_finite_become_zero_and_leave_the_others_alone(rotate, bad):
    """The last row has zeros only, and is not counted among those that become zero."""
    code = FixedPoint(size=20, steps_per_unit=50.0, rotate=rotate)
    rows = random_rows(3, 20)
    rows[2] = 0.0
    alone = encode(code, rows[::2], clients=[0, 2]).integers
    rows[1, 5] = bad
    encoded = encode(code, rows)
    assert encoded.zeroed_rows == 1
    assert not encoded.integers[1:].any()
    assert torch.equal(encoded.integers[::2], alone)


@pytest.mark.parametrize("steps", [1000.0, 6000.0])
def test_the_bound_is_within_one_per_cent_of_what_rows_of_the_full_norm_have(steps):
    code = FixedPoint(size=100_000, steps_per_unit=steps, rotate=True)
    encoded = encode(code, random_rows(2, 100_000))
    lengths = encoded.integers.double().norm(dim=1)
    assert (lengths > 0.99 * rounded_l2(steps, code.padded)).all()
    assert encoded.zeroed_rows == 0


# --- the mean ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
@pytest.mark.parametrize("source", [SIMULATED, Secure()], ids=lambda source: source.name)
def test_the_mean_over_draws_is_the_row(rotate, source):
    """Half the full norm, so that no draw is too long; every coordinate within 6.1 standard errors: 1e-9 each."""
    code = FixedPoint(size=11, steps_per_unit=3.0, rotate=rotate)
    row = random_rows(1, 11, norm=0.5)
    draws = 20_000
    encoded = encode(code, row.expand(draws, 11), randomness=source)
    mean = code.decode(encoded.integers.long().sum(dim=0), rotation_seed=7) / draws
    standard_error = 0.5 / 3.0 / math.sqrt(draws)  # of a coin; a rotated sum of such errors is no larger
    assert (mean - row[0]).abs().max() < 6.1 * standard_error


def test_rounding_to_nearest_is_caught_as_biased():
    """The planted fault, by the test above."""
    row = random_rows(1, 11, norm=0.5)
    nearest = (row * 3.0).round() / 3.0
    assert (nearest - row).abs().max() > 6.1 * 0.5 / 3.0 / math.sqrt(20_000)


@pytest.mark.slow
def test_the_bias_of_drawing_again_is_within_its_bound():
    """At the full norm: sqrt(n) b / (1 - b) with b the part of draws that are too long, and 6.1 standard errors."""
    code = FixedPoint(size=36, steps_per_unit=3.0, rotate=False)
    row = torch.full((1, 36), 1 / 6)
    largest = code.largest_squared_norm(1.0)
    draws = 20_000
    ones = np.random.default_rng(4).binomial(36, 0.5, draws)
    too_long = (ones > largest).mean()
    mean = encode(code, row.expand(draws, 36)).integers.double().mean(dim=0)
    assert 0.005 < too_long < math.exp(-0.5)
    assert (mean - 0.5).norm() < 6 * too_long / (1 - too_long) + 6 * 6.1 * 0.5 / math.sqrt(draws)


@pytest.mark.parametrize("rotate", [False, True], ids=["plain", "rotated"])
def test_the_error_is_that_of_coins(rotate):
    """E||decoded - x||² = Σ f (1 - f) / s² over the fractions f of s R x; without rotation they are known."""
    code = FixedPoint(size=5000, steps_per_unit=200.0, rotate=rotate)
    row = random_rows(1, 5000, norm=0.9)
    error = code.decode(encode(code, row).integers[0].long(), rotation_seed=7) - row[0]
    fractions = (row[0].double() * 200.0) % 1
    expected = float((fractions * (1 - fractions)).sum())
    if rotate:  # the filled-up coordinates carry error too; of a normal value the mean of f (1 - f) is known
        spread = 0.9 * 200.0 / math.sqrt(code.padded)
        f = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).double() * spread % 1
        expected = float((f * (1 - f)).mean()) * 5000
    measured = float(error.double().square().sum()) * 200.0**2
    assert measured == pytest.approx(expected, rel=6.1 * math.sqrt(2 / 5000))


# --- the rotation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 31, 33, 100, 257, 300, 400, 512, 513, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rotation_is_the_matrix_of_its_definition(size, dtype):
    """H[i, j] = (-1)^(ones in the bits of i & j), entry by entry, over signs that the decoder has, too."""
    code = FixedPoint(size=size, steps_per_unit=1.0, rotate=True)
    assert code.padded == 2 ** math.ceil(math.log2(size))
    row = random_rows(1, size)[0].to(dtype)
    signs = code._signs(7, row)
    places = range(code.padded)
    matrix = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in places], dtype=torch.float64)
    expected = matrix @ (signs[:size] * row).double() / math.sqrt(code.padded)
    torch.testing.assert_close(code._rotate_row(row, signs).double(), expected, rtol=0, atol=1e-6)


def test_a_decoded_sum_is_a_sum_of_whole_numbers_scaled_once():
    """The bits are then equal on every processor: no order of float additions decides them."""
    code = FixedPoint(size=60, steps_per_unit=59.0, rotate=True)
    total = np.random.default_rng(8).integers(-(2**31), 2**31, code.padded)
    signs = code._signs(5, torch.zeros(1, dtype=torch.float64)).numpy().astype(np.int64)
    whole = (hadamard(code.padded, dtype=np.int64) @ total * signs)[: code.size]
    expected = (whole * (code.padded**-0.5 / code.steps_per_unit)).astype(np.float32)
    np.testing.assert_array_equal(code.decode(torch.from_numpy(total), rotation_seed=5).numpy(), expected)


def test_the_same_public_seed_for_all_and_another_in_another_round():
    code = FixedPoint(size=300, steps_per_unit=1e5, rotate=True)
    rows = random_rows(3, 300, norm=0.3)
    first, second = encode(code, rows, seed=1).integers, encode(code, rows, seed=2).integers
    assert not torch.equal(first, second)
    total = code.decode(first.long().sum(dim=0), rotation_seed=1)
    assert torch.allclose(total, rows.sum(dim=0), atol=1e-4)
    assert not torch.allclose(code.decode(first.long().sum(dim=0), rotation_seed=2), rows.sum(dim=0), atol=1e-1)


def test_a_client_rounds_alike_whoever_else_is_in_the_group_and_anew_in_another_round():
    code = FixedPoint(size=100, steps_per_unit=10.0, rotate=True)
    rows = random_rows(3, 100)
    together = encode(code, rows, clients=[4, 8, 6]).integers
    assert torch.equal(encode(code, rows[1:2], clients=[8]).integers[0], together[1])
    assert not torch.equal(encode(code, rows[1:2], clients=[9]).integers[0], together[1])
    assert not torch.equal(encode(code, rows[1:2], clients=[8], number=1).integers[0], together[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_read_and_left_as_they_are(dtype):
    code = FixedPoint(size=8, steps_per_unit=100.0, rotate=False)
    rows = random_rows(2, 8, norm=0.5).to(dtype)
    before = rows.clone()
    integers = encode(code, rows).integers
    assert torch.equal(rows, before)
    assert (integers / 100.0 - rows.double()).abs().max() < 0.01


# --- the ring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(1, 33))
def test_the_ring_keeps_its_integers_and_wraps_at_its_ends(bits):
    half = 1 << (bits - 1)
    inside = torch.tensor(sorted({-half, -half // 2, -1, 0, half // 2 % half, half - 1}))
    assert centre_residues(error_text(inside, bits), bits).tolist() == inside.tolist()
    wrapped = centre_residues(error_text(torch.tensor([half, -half - 1, 3 * half + 1]), bits), bits)
    assert wrapped.tolist() == [-half, half - 1, (half + 1 + half) % (2 * half) - half]


def test_sums_within_the_promised_bits_do_not_wrap_and_with_three_fewer_the_count_tells():
    """40 clients that agree, noise of each: `sum_bits` for one wrap in a million, and a ring an eighth as large."""
    code = FixedPoint(size=2000, steps_per_unit=300.0, rotate=True)
    row = random_rows(1, 2000)
    integers = encode(code, row.expand(40, 2000)).integers.long()
    noise = torch.from_numpy(DiscreteGaussianLaw(400**2).sample(code.padded, SIMULATED, "noise"))
    bits = sum_bits(
        law="discrete-gaussian",
        uploads=40,
        dimension=code.padded,
        scaled_clip=300.0,
        noise_variance=400.0**2,
        rotate=True,
    )
    uploads = torch.cat([integers, noise[None]])
    for fewer in (0, 3):
        total = centre_residues(sum_of_words(uploads, bits - fewer), bits - fewer)
        assert torch.equal(total, integers.sum(dim=0) + noise) == (fewer == 0)
        assert (count_near_ends(total, bits - fewer) > 0) == (fewer == 3)


@pytest.mark.parametrize("bits", [1, 2, 6, 8, 16, 32])
def test_what_counts_as_near_the_ends(bits):
    half = 1 << (bits - 1)
    edge = max(1, half // 64)
    near = torch.tensor([-half, edge - half - 1, half - edge, half - 1])
    assert count_near_ends(near, bits) == 4
    if bits > 2:
        assert count_near_ends(torch.tensor([edge - half, half - edge - 1, 0]), bits) == 0


# --- errors and size --------------------------------------------------------------------------------------------------


def test_impossible_codes_and_rows_are_refused():
    refused(ConfigError, "size=0", FixedPoint, size=0, steps_per_unit=1.0, rotate=True)
    for steps in (0.0, -1.0, math.inf, math.nan):
        refused(ConfigError, "steps_per_unit", FixedPoint, size=3, steps_per_unit=steps, rotate=True)
    code = FixedPoint(size=3, steps_per_unit=1e9, rotate=True)
    for clip_norm in (3.0, 0.0, -1.0, math.nan):
        refused(ConfigError, "below 2\\^31", encode, code, torch.zeros(1, 3), clip_norm=clip_norm)
    for shape in ((1, 4), (1, 1), (3,)):
        refused(ConfigError, "3 entries a row", encode, code, torch.zeros(shape), clients=[0])


def test_a_large_model_once():
    code = FixedPoint(size=1_600_000, steps_per_unit=8000.0, rotate=True)
    row = random_rows(1, 1_600_000)
    encoded = encode(code, row)
    assert encoded.zeroed_rows == 0
    error = code.decode(encoded.integers[0].long(), rotation_seed=7) - row[0]
    assert error.double().norm().item() == pytest.approx(math.sqrt(1_600_000 / 6) / 8000.0, rel=0.01)
