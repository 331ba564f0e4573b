"""DRIVE and EDEN: a rotated vector is quantised to a few levels, with one scale per block.

After the rotation R of a block of n coordinates, y = R x has entries like N(0, ||x||^2 / n). Each entry is quantised to
the level c nearest to its standardised value y √n / ||y||. Each block sends one scale S and decodes to S R^T c, where

    S = ||y||^2 / <c, y>     "unbiased":   E S R^T c = x under a uniform rotation, since <S c, y> = ||y||^2 always
    S = <c, y> / ||c||^2     "min-mse":    the smallest error, but S R^T c shrinks x

(Vargaftik et al., DRIVE, NeurIPS 2021; EDEN, ICML 2022). With `share` p < 1 only k = p n of a block's rotated
coordinates are sent, chosen by the seed, uniformly without replacement; the "unbiased" scale is then times n / k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from dpfed.compress import counter, rotation
from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import Floats, SymbolField
from dpfed.compress.payload import Batch, Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates
from dpfed.errors import ConfigError

Scale = Literal["unbiased", "min-mse"]


class _RotatedLevels(Scheme, Protocol):
    """Base of both schemes. `levels`: ascending, symmetric about 0 and without 0; their number is a power of two."""

    linear: ClassVar[bool] = False
    scale: Scale
    rounds: int
    block: int

    @property
    def levels(self) -> tuple[float, ...]: ...

    @property
    def share(self) -> float:
        """Fraction of the rotated coordinates that are sent."""
        return 1.0

    @property
    def unbiased(self) -> bool:
        return self.scale == "unbiased" and self.rounds > 1

    def sent(self, dimension: int) -> int:
        """Return the number of symbols of one vector."""
        whole, rest = rotation.block_sizes(dimension, self.block)
        return whole * self._symbol_count(self.block) + sum(self._symbol_count(size) for size in rest)

    def scales(self, dimension: int) -> int:
        """Return the number of scales of one vector: one per block."""
        whole, rest = rotation.block_sizes(dimension, self.block)
        return whole + len(rest)

    def layout(self, dimension: int) -> Layout:
        """Return the layout: a scale for each block, a symbol for each rotated coordinate that is sent."""
        return {
            "scales": Floats(count=self.scales(dimension), signed=False),
            "symbols": SymbolField(alphabet=len(self.levels), count=self.sent(dimension)),
        }

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        """Return symbols [c, sent(d)] uint8 and scales [c, blocks] float32 >= 0 of x [c, d]."""
        x = checked_updates(x)
        seeds, dimension = client_seeds(seed, len(x)).to(x.device), x.shape[1]
        symbols = x.new_empty(len(x), self.sent(dimension), dtype=torch.uint8)
        scales = x.new_empty(len(x), self.scales(dimension), dtype=torch.float32)
        for rows, block, place in self._symbol_places(len(x), dimension, x.device):
            held = x[rows, block.inputs].float().reshape(-1, block.length // block.count)
            part, scale = in_unit_range(held)
            rotated = rotation.rotate(part.view(-1, block.length), seeds[rows], block, self.rounds)
            chosen, unit_scale = self._quantise(rotated, seeds[rows], block)
            symbols[rows, place] = chosen
            scales[rows, block.blocks] = (unit_scale * scale).view(-1, block.count).float()
        return Payloads.of(self, dimension, seeds=seeds, symbols=symbols, scales=scales)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        decoded = sent["scales"].new_empty(len(sent), sent.dimension)
        for rows, held, part in self._decoded_parts(sent):
            decoded[rows, held] = part
        return decoded

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        """Return the mean of the decoded updates [d], computed a few clients and blocks at a time."""
        sent = batch(payloads, self)
        total = sent["scales"].new_zeros(sent.dimension)
        for _, held, part in self._decoded_parts(sent):
            total[held] += part.sum(dim=0)
        return total.div_(len(sent))

    def _decoded_parts(self, sent: Batch) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ranges of clients and of coordinates, with their decoded values."""
        symbols, scales = sent["symbols"], sent["scales"]
        for rows, block, place in self._symbol_places(len(sent), sent.dimension, scales.device):
            yield (rows, block.inputs, self._decode_block(symbols[rows, place], scales[rows], sent.seeds[rows], block))

    def _quantise(self, rotated: Tensor, seeds: Tensor, block: rotation.RotatedBlock) -> tuple[Tensor, Tensor]:
        """Return symbols [c, count · kept] and scales [c · count] float64 of [c, count · n]; a zero row gets scale
        0."""
        kept, rows = self._symbol_count(block.size), rotated.view(-1, block.size)
        whole = rotation.row_sums(rows.square())
        if kept < block.size:
            rows = rotated.gather(1, self._sent_coordinates(seeds, block)).view(-1, kept)
        # The one threshold of two levels is zero, whatever the standardising factor is.
        standardised = rows if len(self.levels) == 2 else rows * _standardising(whole, block.size)[:, None]
        symbols = nearest_levels(standardised, self.levels)
        if self.scale == "unbiased":
            squares = whole if kept == block.size else rotation.row_sums(rows.square())
            overlap = self._inner_products(symbols, rows)
            scale = squares / torch.where(overlap > 0, overlap, 1.0) * (block.size / kept)
        else:
            scale = self._inner_products(symbols, rows) / rotation.row_sums(self._levels(symbols).square())
        return symbols.view(len(rotated), -1), scale

    def _inner_products(self, symbols: Tensor, rows: Tensor) -> Tensor:
        """Return <c, y> of every row, float64."""
        if len(self.levels) == 2:
            return self.levels[1] * rotation.row_sums(rows.abs())
        return rotation.row_sums(self._levels(symbols) * rows)

    def _decode_block(self, symbols: Tensor, scales: Tensor, seeds: Tensor, block: rotation.RotatedBlock) -> Tensor:
        """Return decoded coordinates [c, length] of one block, or of several of equal size."""
        levels = self._levels(symbols)
        if levels.shape[1] < block.count * block.size:
            zeros = levels.new_zeros(len(levels), block.count * block.size)
            levels = zeros.scatter_(1, self._sent_coordinates(seeds, block), levels)
        # The scale is applied last: even an extreme scale does not make the rotation overflow.
        coordinates = rotation.rotate_back(levels, seeds, block, self.rounds)
        coordinates.view(len(scales), block.count, -1).mul_(scales[:, block.blocks, None])
        return coordinates

    def _symbol_places(
        self, clients: int, dimension: int, device: torch.device
    ) -> Iterator[tuple[slice, rotation.RotatedBlock, slice]]:
        """Yield (range of clients, block, positions of the block's symbols)."""
        starts = list(
            accumulate((self._symbol_count(block.size) for block in rotation.blocks(dimension, self.block)), initial=0)
        )
        for rows, block in rotation.pieces(clients, dimension, self.block, device):
            yield rows, block, slice(starts[block.number], starts[block.number + block.count])

    def _symbol_count(self, size: int) -> int:
        """Return the number of symbols of a block."""
        return max(1, round(self.share * size))

    def _sent_coordinates(self, seeds: Tensor, block: rotation.RotatedBlock) -> Tensor:
        """Return the rotated coordinates that are sent, [c, count · kept]."""
        kept, chosen = self._symbol_count(block.size), []
        for place in range(block.count):
            own = counter.random_subset(seeds, f"rotated_levels.kept.{block.number + place}", block.size, kept)
            chosen.append(own + place * block.size)
        return torch.cat(chosen, dim=1)

    def _levels(self, symbols: Tensor) -> Tensor:
        if len(self.levels) == 2:
            low, high = self.levels
            return symbols.to(torch.float32).mul_(high - low).add_(low)
        table = torch.tensor(self.levels, dtype=torch.float32, device=symbols.device)
        return table.index_select(0, symbols.reshape(-1).int()).view(symbols.shape)


def _standardising(squares: Tensor, size: int) -> Tensor:
    """Return the factor that makes the mean square of `size` coordinates 1, float32; arbitrary for zeros."""
    return (size / torch.where(squares > 0, squares, 1.0)).sqrt().float()


def nearest_levels(values: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Return the index of the nearest level, uint8; a midpoint is rounded up."""
    middles = ((low + high) / 2 for low, high in pairwise(levels))  # a few comparisons are faster than a search
    return reduce(Tensor.add_, (counter.at_least(values, middle).view(torch.uint8) for middle in middles))


def in_unit_range(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [c, n] divided by their largest magnitude, and these magnitudes [c], so that squares stay finite.

    A zero row stays zero, with magnitude 0.
    """
    largest = rows.abs().amax(dim=1)
    return rows / torch.where(largest > 0, largest, 1.0)[:, None], largest


@dataclass(frozen=True, kw_only=True)
class Drive(_RotatedLevels):
    """sign(R x) with scale S (Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021).

    scale:  "unbiased", S = ||y||^2 / ||y||_1, relative error π/2 - 1 = .571 of one vector, divided by the number of
            clients in a mean; equal to EDEN with one bit. Or "min-mse", S = ||y||_1 / n, error 1 - 2/π = .363, but
            every coordinate shrinks by 2/π, which no mean over clients corrects.
    rounds: number of rounds of the randomised Hadamard rotation of 2^16 coordinates; smaller blocks have more rounds,
            for equal quality. With one round the unbiased scale is biased on spiky vectors.
    block:  number of coordinates rotated together, a power of two. Vectors are cut into blocks: d = 1025 takes 1025
            bits.
    """

    name: ClassVar[str] = "drive"

    scale: Scale = "unbiased"
    rounds: int = 2
    block: int = 1 << 16

    def __post_init__(self) -> None:
        rotation.check_rotation(self.name, rounds=self.rounds, block=self.block)

    @property
    def levels(self) -> tuple[float, ...]:
        return -1.0, 1.0


POSITIVE_CENTROIDS: Mapping[int, tuple[float, ...]] = {
    1: (0.797884560802865356,),
    2: (0.452780034636492009, 1.5104176084990954),
    3: (0.245094178944221668, 0.756005281205877275, 1.34390927850499988, 2.15194570453698729),
    4: (
        0.12839502985114701,
        0.388048299490290197,
        0.656759118532463381,
        0.942340456486961371,
        1.25623119734717715,
        1.61804638602188263,
        2.06901722653138658,
        2.73258957099516307,
    ),
}
"""Levels above zero of the quantiser of least squared error for N(0, 1) with 2^bits levels (Lloyd; Max, 1960).

Each level is the mean of N(0, 1) between the midpoints to its neighbours.
"""


@dataclass(frozen=True, kw_only=True)
class Eden(_RotatedLevels):
    """Nearest centroid of each standardised coordinate of R x, with scale S (Vargaftik et al., "EDEN", ICML 2022).

    bits:  1, 2, 3 or 4 per coordinate: relative error of one vector .571, .133, .0358, .00959, divided by the number of
           clients in a mean. Or below 1: that fraction of the rotated coordinates at one bit, error (π/2) / bits - 1.
           The fraction is chosen by the seed, so its coordinates are not sent.
    scale: "unbiased", S = ||y||^2 / <c, y>, or "min-mse", S = <c, y> / ||c||^2, which shrinks every coordinate.
    rounds, block: as in DRIVE.
    """

    name: ClassVar[str] = "eden"

    bits: float = 1
    scale: Scale = "unbiased"
    rounds: int = 2
    block: int = 1 << 16

    def __post_init__(self) -> None:
        if not (0 < self.bits < 1 or self.bits in POSITIVE_CENTROIDS):
            raise ConfigError(f"{self.name}: bits={self.bits}: must be 1, 2, 3 or 4, or between 0 and 1.")
        rotation.check_rotation(self.name, rounds=self.rounds, block=self.block)

    @property
    def share(self) -> float:
        return min(float(self.bits), 1.0)

    @property
    def levels(self) -> tuple[float, ...]:
        positive = POSITIVE_CENTROIDS[int(self.bits) if self.share == 1 else 1]
        return tuple(-level for level in reversed(positive)) + positive
