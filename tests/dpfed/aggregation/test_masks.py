"""Masks: the cipher that they claim, every value of the ring, faults of uniformity; and no mask is ever used twice."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import chisquare

from dpfed.aggregation import client, cryptography, messages, protocol
from dpfed.aggregation.cryptography import MaskStream, SeededMask, apply_masks
from dpfed.aggregation.ranks import Task
from dpfed.aggregation.sums import SecureSums
from dpfed.compress.fixed_point import pack_row, packed_bytes, unpack_row, word_type
from dpfed.errors import WireError
from dpfed.seeds import Seeds
from dpfed.server.rules import ServerState

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


SEEDS = Seeds(root=0)
CLIENTS, ROUNDS, SIZE = 6, 3, 100
PAIRS = CLIENTS * (CLIENTS - 1) // 2
KINDS = pytest.mark.parametrize("kind", ["masked", "protocol"])


@pytest.fixture
def seen(monkeypatch):
    """`seen(kind)`: for every round the seeds that were expanded, and the rows of zeros as they were after masking."""

    def rounds(kind):
        seeds, rows = [], []

        class Watched(cryptography.MaskStream):
            def __init__(self, seed, *arguments, **more):
                seeds[-1].append(seed)
                super().__init__(seed, *arguments, **more)

        def apply(words, given):
            cryptography.apply_masks(words, given)
            rows[-1].extend(row.tobytes() for row in words)

        sums = SecureSums(kind=kind, bits=16, neighbours=None, threshold=0.6, tolerance=None, seeds=SEEDS)
        with monkeypatch.context() as patch:
            patch.setattr(cryptography, "MaskStream", Watched)
            patch.setattr(client, "apply_masks", apply)
            patch.setattr(protocol, "apply_masks", apply)
            for number in range(ROUNDS):
                seeds.append([])
                rows.append([])
                who = np.arange(CLIENTS)
                state = ServerState(round=number, broadcast=torch.zeros(SIZE), clip_norm=1.0)
                one = sums.open(Task(state=state, cohort=who, participants=who), size=SIZE, dtype=torch.int64)
                one.add(who, torch.zeros(CLIENTS, SIZE, dtype=torch.int64))
                assert not bool(one.close().total.any())
                del rows[-1][CLIENTS:]  # the sum, from which masks come off again
        return seeds, rows

    return rounds


def reused(seeds, rows):
    """Faults: seeds of one round that are another's too, fewer seeds than clients and pairs, rows that agree."""
    found = []
    used = Counter(seed for of_round in seeds for seed in set(of_round))
    if any(count > 1 for count in used.values()):
        found.append("a seed in two rounds")
    if any(len(set(of_round)) != CLIENTS + PAIRS for of_round in seeds):
        found.append("a seed for two clients or pairs")
    everything = [row for of_round in rows for row in of_round]
    if len(everything) != ROUNDS * CLIENTS or len(set(everything)) < len(everything):
        found.append("two masks are one")
    words = np.array([np.frombuffer(row, dtype=np.uint16) for row in everything])
    alike = max(float((words[i] == words[j]).mean()) for i in range(len(words)) for j in range(i))
    if alike > 0.1:  # words of 16 bits agree by chance with 2^-16: ten of a hundred with 10^-34
        found.append("words agree")
    return found


@KINDS
def test_every_round_and_client_has_masks_of_its_own(seen, kind):
    assert reused(*seen(kind)) == []


def fixed_bytes(size=32):
    return b"\x07" * size


class FixedKey:
    """X25519 keys that are the same in every round, in the order of the clients."""

    def __init__(self):
        self._made = 0

    def generate(self):
        self._made += 1
        return X25519PrivateKey.from_private_bytes(bytes([self._made % (2 * CLIENTS)]) * 32)

    from_private_bytes = staticmethod(X25519PrivateKey.from_private_bytes)


def test_one_secret_for_all_rounds_is_found(seen, monkeypatch):
    """The planted fault of `masked`."""
    monkeypatch.setattr(protocol, "secrets", SimpleNamespace(token_bytes=fixed_bytes))
    assert "a seed in two rounds" in reused(*seen("masked"))


def test_pairs_whose_secret_forgets_who_they_are_are_found(seen, monkeypatch):
    monkeypatch.setattr(protocol, "pack_ids", lambda one, two: bytes(16))
    assert "a seed for two clients or pairs" in reused(*seen("masked"))


def test_one_mask_of_its_own_for_all_rounds_is_found(seen, monkeypatch):
    """The planted fault of `protocol`: a client's own seed, which pairs' fresh keys would hide from a look at rows."""
    monkeypatch.setattr(client, "secrets", SimpleNamespace(token_bytes=fixed_bytes))
    assert "a seed in two rounds" in reused(*seen("protocol"))


def test_old_keys_under_an_old_session_are_found(seen, monkeypatch):
    """One without the other changes the pairs' seeds all the same; own seeds are new in both cases."""
    monkeypatch.setattr(client, "X25519PrivateKey", FixedKey())
    assert reused(*seen("protocol")) == []
    monkeypatch.setattr(client, "X25519PrivateKey", FixedKey())
    plain = messages.Agreement.__init__

    def fixed(self, **terms):
        plain(self, **{**terms, "session": fixed_bytes(16)})

    monkeypatch.setattr(messages.Agreement, "__init__", fixed)
    assert "a seed in two rounds" in reused(*seen("protocol"))
