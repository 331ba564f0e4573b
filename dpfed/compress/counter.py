"""Random numbers by position: number i of the stream (seed, purpose), equal on all devices and in any order.

A seed in a message must give the same numbers to the client that drew them and to the server that draws them again.
Here number i is a function of (seed, purpose, i) alone. It does not depend on the device, on how many numbers are
drawn, on their chunks, or on other clients in the batch. `torch.Generator` guarantees none of that.

The generator is SplitMix64 in counter mode (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014) with the finaliser "Mix13" of Stafford (2011):

    word i = mix(state + (i + 1) G) mod 2^64,    state = mix(mix(seed) + SHA-256(purpose)),    G = 0x9E3779B97F4A7C15

in integer arithmetic on int64, which wraps around on all devices. Key and counter share 64 bits: of n streams of L
numbers two share numbers with probability n^2 L / 2^64. Statistically sound, not cryptographic: never for privacy
noise. Seeds are int64 [c], one per client, the 64 bits that are in the payload; see `client_seeds`.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.seeds import GOLDEN, MIX_1, MIX_2, mix_words

# A chunk's numbers (256 KiB) and temporaries fit a core's cache; a GPU is fastest with few large kernels.
_CHUNK_WORDS = 1 << 15
_CHUNK_WORDS_GPU = 1 << 22
_FEW_SEEDS = 16
_SIGN_LANES = 16  # int32 lanes in a unit of signs: every lane gives its 32 bits one after the other


def _signed(word: int) -> int:
    """Return the int64 with the bits of the unsigned integer."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


_GOLDEN, _MIX_1, _MIX_2 = map(_signed, (GOLDEN, MIX_1, MIX_2))
_SIGN_BIT = -(1 << 31)  # of an int32 or a float32
_ONE = 0x3F800000  # float32 1.0


def client_seeds(seed: int | Sequence[int], clients: int) -> Tensor:
    """Return one 64-bit seed per client, int64 [clients] on the CPU: hashed from one integer, or the given sequence.

    Raises ConfigError unless every integer is in [-2^63, 2^64) and a sequence has one integer for every client.
    """
    if isinstance(seed, int | np.integer):
        return bits(torch.tensor([_seed_word(seed)]), "client", clients)[0]
    if isinstance(seed, str | bytes) or not isinstance(seed, Iterable):
        raise ConfigError(f"seed={seed!r}: must be an integer of 64 bits, or a sequence of one for every client.")
    words = [_seed_word(one) for one in seed]
    if len(words) != clients:
        raise ConfigError(f"seed has {len(words)} integers for {clients} clients: give one per client, or one for all.")
    return torch.tensor(words, dtype=torch.int64)


def _seed_word(seed: SupportsIndex) -> int:
    try:
        word = operator.index(seed)
    except TypeError:
        raise ConfigError(f"seed={seed!r}: must be an integer of 64 bits.") from None
    if not -(1 << 63) <= word < 1 << 64:
        raise ConfigError(f"seed={word}: must be an integer of 64 bits, from -2^63 to 2^64 - 1.")
    return _signed(word)


def bits(seeds: Tensor, purpose: str, count: int, *, start: int = 0) -> Tensor:
    """Return random 64-bit integers, int64 [c, count]: numbers start .. start + count - 1 of every client's stream."""
    return _draw_numbers(seeds, purpose, start, count, _WORDS)


def uniform(seeds: Tensor, purpose: str, count: int, *, start: int = 0) -> Tensor:
    """Return uniforms on {0, 1, ..., 2^24 - 1} / 2^24, float32 [c, count], equal on all devices."""
    return _draw_numbers(seeds, purpose, start, count, _UNIFORM)


def rademacher(seeds: Tensor, purpose: str, count: int, *, start: int = 0) -> Tensor:
    """Return +1 or -1 with probability 1/2, float32 [c, count]; one bit each, so several times faster than
    `uniform`."""
    return _draw_numbers(seeds, purpose, start, count, _SIGNS)


def multiply_by_signs(values: Tensor, seeds: Tensor, purpose: str, *, start: int = 0) -> Tensor:
    """Return values [c, count], float32, times `rademacher`, bitwise equal: a new tensor with flipped sign bits."""
    flipped = torch.empty(values.shape, dtype=torch.int32, device=values.device)
    before = values.view(torch.int32)
    for rows, first, last, flips in _drawn_pieces(seeds, purpose, start, values.shape[1], _FLIPS):
        place = rows, slice(first - start, last - start)
        torch.bitwise_xor(before[place], flips, out=flipped[place])
    return flipped.view(torch.float32)


def normal(seeds: Tensor, purpose: str, count: int, *, start: int = 0) -> Tensor:
    """Draw standard normals by Box and Muller (1958), float32 [c, count], |value| < 6.7.

    The random bits are equal on all devices; logarithm, sine and cosine of two devices may differ in the last bit.
    """
    return _draw_numbers(seeds, purpose, start, count, _NORMAL)


def coins(probabilities: Tensor, seeds: Tensor, purpose: str, *, start: int = 0) -> Tensor:
    """Draw true with the given probabilities [c, n], bool [c, n]: uniform number start + j < probabilities[:, j].

    Probabilities below 0 count as 0 and above 1 as 1; a probability is exact to 2^-24.
    """
    drawn_coins = torch.empty_like(probabilities, dtype=torch.bool)
    count = probabilities.shape[1]
    for rows, first, last, drawn in _drawn_pieces(seeds, purpose, start, count, _STEPS_OF_24_BITS):
        columns = slice(first - start, last - start)
        drawn_coins[rows, columns] = at_least(probabilities[rows, columns] * 2.0**24, drawn, or_equal=False)
    return drawn_coins


def at_least(left: Tensor, right: Tensor | float, *, or_equal: bool = True) -> Tensor:
    """Return left >= right, or left > right: by numpy on a CPU, where numpy is several times as fast."""
    compared = np.greater_equal if or_equal else np.greater
    if left.device.type == "cpu":
        other = right.numpy() if isinstance(right, Tensor) else left.numpy().dtype.type(right)
        return torch.from_numpy(compared(left.numpy(), other))
    return left >= right if or_equal else left > right


def true_positions(mask: Tensor) -> Tensor:
    """Return the sorted positions at which mask [n] is true: by numpy on a CPU, where it is five times as fast."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero()[:, 0]


def random_subset(seeds: Tensor, purpose: str, size: int, kept: int) -> Tensor:
    """Return `kept` of `size` coordinates, uniform without replacement, sorted, int64 [c, kept].

    Chosen are the coordinates with the smallest random keys. The low bits of a key are replaced by the coordinate, so
    that no two keys are equal.
    """
    if not 0 <= kept <= size:
        raise ConfigError(f"{kept} of {size} coordinates: must be from 0 to all of them.")
    low = (1 << max(size - 1, 0).bit_length()) - 1
    chosen = seeds.new_empty(len(seeds), kept)
    at_once = max(1, _chunk_size(seeds.device) // max(size, 1))
    for first in range(0, len(seeds) if kept else 0, at_once):
        group = seeds[first : first + at_once]
        if seeds.device.type == "cpu" and size > _CHUNK_WORDS:
            chosen[first] = torch.from_numpy(
                _smallest_places(partial(_random_integers, group, purpose, size), size, kept, low)
            )
            continue
        words = bits(group, purpose, size)
        if words.device.type == "cpu":  # numpy selects several times as fast as torch
            for place, own in enumerate(words.numpy(), first):
                chosen[place] = torch.from_numpy(_smallest_places(partial(iter, [(0, own)]), size, kept, low))
            continue
        keys = words.bitwise_and_(~low).bitwise_or_(torch.arange(size, device=seeds.device))
        largest_kept = keys.kthvalue(kept, dim=1, keepdim=True).values
        chosen[first : first + at_once] = (keys <= largest_kept).nonzero()[:, 1].view(-1, kept)
    return chosen


subset = random_subset  # its name up to version 0.3


def _random_integers(seed: Tensor, purpose: str, size: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (start, random 64-bit integers) of one stream, a few at a time."""
    for _, first, _, words in _drawn_pieces(seed, purpose, 0, size, _WORDS):
        yield first, words[0].numpy()


def _smallest_places(
    words: Callable[[], Iterable[tuple[int, NDArray[np.int64]]]], size: int, kept: int, low: int
) -> NDArray[np.int64]:
    """Return the positions of the `kept` smallest of `size` keys, kept > 0. A key is a random integer whose bits `low`
    are replaced by the coordinate.

    Only integers within six standard deviations of the expected kept-th smallest are held in memory; if the kept-th
    smallest is not among them, all integers are.
    """
    middle, width = kept / size, 6 * (0.25 / size) ** 0.5
    shares = (middle - width, middle + width)
    expected = [int(max(-1.0, min(2 * share - 1, 1 - 2.0**-53)) * (1 << 63)) for share in shares]
    chosen = _smallest_between(words(), size, kept, low, *expected)
    if chosen is None:
        chosen = _smallest_between(words(), size, kept, low, -1 << 63, (1 << 63) - 1)
    assert chosen is not None
    return chosen


def _smallest_between(
    words: Iterable[tuple[int, NDArray[np.int64]]], size: int, kept: int, low: int, least: int, most: int
) -> NDArray[np.int64] | None:
    """Return the positions of the `kept` smallest keys if the kept-th is in [least, most], rounded outwards; else
    None."""
    least, most = least & ~low, most | low
    below, near = np.empty(size, dtype=np.bool_), []
    for first, some in words:
        under = np.less(some, least, out=below[first : first + len(some)])
        places = np.flatnonzero(under ^ (some <= most))
        near.append(some[places] & ~low | (places + first))
    keys = np.concatenate(near)
    missing = kept - int(np.count_nonzero(below))
    if not 0 < missing <= len(keys):
        return None
    below[np.partition(keys, missing - 1)[:missing] & low] = True
    return np.flatnonzero(below)


@dataclass(frozen=True, kw_only=True)
class _NumberKind:
    """Kind of random numbers: r rows of m·`words` 64-bit integers, contiguous, give [r, m·numbers] numbers."""

    words: int
    numbers: int
    dtype: torch.dtype
    make: Callable[[Tensor], Tensor]


def _steps_of_24_bits(words: Tensor) -> Tensor:
    if words.device.type == "cpu":
        halves = words.numpy().view(np.uint32)  # the low half is first
        np.right_shift(halves, np.uint32(8), out=halves)
        return torch.from_numpy(halves.view(np.int32)).to(torch.float32)
    return words.view(torch.int32).bitwise_right_shift_(8).bitwise_and_(0xFFFFFF).to(torch.float32)


def _uniform_of(words: Tensor) -> Tensor:
    return _steps_of_24_bits(words).mul_(2.0**-24)


def _flips_of(words: Tensor) -> Tensor:
    """Return int32 numbers with the sign bits of `_signs_of`, zero elsewhere."""
    lanes = words.view(torch.int32).view(len(words), -1, 1, _SIGN_LANES)
    flips = torch.bitwise_left_shift(lanes, _shifts(words.device)).bitwise_and_(_SIGN_BIT)
    return flips.view(len(words), -1)


def _signs_of(words: Tensor) -> Tensor:
    return _flips_of(words).bitwise_or_(_ONE).view(torch.float32)


@lru_cache(maxsize=4)
def _shifts(device: torch.device) -> Tensor:
    return torch.arange(32, dtype=torch.int32, device=device)[:, None]


def _normals_of(words: Tensor) -> Tensor:
    uniforms = (words & 0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31)  # in (0, 1]
    radii = uniforms.log_().mul_(-2.0).sqrt_()
    angles = words.bitwise_right_shift_(32).to(torch.float32).mul_(math.pi / 2**31)
    return torch.stack((radii * angles.cos(), radii * angles.sin()), dim=2).view(len(words), -1)


_WORDS = _NumberKind(words=1, numbers=1, dtype=torch.int64, make=lambda words: words)
_STEPS_OF_24_BITS = _NumberKind(words=1, numbers=2, dtype=torch.float32, make=_steps_of_24_bits)
_UNIFORM = _NumberKind(words=1, numbers=2, dtype=torch.float32, make=_uniform_of)
_NORMAL = _NumberKind(words=1, numbers=2, dtype=torch.float32, make=_normals_of)
_SIGNS = _NumberKind(words=_SIGN_LANES // 2, numbers=32 * _SIGN_LANES, dtype=torch.float32, make=_signs_of)
_FLIPS = _NumberKind(words=_SIGN_LANES // 2, numbers=32 * _SIGN_LANES, dtype=torch.int32, make=_flips_of)


def _draw_numbers(seeds: Tensor, purpose: str, start: int, count: int, kind: _NumberKind) -> Tensor:
    """Return numbers start .. start + count - 1 of every stream, [c, count]."""
    drawn = torch.empty(len(seeds), max(count, 0), dtype=kind.dtype, device=seeds.device)
    for rows, first, last, numbers in _drawn_pieces(seeds, purpose, start, count, kind):
        drawn[rows, first - start : last - start] = numbers
    return drawn


def _drawn_pieces(
    seeds: Tensor, purpose: str, start: int, count: int, kind: _NumberKind
) -> Iterator[tuple[slice, int, int, Tensor]]:
    """Yield the drawn numbers in pieces: rows, the first number, the end (exclusive), and the numbers."""
    if start < 0 or count < 0:
        raise ConfigError(f"start={start}, count={count} of the stream {purpose!r}: must not be negative.")
    states = _stream_starts(seeds, purpose)
    units = max(1, _chunk_size(seeds.device) // kind.words)
    unit_range = (start // kind.numbers, -(-(start + count) // kind.numbers))
    for rows, first, last in _chunk_ranges(len(seeds), *unit_range, units):
        starts = states[rows, None] + _signed(first * kind.words * _GOLDEN % (1 << 64))
        numbers = kind.make(_mixed_in_place(starts + _counter_steps((last - first) * kind.words, seeds.device)))
        begin, end = max(start, first * kind.numbers), min(start + count, last * kind.numbers)
        yield rows, begin, end, numbers[:, begin - first * kind.numbers : end - first * kind.numbers]


def _stream_starts(seeds: Tensor, purpose: str) -> Tensor:
    """Return the start of every seed's stream, int64 [c]; the tensor must not be written to."""
    if seeds.device.type == "cpu" and len(seeds) <= _FEW_SEEDS:
        return _cached_starts(tuple(seeds.tolist()), purpose)
    return _mixed_in_place(_mixed(seeds) + _purpose_word(purpose))


@lru_cache(maxsize=64)
def _cached_starts(seeds: tuple[int, ...], purpose: str) -> Tensor:
    """Return the starts of the seeds' streams, cached because blocks of a vector draw one after the other."""
    return _mixed_in_place(_mixed(torch.tensor(seeds, dtype=torch.int64)) + _purpose_word(purpose))


def _chunk_ranges(rows: int, first: int, last: int, size: int) -> Iterator[tuple[slice, int, int]]:
    """Yield pieces (rows, first, last) of [rows, first..last) with at most `size` positions, or part of one row."""
    columns = max(1, min(size, last - first))
    height = max(1, size // columns)
    for row in range(0, rows, height):
        for column in range(first, last, columns):
            yield slice(row, row + height), column, min(column + columns, last)


def _chunk_size(device: torch.device) -> int:
    return _CHUNK_WORDS if device.type == "cpu" else _CHUNK_WORDS_GPU


@lru_cache(maxsize=4)
def _steps_up_to(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, count + 1, device=device).mul_(_GOLDEN)


def _counter_steps(count: int, device: torch.device) -> Tensor:
    """Return G, 2 G, ... count G; the tensor must not be written to."""
    return _steps_up_to(max(_chunk_size(device), count), device)[:count]


def _mixed(words: Tensor) -> Tensor:
    """Return the splitmix64 finaliser of every word, a bijection, as a new tensor."""
    return _mixed_in_place(words.clone())


def _mixed_in_place(words: Tensor) -> Tensor:
    if words.device.type == "cpu":  # numpy, whose shifts are logical by themselves, is twice as fast
        mix_words(words.numpy().view(np.uint64))
        return words
    words ^= (words >> 30) & (1 << 34) - 1  # int64 shifts copy the sign: the mask makes them logical
    shifted = torch.empty_like(words)
    words.mul_(_MIX_1)
    words ^= torch.bitwise_right_shift(words, 27, out=shifted).bitwise_and_((1 << 37) - 1)
    words.mul_(_MIX_2)
    words ^= torch.bitwise_right_shift(words, 31, out=shifted).bitwise_and_((1 << 33) - 1)
    return words


@lru_cache(maxsize=256)
def _purpose_word(purpose: str) -> int:
    return _signed(int.from_bytes(hashlib.sha256(f"dpfed.counter.1 {purpose}".encode()).digest()[:8], "little"))
