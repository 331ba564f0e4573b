"""The rotation: Hadamard's matrix, an inverse that is the transpose, blocks that cost little, and why two rounds."""

import itertools

import pytest
import torch
from scipy.linalg import hadamard as matrix

from dpfed.compress import rotation
from dpfed.compress.counter import client_seeds
from dpfed.compress.rotation import blocks, hadamard, pieces, rotate, rotate_back, rounds_for_size
from dpfed.errors import ConfigError


def outputs(block):
    """Return the places to which the rotated coordinates of a block go."""
    return slice(block.start, block.start + block.count * block.size)


def rotated_dimension(dimension, block):
    return sum(one.size for one in blocks(dimension, block))


def rotated(x, rounds=2, block=1 << 16, seed=3):
    seeds = client_seeds(seed, len(x))
    whole = torch.empty(len(x), rotated_dimension(x.shape[1], block))
    for rows, one in pieces(len(x), x.shape[1], block, x.device):
        whole[rows, outputs(one)] = rotate(x[rows, one.inputs], seeds[rows], one, rounds)
    return whole


def rotated_back(y, dimension, rounds=2, block=1 << 16, seed=3):
    seeds = client_seeds(seed, len(y))
    whole = torch.empty(len(y), dimension)
    for rows, one in pieces(len(y), dimension, block, y.device):
        whole[rows, one.inputs] = rotate_back(y[rows, outputs(one)].clone(), seeds[rows], one, rounds)
    return whole


@pytest.mark.parametrize("power", range(10))
def test_hadamard_against_scipy(power):
    size = 1 << power
    x = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(0))
    expected = x.double() @ torch.tensor(matrix(size)).double()
    torch.testing.assert_close(hadamard(x).double(), expected, rtol=0, atol=1e-5 * size**0.5)


def test_hadamard_of_many_coordinates():
    """H H = n, exactly on small integers."""
    x = torch.randint(-3, 4, (2, 1 << 14), generator=torch.Generator().manual_seed(0)).float()
    assert hadamard(hadamard(x)).equal(x * (1 << 14))


@pytest.mark.parametrize("dimension", [1, 2, 63, 64, 65, 129, 1025, 5000])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_inverse_is_the_transpose(dimension, rounds):
    """R^T R = 1, and <R x, y> = <x, R^T y> for all y in the rotated space."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, dimension, generator=generator)
    y = torch.randn(3, rotated_dimension(dimension, 1 << 10), generator=generator)
    there = rotated(x, rounds, 1 << 10)
    torch.testing.assert_close(rotated_back(there, dimension, rounds, 1 << 10), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        (there * y).sum(dim=1), (x * rotated_back(y, dimension, rounds, 1 << 10)).sum(dim=1), rtol=1e-4, atol=1e-4
    )


def test_clients_rotate_independently_and_in_any_pieces(monkeypatch):
    x = torch.randn(5, 3000, generator=torch.Generator().manual_seed(1))
    whole = rotated(x)
    assert (rotated(x[:1].expand(5, -1)) - whole[:1]).abs().amax(dim=1)[1:].min() > 0.1
    monkeypatch.setattr(rotation, "_AT_ONCE", 1)
    torch.testing.assert_close(rotated(x), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("largest", [64, 1 << 10, 1 << 16])
def test_blocks_hold_every_coordinate_once(largest):
    for dimension in [*range(1, 300), 1023, 1024, 1025, 1026, 65_535, 65_537, 99_999]:
        cut = list(blocks(dimension, largest))
        assert [one.start for one in cut] == [0, *itertools.accumulate(one.length for one in cut)][:-1]
        assert [one.start for one in cut] == [0, *itertools.accumulate(one.size for one in cut)][:-1]
        assert sum(one.length for one in cut) == dimension
        assert all(one.size in (1, *(64 << k for k in range(11))) and one.length <= one.size <= largest for one in cut)
        assert sum(one.size + 32 for one in cut) - dimension <= 350 + 32 * (dimension // largest)


def test_a_power_of_two_and_one_more():
    assert [one.size for one in blocks(1025, 1 << 16)] == [1024, 1]
    assert [one.size for one in blocks((1 << 16) - 1, 1 << 16)] == [1 << 16]


def drive_bias(signs, second=0.5):
    """Relative bias, over the rows of `signs` [rounds, m, n], of ||y||² / ||y||_1 R^T sign(y) at (1, second, 0 ...)."""
    size = signs.shape[2]
    x = torch.tensor([1.0, second] + [0.0] * (size - 2), dtype=signs.dtype)
    y = x
    for one in signs:
        y = hadamard(y * one) / size**0.5
    decoded = y.square().sum(dim=1, keepdim=True) / y.abs().sum(dim=1, keepdim=True) * torch.where(y >= 0, 1.0, -1.0)
    for one in signs.flip(0):
        decoded = hadamard(decoded.to(signs)) * one / size**0.5
    return float((decoded.mean(dim=0) - x)[:2].norm() / x.norm())


def patterns(rounds, number, size):
    return torch.randint(0, 2, (rounds, number, size), generator=torch.Generator().manual_seed(0)) * 2.0 - 1


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize("size", [64, 128, 256, 1024])
@pytest.mark.parametrize("second", [0.999, 0.5, 0.01])
def test_every_block_has_the_rounds_it_needs(size, second):
    """Bias of DRIVE below .01, where two rounds leave .03 to .15 at (1, .999); sampling errors are below .0011."""
    rounds = rounds_for_size(size, 2)
    signs = patterns(rounds, 1_500_000 // size, size)
    assert drive_bias(signs, second) < 0.01
    assert second != 0.999 or drive_bias(signs[:2], second) > 0.02


def test_rounds():
    sizes = [1 << power for power in (6, 7, 8, 9, 10, 15, 16, 20)]
    assert [rounds_for_size(size, 2) for size in sizes] == [6, 5, 4, 4, 3, 3, 2, 2]
    assert [rounds_for_size(size, 1) for size in sizes] == [1] * 8
    assert [rounds_for_size(size, 3) for size in sizes][-3:] == [5, 3, 3]


@pytest.mark.parametrize("options", [{"rounds": 0}, {"rounds": 5}, {"block": 32}, {"block": 1 << 21}, {"block": 100}])
def test_other_rotations_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        rotation.check_rotation("drive", **({"rounds": 2, "block": 1 << 16} | options))
