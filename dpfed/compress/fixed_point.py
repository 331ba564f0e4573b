"""Fixed-point codes and the ring in which they are summed.

Ring Z_{2^b} of masked uploads. Sums of 32-bit integers wrap around; they are reduced modulo 2^b at the end only.

Rows are packed in b bits per coordinate. The lower half of an integer's bits is written first, whole or split again,
then the upper half. Single bits are written as bit planes.

Fixed-point codes: real rows as integers for a sum modulo 2^b, scaled, optionally rotated, rounded at random.

Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation"
(ICML 2021), Algorithm 1. Integer noise hides a sum of integer vectors, so its sensitivity is the norm of rounded rows,
not of clipped rows: `FixedPoint.encode` never returns a row above the norm that the accountant assumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.integers.fixed_point import padded_dimension, rounded_l2_squared
from dpfed.compress import counter
from dpfed.compress.counter import true_positions
from dpfed.compress.rotation import hadamard, tf32
from dpfed.errors import ConfigError, WireError
from dpfed.randomness import Randomness


def to_ring(integers: Tensor, bits: int) -> NDArray[np.uint32]:
    """Return whole numbers [...] modulo 2^bits, bits <= 32. Floats must be whole."""
    words = integers.detach().to(torch.int64) & ((1 << bits) - 1)
    return words.to(torch.uint32).cpu().numpy()


def centre_residues(total: Tensor, bits: int) -> Tensor:
    """Return residues [...] (or a sum not yet reduced) as int64 in [-2^(bits-1), 2^(bits-1))."""
    half = 1 << (bits - 1)
    return ((total.to(torch.int64) + half) & ((1 << bits) - 1)) - half


def ring_to_bytes(rows: Tensor, bits: int) -> list[bytes]:
    """Return a message for each row [c, k] of whole numbers."""
    return [pack_row(row, bits) for row in to_ring(rows, bits)]


def ring_from_bytes(messages: Sequence[bytes], *, size: int, bits: int) -> Tensor:
    """Return residues in [0, 2^bits), int64 [c, size]. Raise WireError for a message of another length; any message of
    the right length is a row."""
    rows = np.empty((len(messages), size), dtype=np.int64)
    for row, message in zip(rows, messages, strict=True):
        row[:] = unpack_row(memoryview(message), size, bits)
    return torch.from_numpy(rows)


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest unsigned integer of at least b bits: 8, 16 or 32."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def packed_bytes(size: int, bits: int) -> int:
    """Return the length in bytes of a packed row of `size` coordinates."""
    return bits // 8 * size + bits % 8 * -(-size // 8)


def pack_row(words: NDArray[np.unsignedinteger], bits: int) -> bytes:
    """Return integers [d] of the ring, modulo 2^b, as bytes."""
    return b"".join(_packed_parts(words, bits))


def unpack_row(content: memoryview, size: int, bits: int) -> NDArray[np.unsignedinteger]:
    """Return the integers [d] of `pack_row`. Raise WireError for any other length."""
    if len(content) != packed_bytes(size, bits):
        raise WireError(
            f"{len(content)} bytes for {size} coordinates of {bits} bits: must be {packed_bytes(size, bits)}."
        )
    return _unpacked_words(content, size, bits)


def _packed_parts(words: NDArray[np.unsignedinteger], bits: int) -> list[bytes]:
    word = word_type(bits)
    words = words.astype(word, copy=False)
    if bits == 8 * word.itemsize:
        return [words.astype(word.newbyteorder("<"), copy=False).tobytes()]
    if word.itemsize == 1:
        return [np.packbits(words & np.uint8(1 << plane)).tobytes() for plane in range(bits)]
    half = 4 * word.itemsize
    return _packed_parts(words, half) + _packed_parts(words >> word.type(half), bits - half)


def _unpacked_words(content: memoryview, size: int, bits: int) -> NDArray[np.unsignedinteger]:
    word = word_type(bits)
    if bits == 8 * word.itemsize:
        return np.frombuffer(content, word.newbyteorder("<"), size).astype(word, copy=False)
    if word.itemsize == 1:
        words = np.zeros(size, np.uint8)
        for plane, its_bits in enumerate(np.frombuffer(content, np.uint8).reshape(bits, -1)):
            words |= np.unpackbits(its_bits, count=size) << np.uint8(plane)
        return words
    half = 4 * word.itemsize
    words = _unpacked_words(content[packed_bytes(size, half) :], size, bits - half).astype(word)
    words <<= word.type(half)
    words |= _unpacked_words(content[: packed_bytes(size, half)], size, half)
    return words


ROUNDING = "fixed-point.rounding"
"""Purpose of the bits that round rows."""
DRAWS = 20
_LONGEST = float(1 << 31)
_AT_ONCE = 1 << 15  # numbers rounded at a time: their temporaries fit a core's cache
_ROOM_FOR_FLOATS = 2.0**-50
_PARTS = 16
_COIN = 2.0**-8  # resolution of the first 8 bits of a uniform number
_DOUBT = 2.0**-9


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedRows:
    """Integers int32 [c, padded] on the rows' device, and the number of rows replaced by zeros: not finite, or always
    too long.

    `zeroed_rows` depends on the rows: it is for the operator only, and no epsilon covers it.
    """

    integers: Tensor
    zeroed_rows: int


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """Code y = s R x rounded to integers, s = `steps_per_unit`; x has `size` = d entries, y has `padded` = n.

    rotate: True: R = H D / √n, with the Hadamard matrix H and random signs D from the round's public seed, equal for
            all clients, and n = the next power of two. R is an isometry. For x chosen before the signs, a coordinate of
            R x is subgaussian with variance ||x||² / n, so that the sum needs few bits
            (`accounting.integers.fixed_point.sum_bits`). One factor H D is enough for that bound. False: R = 1 and n =
            d.
    """

    size: int
    steps_per_unit: float
    rotate: bool

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size={self.size} of a fixed-point code: must be at least 1.")
        if not 0 < self.steps_per_unit < math.inf:
            raise ConfigError(f"steps_per_unit={self.steps_per_unit}: must be a positive number.")

    @property
    def padded(self) -> int:
        """Number of integers that a client sends."""
        return padded_dimension(self.size, rotate=self.rotate)

    def largest_squared_norm(self, clip_norm: float) -> int:
        """Return the bound on the squared L2 norm of encoded rows, for rows clipped to `clip_norm`.

        With s = scaled_clip / clip_norm it is at most accounting.integers.fixed_point.rounded_l2_squared(scaled_clip,
        padded). This includes an s rounded to floats, whose product with clip_norm may be slightly above scaled_clip.
        Raises ConfigError if rows would not fit 32-bit integers, or the exact sum of squares 64 bits.
        """
        clip = self.steps_per_unit * clip_norm * (1 - _ROOM_FOR_FLOATS)
        if not clip > 0 or clip + math.sqrt(self.padded) >= _LONGEST:
            raise ConfigError(
                f"steps_per_unit={self.steps_per_unit} times clip_norm={clip_norm}: with {self.padded} integers the "
                "product must be positive and its sum with their square root below 2^31. Use fewer steps per unit."
            )
        return rounded_l2_squared(clip, self.padded)

    def encode(
        self,
        rows: Tensor,
        *,
        clip_norm: float,
        rotation_seed: int,
        randomness: Randomness,
        names: NDArray[np.int64],
        path: tuple[int, ...],
        purpose: str = ROUNDING,
        ahead: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> EncodedRows:
        """Return rows [c, size] of norm at most `clip_norm` as integers whose mean over the random roundings is s R x.

        Claim: every returned row y has ||y||² <= `largest_squared_norm(clip_norm)`, checked in integers, for any input.
        Each entry is rounded down, or up with the probability of its fraction (to 2^-53), by draws named (purpose,
        *path, name of the row); `ahead` may have made the first bits of a row's first draw. A row that is too long is
        drawn again, at most 20 times, and then replaced by zeros; so is a row that is not finite. Let b be the
        probability that a draw is too long: at most e^-1/2 at norm C, so less than 5e-5 of such rows are replaced by
        zeros, in practice none. Drawing again changes the mean by at most √n b / (1 - b). A row longer than `clip_norm`
        is clipped to it; a row of zeros stays zeros.
        """
        if rows.shape[1:] != (self.size,):
            raise ConfigError(f"rows of shape {tuple(rows.shape)} in a fixed-point code of {self.size} entries a row.")
        largest = self.largest_squared_norm(clip_norm)
        signs = self._signs(rotation_seed, rows)
        integers = torch.zeros(len(rows), self.padded, dtype=torch.int32, device=rows.device)
        zeroed_rows = 0
        for row, out, name in zip(rows, integers, names, strict=True):
            rotated = self._rotate_row(row, signs)
            steps = self._row_factor(rotated, clip_norm)
            first = None if ahead is None else ahead(int(name))
            zeroed_rows += steps is None or not _round_within(
                rotated, largest, out, randomness, purpose, *path, int(name), steps=steps, first=first
            )
        return EncodedRows(integers=integers, zeroed_rows=zeroed_rows)

    def decode(self, total: Tensor, *, rotation_seed: int) -> Tensor:
        """Return the sum of rows, float32 [size], from the noisy sum of integers [padded], on the same device.

        Integers are transformed exactly, up to sums of 2^53, and scaled once, so that equal sums give equal bits on
        every processor.
        """
        units = total.double()
        if not self.rotate:
            return (units / self.steps_per_unit)[: self.size].float()
        units = hadamard(units, scale=1.0) * self._signs(rotation_seed, units)
        return units[: self.size].mul(self.padded**-0.5 / self.steps_per_unit).float()

    def _signs(self, rotation_seed: int, like: Tensor) -> Tensor:
        return _signs_of(rotation_seed, self.padded).to(like) if self.rotate else torch.ones(1).to(like)

    def _rotate_row(self, row: Tensor, signs: Tensor) -> Tensor:
        """Return R x: H of n = p q is H of p applied to the H of q of every part; parts of padding stay zeros."""
        if not self.rotate:
            return row.float()
        parts = min(self.padded, _PARTS)
        length = self.padded // parts
        held = -(-self.size // length)  # number of parts with entries of the row
        filled = signs.new_zeros(held * length)
        torch.mul(row, signs[: self.size], out=filled[: self.size])
        inner = hadamard(filled.view(held, length), scale=self.padded**-0.5)
        outer = hadamard(torch.eye(parts).to(inner))[:, :held]
        with tf32(False, row.device):
            return (outer @ inner).view(-1)

    def _row_factor(self, row: Tensor, clip_norm: float) -> float | None:
        """Return the factor of a row: s, or less if the row is longer than the clip norm; None if it is not finite.

        Privacy does not depend on this bound. It avoids needless redraws of rows that float32 has lengthened.
        """
        length = float(torch.linalg.vector_norm(row, dtype=torch.float64))
        if not math.isfinite(length):
            return None
        return self.steps_per_unit * min(1.0, clip_norm / length if length else 1.0)


@lru_cache(maxsize=2)
def _signs_of(rotation_seed: int, count: int) -> Tensor:
    """Return the signs D, cached for the clients of a round; the tensor must not be written to."""
    return counter.rademacher(counter.client_seeds(rotation_seed, 1), "fixed-point.rotation", count)[0]


def first_bits(count: int, randomness: Randomness, purpose: str, *path: int) -> NDArray[np.uint8]:
    """Return the first 8 bits of the uniform numbers of a rounding, uint8 [count]."""
    return randomness.bits(-(-count // 8), purpose, *path).view(np.uint8)[:count]


def _round_within(
    values: Tensor,
    largest: int,
    out: Tensor,
    randomness: Randomness,
    purpose: str,
    *path: int,
    steps: float = 1.0,
    first: NDArray[np.uint8] | None = None,
) -> bool:
    """Write a rounding of steps · values with squared norm at most `largest` to `out`; return True if one was found.

    On a GPU only the entries that the first 8 bits do not decide, about 1%, are copied to the CPU.
    """
    here = values.device.type == "cpu"
    for attempt in range(DRAWS):
        heads = first_bits(len(values), randomness, purpose, *path, attempt) if attempt or first is None else first
        if here:
            squares, chosen = _round_in_blocks(values.numpy(), heads, steps, out.numpy())
            few, before = values.numpy()[chosen], out.numpy()[chosen]
        else:
            squares, places = _round_on_device(values, torch.from_numpy(heads).to(values.device), steps, out)
            chosen, few, before = (one.cpu().numpy() for one in (places, values[places], out[places]))
        rest = randomness.bits(len(chosen), purpose + ".rest", *path, attempt)
        settled = _rounded_in_doubles(few, heads[chosen], rest, steps)
        squares += _squared_norm(settled) - _squared_norm(before.astype(np.int64))
        if here:
            out.numpy()[chosen] = settled
        else:
            out[places] = torch.from_numpy(settled).to(out)
        if squares <= largest:
            return True
    out.zero_()
    return False


def _round_on_device(values: Tensor, heads: Tensor, steps: float, out: Tensor) -> tuple[int, Tensor]:
    """Write the integers of `_round_by_8_bits`, in doubles, to `out`; return their squared norm and the undecided
    positions."""
    lower = values.double().mul(steps).add_(heads, alpha=-_COIN).sub_(_COIN + _DOUBT)
    rounded = lower.ceil()
    out.copy_(rounded)
    return int(rounded.long().square().sum()), true_positions(rounded.sub_(lower) <= _COIN + 2 * _DOUBT)


def _round_in_blocks(
    values: NDArray[np.floating], heads: NDArray[np.uint8], steps: float, out: NDArray[np.int32]
) -> tuple[int, NDArray[np.int64]]:
    """Write the integers of `_round_by_8_bits`, block by block, to `out`; return their squared norm and the undecided
    positions."""
    squares, unsure = 0, []
    for first in range(0, len(values), _AT_ONCE):
        place = slice(first, first + _AT_ONCE)
        out[place], square, open_places = _round_by_8_bits(values[place], heads[place], steps)
        squares += square
        unsure.append(open_places + first)
    return squares, np.concatenate(unsure)


def _round_by_8_bits(
    values: NDArray[np.floating], heads: NDArray[np.uint8], steps: float
) -> tuple[NDArray[np.floating], int, NDArray[np.int64]]:
    """Round v = steps · values up if a uniform U is below its fraction, else down: to the least integer >= v - U.

    Only the first 8 bits of U are given. Returned are the integers, the sum of their squares, and the positions where
    the remaining bits of U, or the rounding of floats, may change the integer.

    v - U is above `lower` and at most lower + W, W = 2^-8 + 2 · _DOUBT, so the next integer is right if it is farther
    than W. In float32 the error of `lower` is below 5 |v| 2^-24 + 2^-22, which is below _DOUBT up to |v| = 2^12 + 2. No
    |v| is larger if the squares add up to less than 2^24. Up to that sum floats add squares exactly, and a larger sum
    never rounds to a smaller one. Else doubles are used, with 2^53 and |v| < 2^31 in these bounds.
    """
    small = 1e-30 < steps < 1e30  # then steps, and its products with all relevant values, are normal float32 numbers
    for kind, exact in ((np.float32, 1 << 24), (np.float64, 1 << 53))[0 if small else 1 :]:
        lower: NDArray[np.floating] = heads.astype(kind)
        lower *= kind(-_COIN)
        lower += np.multiply(values, kind(steps), dtype=kind)
        lower -= kind(_COIN + _DOUBT)
        rounded: NDArray[np.floating] = np.ceil(lower)
        square = float(np.einsum("i,i->", rounded, rounded))  # BLAS might start threads
        if square < exact:
            break
    np.subtract(rounded, lower, out=lower)
    whole = int(square) if square < exact else _squared_norm(rounded.astype(np.int64))
    return rounded, whole, np.flatnonzero(lower <= _COIN + 2 * _DOUBT)


def _rounded_in_doubles(
    values: NDArray[np.floating], heads: NDArray[np.uint8], rest: NDArray[np.uint64], steps: float
) -> NDArray[np.int64]:
    """Return values rounded in double precision, with uniforms U of 53 bits whose first 8 are `heads`."""
    scaled = values * np.float64(steps)
    down = np.floor(scaled)
    coins = np.ldexp((heads.astype(np.uint64) << np.uint64(45) | rest >> np.uint64(19)).astype(np.float64), -53)
    return (down + (coins < scaled - down)).astype(np.int64)


def _squared_norm(integers: NDArray[np.int64]) -> int:
    """Return the squared norm of a row; the bound of `largest_squared_norm` keeps it below 2^62."""
    return int(integers @ integers)


def count_near_ends(total: Tensor, bits: int) -> int:
    """Return the number of entries of a sum in the outer 1/64 of the ring, at least one value at either end.

    total: int64 in [-2^(bits-1), 2^(bits-1)) (`centre_residues`), with the clients' noise. The
           server's noise is not in it yet, so the count is for the operator only and no epsilon covers it.

    The count estimates wraps, which cannot be counted: a sum that has wrapped around looks like any other. But entries
    beyond the ends of the ring have neighbours near the ends. A count above zero means that some entries have probably
    wrapped; zero of many entries means that hardly any have. `accounting.integers.fixed_point.sum_bits` bounds the
    probability beforehand, for rows that were not chosen by the signs of the rotation. No privacy accounting uses
    either.
    """
    half = 1 << (bits - 1)
    edge = max(1, half // 64)
    return int(((total < edge - half) | (total >= half - edge)).sum())
