"""Random rotations and projections whose results repeat on every device.

TF32 on CUDA GPUs: inputs of matrix products are rounded to 11 bits if and only if TF32 is requested.

Results that do not depend on the number of threads: by one thread, or by sums in a fixed order.

Random rotation of R^d in n log n operations, after which the entries of every vector look Gaussian.

Ailon and Chazelle, "The Fast Johnson-Lindenstrauss Transform" (SIAM J. Comput. 2009); Vargaftik et al., "DRIVE"
(NeurIPS 2021) and "EDEN" (ICML 2022). On a block of n = 2^k coordinates

    R = (H D_r / √n) ... (H D_1 / √n),      H the Hadamard matrix, D_i diagonal of random signs from the seed.

One factor alone is not a uniform rotation: a vector with few large coordinates gets few distinct values. A scheme that
is unbiased under a uniform rotation is then biased, by half of (1, .5, 0 ...) whatever n is. Each further round
divides the bias by about √n / 3. The worst relative bias of one bit found, at (1, .999, 0 ...):

    n                64     128    256    1024   4096   65536
    two rounds       .147   .102   .070   .034   .018   .004
    as used here     .003   .001   .002   .003   .001   .004   (6, 5, 4, 3, 3, 2 rounds; see `rounds_for_size`)

FedScalar: a client sends one number, the projection of its update on a random direction, whatever d is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfed.compress import counter
from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import Floats
from dpfed.compress.payload import Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates
from dpfed.errors import ConfigError


def _tf32_switches() -> list[tuple[object, str, object, object]]:
    """Return (object, attribute, value with TF32, value without) for products, convolutions and recurrent layers.

    Torch since 2.9 has one switch for each kind of operation. Reading an older switch raises RuntimeError as soon as a
    process has set one of the new ones.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return [(one, "fp32_precision", "tf32", "ieee") for one in (products, cudnn.conv, cudnn.rnn)]
    return [(one, "allow_tf32", True, False) for one in (products, cudnn)]


@contextmanager
def tf32(wanted: bool, device: torch.device) -> Iterator[None]:
    """Use TF32 in products, convolutions and recurrent layers if `wanted`, else float32; sum bf16 products in float32.

    Torch uses TF32 in convolutions by default. Devices other than CUDA GPUs are unchanged. Holds for the whole process;
    the user's settings are restored at the end.
    """
    if device.type != "cuda":
        yield
        return
    switches, products = _tf32_switches(), torch.backends.cuda.matmul
    before = [getattr(one, name) for one, name, *_ in switches]
    reduced = products.allow_bf16_reduced_precision_reduction
    for one, name, on, off in switches:
        setattr(one, name, on if wanted else off)
    products.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        for (one, name, *_), value in zip(switches, before, strict=True):
            setattr(one, name, value)
        products.allow_bf16_reduced_precision_reduction = reduced


@contextmanager
def one_thread() -> Iterator[int]:
    """Set torch to one CPU thread, yield the previous number, and restore it at the end. Holds for the whole process.

    Local batches are too small to divide among cores. Dividing them gains little and makes the bits depend on the
    number of cores. On busy cores dividing is a hundred times as slow, as OpenMP's threads spin while they wait.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


_RUN = 64


def row_sums(rows: Tensor) -> Tensor:
    """Return the sums [c] of rows [c, n], float64: runs of 64 are summed in float32, their sums in float64.

    This is a few times as fast as float64 throughout. Relative to the sum of magnitudes, the error is below 64 · 2^-24.
    """
    whole = rows.shape[1] // _RUN * _RUN
    runs = rows[:, :whole].reshape(len(rows), whole // _RUN, _RUN).sum(dim=2).sum(dim=1, dtype=torch.float64)
    return runs if whole == rows.shape[1] else runs + rows[:, whole:].sum(dim=1, dtype=torch.float64)


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


_DIRECTIONS = {"rademacher": counter.rademacher, "gaussian": counter.normal}
_PROJECTION_AT_ONCE = 1 << 20  # numbers drawn at a time: fewer calls gain more than fitting a core's cache
_PROJECTION_AT_ONCE_GPU = 1 << 24
_MOST_NUMBERS = 1 << 32  # entries of all directions of a message: ten seconds on a core
_NEXT_DIRECTION = 1 << 32  # direction k takes numbers k 2^32 ... of the stream


@dataclass(frozen=True, kw_only=True)
class FedScalar(Scheme):
    """r_k = <x, v_k> for k = 1 .. p; decoded to (1/p) Σ_k r_k v_k, v drawn again from the seed (FedScalar, Alg. 1).

    Unbiased, as E v v^T = I. The covariance of one decoded vector with p = 1 is ||x||^2 I + x x^T for Gaussian v, and
    that minus 2 diag(x^2) for signs: relative error (d + 1) / p and (d - 1) / p, so a step must be O(p / d). With
    separate seeds a mean over clients reduces the error. With `shared_seed` it does not, but the clients' numbers can
    be summed before decoding.

    vectors:     "rademacher" (signs) or "gaussian".
    projections: p, 32 bits each.
    shared_seed: seed of the round's direction for every client, chosen by the server; None: a separate seed per client.

    A client that chooses its seed can search for a favourable one, so the server chooses it, after the update is fixed.
    A projection hides nothing, as v is public; ||x|| <= C does not bound r (only C √d does).
    """

    name: ClassVar[str] = "fedscalar"
    unbiased: ClassVar[bool] = True

    vectors: Literal["rademacher", "gaussian"] = "rademacher"
    projections: int = 1
    shared_seed: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.projections <= 1 << 16:
            raise ConfigError(f"fedscalar: projections={self.projections}: must be from 1 to {1 << 16}.")
        if self.shared_seed is not None:
            client_seeds([self.shared_seed], 1)

    @property
    def linear(self) -> bool:
        return self.shared_seed is not None

    def layout(self, dimension: int) -> Layout:
        if self.projections * dimension > _MOST_NUMBERS:
            raise ConfigError(
                f"fedscalar: projections={self.projections} of d={dimension}: directions have "
                f"{self.projections * dimension:,} numbers, must have at most {_MOST_NUMBERS:,}. Use fewer projections."
            )
        return {"scalars": Floats(count=self.projections)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        seeds = self._seeds(client_seeds(seed, len(x)).to(x.device))
        scalars = self.inner_products(x, seeds)
        return Payloads.of(self, x.shape[1], seeds=None if self.linear else seeds, scalars=scalars)

    def inner_products(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        """Return r_k = <x, v_k>, float32 [c, p], along the directions of the seeds [c], or of the shared seed."""
        own = self._seeds(client_seeds(0, len(x)).to(x.device)) if seeds is None else seeds
        scalars = torch.zeros(len(x), self.projections, dtype=torch.float64, device=x.device)
        for rows, columns, number, vectors in self._directions(own, len(x), x.shape[1]):
            scalars[rows, number] += (x[rows, columns] * vectors).sum(dim=1, dtype=torch.float64)
        return scalars.float()

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        decoded = sent["scalars"].new_zeros(len(sent), sent.dimension)
        for rows, columns, number, vectors in self._directions(self._seeds(sent.seeds), len(sent), sent.dimension):
            decoded[rows, columns] += sent["scalars"][rows, number, None] * vectors
        return decoded.div_(self.projections)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        scalars = sent["scalars"] / (len(sent) * self.projections)
        if self.linear:
            scalars = scalars.sum(dim=0, keepdim=True)
        total = scalars.new_zeros(sent.dimension)
        for rows, columns, number, vectors in self._directions(self._seeds(sent.seeds), len(scalars), sent.dimension):
            with tf32(False, total.device):
                total[columns] += scalars[rows, number] @ vectors.expand(len(scalars[rows]), -1)
        return total

    def _seeds(self, seeds: Tensor) -> Tensor:
        """Return the seeds of the directions: [c], or the one shared by all clients [1]."""
        if self.shared_seed is None:
            return seeds
        return client_seeds([self.shared_seed], 1).to(seeds.device)

    def _directions(self, seeds: Tensor, clients: int, dimension: int) -> Iterator[tuple[slice, slice, int, Tensor]]:
        """Yield ranges of clients and of coordinates, the direction's number, and the direction [rows or 1,
        coordinates]."""
        draw = _DIRECTIONS[self.vectors]
        room = _PROJECTION_AT_ONCE if seeds.device.type == "cpu" else _PROJECTION_AT_ONCE_GPU
        width = min(dimension, max(room, 1 << 16))
        height = max(1, room // width)
        for row in range(0, clients, height):
            rows = slice(row, min(row + height, clients))
            for first in range(0, dimension, width):
                columns = slice(first, min(first + width, dimension))
                for number in range(self.projections):
                    start = number * _NEXT_DIRECTION + first
                    own = seeds if self.linear else seeds[rows]
                    yield rows, columns, number, draw(own, "projection", columns.stop - first, start=start)
