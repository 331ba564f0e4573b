"""Masks: the cipher that they claim, every value of the ring, and faults that a test of uniformity must catch."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import chisquare

from dpfed.aggregation.cryptography import MaskStream, SeededMask, apply_masks
from dpfed.compress.fixed_point import pack_row, packed_bytes, unpack_row, word_type
from dpfed.errors import WireError

FALSE_ALARM = 1e-9
BITS = pytest.mark.parametrize("bits", [1, 2, 3, 7, 8, 9, 16, 17, 24, 31, 32])


def stream(seed, size, word=np.uint32, start=0):
    words = np.empty(size, word)
    MaskStream(seed, words.dtype, start=start).fill_buffer(words)
    return words


def uniform(values, cells):
    return chisquare(np.bincount(values, minlength=cells)).pvalue > FALSE_ALARM


def test_the_vector_of_nist_sp_800_38a_f_5_5():
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    words = stream(key, 16, np.uint8, start=16 * counter)
    assert words.tobytes().hex() == "0bdf7df1591716335e9a8b15c860c502"


def test_the_stream_is_the_encrypted_counter():
    key = bytes(range(32))
    blocks = b"".join(block.to_bytes(16) for block in range(50))
    encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    for word in (np.uint8, np.uint16, np.uint32):
        assert stream(key, 800 // np.dtype(word).itemsize, word).tobytes() == encrypted


@pytest.mark.parametrize("word", [np.uint8, np.uint16, np.uint32])
def test_a_stream_can_be_entered_anywhere(word):
    whole = stream(bytes(32), 4096, word)
    for start in (16, 160, 4080):
        np.testing.assert_array_equal(stream(bytes(32), 4096 - start, word, start), whole[start:])


@BITS
def test_threads_and_chunks_do_not_show(bits):
    word, size = word_type(bits), 400_003
    seeds = [bytes([n]) * 32 for n in range(3)]
    rows = np.arange(2 * size, dtype=np.uint64).astype(word).reshape(2, size)
    wanted = rows.astype(np.int64)
    streams = [
        np.concatenate([stream(seed, min(1 << 16, size - at), word, at) for at in range(0, size, 1 << 16)])
        for seed in seeds
    ]
    wanted[0] += streams[0] + streams[1].astype(np.int64)
    wanted[1] -= streams[1] + streams[2].astype(np.int64)
    apply_masks(
        rows, [SeededMask(seeds[0], plus=0), SeededMask(seeds[1], plus=0, minus=1), SeededMask(seeds[2], minus=1)]
    )
    np.testing.assert_array_equal(rows, wanted % (1 << 8 * word.itemsize))


@pytest.mark.parametrize("bits", [1, 2, 3, 8, 10])
def test_every_value_of_the_ring_occurs_and_none_more_often(bits):
    values = stream(bytes(range(32)), 60_000, word_type(bits)) & ((1 << bits) - 1)
    assert set(values.tolist()) == set(range(1 << bits))
    assert uniform(values, 1 << bits)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_masks_without_the_largest_value_are_caught(bits):
    largest = (1 << bits) - 1
    values = np.random.default_rng(0).integers(0, largest, 60_000)
    assert not uniform(values, 1 << bits)


def test_seeds_that_agree_when_folded_to_32_bits_have_different_masks():
    one = bytes(range(32))
    other = one[4:8] + one[:4] + one[8:]  # the same xor of 32-bit words
    folded = [np.bitwise_xor.reduce(np.frombuffer(seed, np.uint32)) for seed in (one, other)]
    assert folded[0] == folded[1]
    assert (stream(one, 10_000) == stream(other, 10_000)).mean() < 1e-3
    assert uniform((stream(one, 60_000) - stream(other, 60_000)) & 255, 256)


@pytest.mark.parametrize(("seed", "start"), [(bytes(31), 0), (bytes(16), 0), (bytes(32), 3)])
def test_seeds_and_places_that_cannot_be(seed, start):
    refused(ValueError, "32 bytes", MaskStream, seed, np.dtype(np.uint32), start=start)


@settings(max_examples=100, deadline=None)
@given(bits=st.integers(1, 32), size=st.integers(1, 70), seed=st.integers(0, 1 << 30))
def test_packing_keeps_b_bits_and_nothing_else(bits, size, seed):
    words = np.random.default_rng(seed).integers(0, 1 << 32, size, dtype=np.uint64).astype(word_type(bits))
    content = pack_row(words, bits)
    assert len(content) == packed_bytes(size, bits) <= size * bits / 8 + 7
    kept = words & words.dtype.type((1 << bits) - 1)
    back = unpack_row(memoryview(content), size, bits)
    assert back.dtype == words.dtype
    np.testing.assert_array_equal(back, kept)
    assert pack_row(kept, bits) == content
    refused(WireError, "", lambda: unpack_row(memoryview(content + b"x"), size, bits))
