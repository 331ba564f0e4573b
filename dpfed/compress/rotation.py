"""Random rotation of R^d in n log n operations, after which the entries of every vector look Gaussian.

Ailon and Chazelle, "The Fast Johnson-Lindenstrauss Transform" (SIAM J. Comput. 2009); Vargaftik et al., "DRIVE"
(NeurIPS 2021) and "EDEN" (ICML 2022). On a block of n = 2^k coordinates

    R = (H D_r / √n) ... (H D_1 / √n),      H the Hadamard matrix, D_i diagonal of random signs from the seed.

One factor alone is not a uniform rotation: a vector with few large coordinates gets few distinct values. A scheme that
is unbiased under a uniform rotation is then biased, by half of (1, .5, 0 ...) whatever n is. Each further round
divides the bias by about √n / 3. The worst relative bias of one bit found, at (1, .999, 0 ...):

    n                64     128    256    1024   4096   65536
    two rounds       .147   .102   .070   .034   .018   .004
    as used here     .003   .001   .002   .003   .001   .004   (6, 5, 4, 3, 3, 2 rounds; see `rounds_for_size`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfed.compress import counter
from dpfed.compress.tf32 import tf32
from dpfed.errors import ConfigError

SMALLEST_BLOCK = 1 << 6
LARGEST_BLOCK = 1 << 20
_SCALE_BITS = 32
_AT_ONCE = 1 << 18  # numbers rotated at a time: 1 MiB, a core's cache
_AT_ONCE_GPU = 1 << 26
_RADIX = 16  # four levels of butterflies computed as one product with a small matrix


@dataclass(frozen=True, kw_only=True)
class RotatedBlock:
    """`length` coordinates from `start` on, which become `size` = 2^k rotated ones; padded only in the last block.

    count: number of adjacent blocks of `size`, of which `number` is the first; if there are several, all are full
    """

    number: int
    start: int
    length: int
    size: int
    count: int = 1

    @property
    def inputs(self) -> slice:
        return slice(self.start, self.start + self.length)

    @property
    def outputs(self) -> slice:
        return slice(self.start, self.start + self.count * self.size)

    @property
    def blocks(self) -> slice:
        return slice(self.number, self.number + self.count)


def block_sizes(dimension: int, largest: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of blocks of `largest` coordinates in R^d, and the sizes of the blocks of the remainder.

    The remainder is cut to minimise its bits: one per coordinate, padding included, and 32 per block. So d = 1025
    becomes 1024 + 1, not 2048. No block is smaller than SMALLEST_BLOCK, except for a last single coordinate.
    """
    whole, left = divmod(dimension, largest)
    return whole, _cut_rest(left)[1] if left else ()


def _cut_rest(left: int) -> tuple[int, tuple[int, ...]]:
    """Return bits and blocks of a remainder: one padded block, or one half as large and a cut of the coordinates
    left."""
    size = 1 if left == 1 else max(SMALLEST_BLOCK, 1 << (left - 1).bit_length())
    filled = size + _SCALE_BITS, (size,)
    if size <= SMALLEST_BLOCK:
        return filled
    bits, sizes = _cut_rest(left - size // 2)
    return min(filled, (size // 2 + _SCALE_BITS + bits, (size // 2, *sizes)), key=lambda cut: cut[0])


def blocks(dimension: int, largest: int, at_once: int = 1) -> Iterator[RotatedBlock]:
    """Yield the blocks of R^d in order, full ones `at_once` at a time."""
    whole, rest = block_sizes(dimension, largest)
    for number in range(0, whole, at_once):
        count = min(at_once, whole - number)
        yield RotatedBlock(number=number, start=number * largest, length=count * largest, size=largest, count=count)
    first = whole * largest
    for number, size in enumerate(rest, whole):
        yield RotatedBlock(number=number, start=first, length=min(size, dimension - first), size=size)
        first += size


def check_rotation(scheme: str, *, rounds: int, block: int) -> None:
    """Raise ConfigError unless there are 1 to 4 rounds and blocks of a power of two from 2^6 to 2^20."""
    if not 1 <= rounds <= 4:
        raise ConfigError(
            f"{scheme}: rounds={rounds}: must be from 1 to 4; one round is biased on spiky vectors, 2 are usual."
        )
    if block not in [1 << power for power in range(6, 21)]:
        raise ConfigError(f"{scheme}: block={block}: must be a power of two from {SMALLEST_BLOCK} to {LARGEST_BLOCK}.")


def pieces(clients: int, dimension: int, largest: int, device: torch.device) -> Iterator[tuple[slice, RotatedBlock]]:
    """Yield every block for every group of clients; a group has the number of clients that fits a core's cache."""
    room = _AT_ONCE if device.type == "cpu" else _AT_ONCE_GPU
    for block in blocks(dimension, largest, max(1, room // largest)):
        height = max(1, room // (block.count * block.size))
        for row in range(0, clients, height):
            yield slice(row, min(row + height, clients)), block


def rounds_for_size(size: int, rounds: int) -> int:
    """Return the rounds in a block of `size` = 2^k: `rounds` from 2^16 on, more in smaller blocks, for similar bias.

    1 + ceil(13 / (k - 3)) (rounds - 1); `rounds` = 1 gives 1 for every size, to measure its bias.
    """
    power = size.bit_length() - 1
    return 1 + (rounds - 1) * -(-13 // (min(power, 16) - 3))


def rotate(coordinates: Tensor, seeds: Tensor, block: RotatedBlock, rounds: int) -> Tensor:
    """Return R of the coordinates [c, length] of one or several blocks, [c, count · size], float32; a new tensor."""
    missing = block.count * block.size - block.length
    rotated = pad(coordinates, (0, missing)) if missing else coordinates
    if block.size == 1:
        return rotated.clone()
    for round in range(rounds_for_size(block.size, rounds)):
        rotated = _hadamards(_with_signs(rotated, seeds, block, round), block)
    return rotated


def rotate_back(rotated: Tensor, seeds: Tensor, block: RotatedBlock, rounds: int) -> Tensor:
    """Return the inverse rotation R^T of [c, count · size], as [c, length], float32."""
    if block.size == 1:
        return rotated
    for round in reversed(range(rounds_for_size(block.size, rounds))):
        rotated = _with_signs(_hadamards(rotated, block), seeds, block, round)
    return rotated[:, : block.length]


def hadamard(rows: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return scale H x of every row of [..., n], n a power of two, by the fast Walsh-Hadamard transform; H H = n.

    H[i, j] = (-1)^(number of ones in the bits of i & j), Sylvester's order. The result is a new tensor. It is
    computed in products with matrices of 16 x 16, 4 n log2 n multiplications: faster than n log2 n additions. The last
    bit may depend on the machine's matrix product.
    """
    size = rows.shape[-1]
    step = min(size, _RADIX)
    with tf32(False, rows.device):
        out = rows.reshape(-1, step) @ (_matrix(step) * scale).to(rows)
        while step < size:
            radix = min(size // step, _RADIX)
            parts = out.view(-1, radix, step)
            out = torch.bmm(_matrix(radix).to(rows).expand(len(parts), radix, radix), parts)
            step *= radix
    return out.view(rows.shape)


@lru_cache(maxsize=8)
def _matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return matrix


def _hadamards(rows: Tensor, block: RotatedBlock) -> Tensor:
    """Return H / √n of every block, [c, count · size]."""
    return hadamard(rows.view(-1, block.size), scale=block.size**-0.5).view(rows.shape)


def _with_signs(rows: Tensor, seeds: Tensor, block: RotatedBlock, number: int) -> Tensor:
    return counter.multiply_by_signs(rows, seeds, f"rotation.{number}", start=block.start)
