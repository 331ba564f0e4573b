"""The counter-based streams on numpy's uint64, whose shifts are logical by themselves, one seed at a time."""

import hashlib

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix(words):
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def words(seed, purpose, count):
    digest = hashlib.sha256(b"dpfed.counter.1 " + purpose.encode()).digest()
    state = splitmix(splitmix(np.array([seed % 2**64], dtype=np.uint64)) + np.frombuffer(digest[:8], "<u8"))
    return splitmix(state + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * GOLDEN)


def halves(seed, purpose, count):
    """32-bit numbers: the low half of every word first."""
    drawn = words(seed, purpose, -(-count // 2))
    return np.stack([drawn & np.uint64(2**32 - 1), drawn >> np.uint64(32)], axis=1).ravel()[:count]


def uniforms(seed, purpose, count):
    return (halves(seed, purpose, count) >> np.uint64(8)) / 2**24


def signs(seed, purpose, count):
    """16 numbers of 32 bits give 512 signs: the top bits of all 16, then the next ones."""
    lanes = halves(seed, purpose, 16 * -(-count // 512)).reshape(-1, 1, 16)
    bits = (lanes >> np.arange(31, -1, -1, dtype=np.uint64)[:, None]) & np.uint64(1)
    return np.where(bits, -1.0, 1.0).ravel()[:count]


def normals(seed, purpose, count):
    drawn = words(seed, purpose, -(-count // 2))
    radii = np.sqrt(-2 * np.log(((drawn & np.uint64(2**31 - 1)).astype(float) + 0.5) / 2**31))
    angles = (drawn.view(np.int64) >> 32) * np.pi / 2**31
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).ravel()[:count]


def subset(seed, purpose, size, kept):
    low = (1 << (size - 1).bit_length()) - 1
    keys = (words(seed, purpose, size) & np.uint64(2**64 - 1 - low)) | np.arange(size, dtype=np.uint64)
    return np.sort(np.argsort(keys.view(np.int64))[:kept])
