"""Named random streams from one root seed, for all randomness of a simulation except privacy noise."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of splitmix64 (Steele, Lea, Flood 2014)."""


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Independent random streams derived from one integer.

    A stream is named by a purpose ("local.shuffle") and integers (round, client ...): it is the SHA-256 of
    (root, purpose, integers), so adding a stream never moves another and a run resumes at any round.

    Probability that two of n streams coincide, by the birthday bound, whatever their names:
        generator       n^2 / 2^129: keys of 128 bits, a counter of 256
        tensors         n^2 / 2^129; on cuda n^2 / 2^65: keys of 64 bits, a counter of 64 for each thread
        integer         n^2 / 2^64: for public seeds, which are written into messages
        keys            n^2 L / 2^64 that two streams of L numbers share some of them: for shuffles and public choices
    A run of 10^4 rounds of 10^4 clients has 10^8 streams of a purpose: 10^-23, and 0.0003 on cuda.

    For experiments, shuffling, partitions, initial weights and public choices only. Never for privacy noise in a
    release: anyone who knows `root` can subtract all noise drawn from it.
    """

    root: int

    def generator(self, purpose: str, *path: int) -> np.random.Generator:
        """Return a numpy generator (Philox) at the start of the stream (purpose, *path)."""
        return np.random.Generator(np.random.Philox(key=self._key_bits(128, "numpy", purpose, path)))

    def tensors(self, purpose: str, *path: int, device: str = "cpu") -> TensorStream:
        """Return random tensors from the start of the stream. Their numbers on cuda differ from those of other
        devices."""
        if device.startswith("cuda"):
            return CudaStream(device, key=self._key_bits(64, "tensors.cuda", purpose, path))
        return HostStream(device, key=self._key_bits(128, "tensors", purpose, path))

    def integer(self, purpose: str, *path: int) -> int:
        """Return a 63-bit seed for a library that requires an integer (`FlatModel.initial`)."""
        return self._key_bits(63, "integer", purpose, path)

    def keys(self, purpose: str, number: int, ids: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """Uniform 64-bit keys [len(ids), *shape]: their argsort along the last axis is a shuffle.

        A key depends only on (root, purpose, round, its client's id, its position). It does not depend on the other ids
        or on chunking; enlarging `shape` along any axis keeps the existing keys.
        Splitmix64 in counter mode: statistically sound, not cryptographic.
        """
        stream = np.array([self._key_bits(64, "keys", purpose, (number,))], dtype=np.uint64)
        keys: NDArray[np.uint64] = _splitmix_outputs(stream, ids.astype(np.uint64))[0]
        for length in shape:
            keys = _splitmix_outputs(keys, np.arange(length, dtype=np.uint64))
        return keys

    def _key_bits(self, count: int, kind: str, purpose: str, path: tuple[int, ...]) -> int:
        name = json.dumps(["dpfed.seeds.1", int(self.root), kind, purpose, *map(int, path)])
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little") >> (128 - count)


def _splitmix_outputs(states: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return outputs [..., n] of splitmix64 with states [...] at counters [n]."""
    words: NDArray[np.uint64] = states[..., None] + (counters + np.uint64(1)) * np.uint64(GOLDEN)
    mix_words(words)
    return words


def mix_words(words: NDArray[np.uint64]) -> None:
    """Apply the finaliser of splitmix64 (Mix13 of Stafford 2011), a bijection, to every word in place."""
    shifted = words >> np.uint64(30)
    np.bitwise_xor(words, shifted, out=words)
    np.multiply(words, np.uint64(MIX_1), out=words)
    np.bitwise_xor(words, np.right_shift(words, np.uint64(27), out=shifted), out=words)
    np.multiply(words, np.uint64(MIX_2), out=words)
    np.bitwise_xor(words, np.right_shift(words, np.uint64(31), out=shifted), out=words)


_BLOCK = 1 << 14
"""Number of normals drawn at a time: their 128 KiB fit a core's cache."""
_RADIUS_BITS = 40
"""Number of low bits of a random word that give the radius of a pair of normals; the other 24 bits give the angle."""


class TensorStream(Protocol):
    """Stream of random tensors; every call continues where the previous call ended."""

    def normal(self, count: int) -> Tensor:
        """Independent standard normals, float32 [count]."""

    def normal_in_pairs(self, count: int) -> Tensor:
        """Independent standard normals, float32 [count], by the fastest method."""

    def fill_uniform(self, row: Tensor) -> None:
        """Fill row [n], float32, contiguous, with independent uniforms on {0, 1, ..., 2^24 - 1} / 2^24."""


class HostStream:
    """Stream drawn by numpy on the CPU, equal on every kind of processor, and copied to `device`.

    torch's generator on the CPU is not used: it keeps 32 bits of a seed, so that two of 10^5 streams coincide more
    often than not, and its float32 normals end at 5.77. This stream is Philox with keys of 128 bits; normals are drawn
    by the ziggurat in float64 and rounded once.
    """

    def __init__(self, device: str, *, key: int) -> None:
        self._device = device
        self._generator = np.random.Generator(np.random.Philox(key=key))

    def normal(self, count: int) -> Tensor:
        import torch

        drawn, block = np.empty(count, dtype=np.float32), np.empty(min(count, _BLOCK))
        for start in range(0, count, _BLOCK):
            part = block[: count - start]
            self._generator.standard_normal(out=part)
            drawn[start : start + _BLOCK] = part
        return torch.from_numpy(drawn).to(self._device)

    def normal_in_pairs(self, count: int) -> Tensor:
        """Return normals by Box and Muller (1958), a pair from 64 bits: 2.5 times as fast as `normal`.

        A radius has 40 bits, so no normal exceeds 7.55, where 1 of 2 10^13 should. Angles are multiples of 2 pi / 2^24.
        The error of a value in float32 is below 3e-6, or below 3e-5 / r where its radius r is below 1, and never above
        3e-4. Numpy's logarithm, sine and cosine differ in the last bits among processors.
        """
        import torch

        drawn = np.empty(count + count % 2, dtype=np.float32)
        for start in range(0, len(drawn), _BLOCK):
            block = drawn[start : start + _BLOCK]
            _fill_with_pairs(block, self._generator.bit_generator.random_raw(len(block) // 2))
        return torch.from_numpy(drawn[:count]).to(self._device)

    def fill_uniform(self, row: Tensor) -> None:
        if row.device.type == "cpu":
            self._generator.random(dtype=np.float32, out=row.numpy())
        else:
            import torch

            row.copy_(torch.from_numpy(self._generator.random(len(row), dtype=np.float32)))


def _fill_with_pairs(block: NDArray[np.float32], words: NDArray[np.uint64]) -> None:
    """Fill block [2 n] with the normals of n random integers: n cosines, then n sines."""
    one, other = block[: len(words)], block[len(words) :]  # np.split is slower than a logarithm
    radii: NDArray[np.float32] = (words & np.uint64((1 << _RADIUS_BITS) - 1)).view(np.int64).astype(np.float32)
    radii += np.float32(0.5)
    radii *= np.float32(2.0**-_RADIUS_BITS)  # in (0, 1]
    np.log(radii, out=radii)
    radii *= np.float32(-2)
    np.sqrt(radii, out=radii)
    angles = (words >> np.uint64(_RADIUS_BITS)).view(np.int64).astype(np.float32)
    angles *= np.float32(2 * np.pi / 2 ** (64 - _RADIUS_BITS))
    np.multiply(np.cos(angles, out=one), radii, out=one)
    np.multiply(np.sin(angles, out=other), radii, out=other)


class CudaStream:
    """Stream drawn on the GPU by torch's Philox: its key is a seed of 64 bits, with a counter of 64 bits per thread."""

    def __init__(self, device: str, *, key: int) -> None:
        import torch

        self._generator = torch.Generator(device).manual_seed(key)

    def normal(self, count: int) -> Tensor:
        import torch

        return torch.randn(count, generator=self._generator, device=self._generator.device)

    def normal_in_pairs(self, count: int) -> Tensor:
        return self.normal(count)

    def fill_uniform(self, row: Tensor) -> None:
        row.uniform_(generator=self._generator)
