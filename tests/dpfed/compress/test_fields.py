"""Fields: what is written is read back; sizes as promised; anything else is a WireError."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dpfed.compress.fields import Floats, Indices, Reader, SymbolField
from dpfed.compress.symbols import entropy_bits, pack_bits
from dpfed.errors import ConfigError, WireError

ALPHABETS = [2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 200, 256, 257, 1000]


def read_back(field, values):
    block = field.write(values)
    reader = Reader(content=block.content + b"rest")
    found = field.read(reader)
    assert reader.content[reader.at :] == b"rest"
    assert found.dtype == field.dtype
    np.testing.assert_array_equal(found, values)
    return block


def symbols(seed, alphabet, count, skew):
    draws = np.random.default_rng(seed).random(count) ** skew
    return np.minimum(draws * alphabet, alphabet - 1).astype(SymbolField(alphabet=alphabet, count=count).dtype)


@given(st.sampled_from(ALPHABETS), st.integers(0, 700), st.floats(0.1, 9), st.integers(0, 9))
def test_symbols(alphabet, count, skew, seed):
    read_back(SymbolField(alphabet=alphabet, count=count), symbols(seed, alphabet, count, skew))


@pytest.mark.parametrize("alphabet", [2, 3, 5, 33, 257])
@pytest.mark.parametrize("skew", [1, 8, 50])
def test_coded_symbols_cost_their_entropy(alphabet, skew):
    values = symbols(1, alphabet, 100_001, skew)
    block = read_back(SymbolField(alphabet=alphabet, count=len(values)), values)
    table = 5 + 3 * (alphabet - 1)
    wanted = entropy_bits(np.bincount(values, minlength=alphabet)) / 8 + table
    assert block.coded or alphabet in (2, 257)
    assert len(block.content) <= wanted * 1.001 + 9


@pytest.mark.parametrize(
    ("alphabet", "per_byte"), [(2, 8), (3, 5), (4, 4), (8, 8 / 3), (16, 2), (32, 8 / 5), (256, 1), (512, 8 / 9)]
)
def test_flat_symbols_are_packed(alphabet, per_byte):
    values = np.random.default_rng(0).permutation(np.arange(7 * 512) % alphabet)
    block = SymbolField(alphabet=alphabet, count=len(values)).write(values)
    assert not block.coded
    assert len(block.content) == 1 + math.ceil(len(values) / per_byte)


def test_constant_symbols_cost_nothing():
    block = read_back(SymbolField(alphabet=3, count=100_000), np.full(100_000, 2, dtype=np.uint8))
    assert block.coded
    assert len(block.content) <= 1 + 2 * 3 + 4 + 4


@given(st.data())
def test_indices(data):
    size = data.draw(st.integers(1, 3000))
    count = data.draw(st.integers(0, size))
    values = np.sort(np.random.default_rng(count).choice(size, count, replace=False))
    read_back(Indices(size=size, count=count), values)


def test_a_bitmap_costs_the_entropy_of_one_percent():
    values = np.sort(np.random.default_rng(3).choice(1 << 16, 655, replace=False))
    block = read_back(Indices(size=1 << 16, count=655), values)
    assert block.coded
    assert 8 * len(block.content) / 655 == pytest.approx(8.08, abs=0.15)


@pytest.mark.parametrize("half", [False, True])
def test_floats(half):
    field = Floats(count=5, half=half)
    block = read_back(field, np.array([0, -0.0, 1.5, -6e4, 6e-5], dtype=field.dtype))
    assert len(block.content) == 5 * (2 if half else 4)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2e31, -2e31])
def test_floats_must_be_finite_and_stay_so(wrong):
    content = np.array([1, wrong], dtype="<f4").tobytes()
    refused(WireError, "NaN or a value beyond", lambda: Floats(count=2).read(Reader(content=content)))


def coded_trits(counts, words):
    table = b"".join(count.to_bytes(1, "little") for count in counts)
    return bytes([1]) + table + len(words).to_bytes(4, "little") + np.array(words, dtype="<u4").tobytes()


FORGED = {
    "unknown mark": bytes([7]),
    "empty": b"",
    "no such trits": bytes([0, 243, 0]),
    "fill that is not fill": bytes([0, 0, 242]),
    "counts above the total": coded_trits([200, 200], []),
    "counts that do not fit": coded_trits([3, 3], [12345, 678]),
    "a zero word": coded_trits([3, 3], [5, 0]),
    "too many words": coded_trits([3, 3], [5] * 40),
    "words that are not there": coded_trits([3, 3], [5])[:-1],
    "a huge number of words": bytes([1, 3, 3, 255, 255, 255, 255]),
}


NEGATIVE = np.array([-1], dtype="<f4").tobytes()
TWENTY_OF_40 = bytes([1]) + SymbolField(alphabet=2, count=40).write(np.arange(40) % 2).content
OTHER = {
    "a negative scale": (Floats(count=1, signed=False), NEGATIVE, "negative"),
    "symbols above the alphabet": (SymbolField(alphabet=33, count=4), bytes([0, 0xFF, 0xFF, 0xFF]), "above 32"),
    "a bitmap of another number": (Indices(size=40, count=19), TWENTY_OF_40, "has 20"),
    **{
        f"indices {values}": (Indices(size=7, count=2), bytes([0]) + pack_bits(np.array(values), 3), "distinct, sorted")
        for values in ([3, 3], [4, 2], [1, 7])
    },
    **{f"symbols: {name}": (SymbolField(alphabet=3, count=6), content, "") for name, content in FORGED.items()},
}


@pytest.mark.parametrize(("field", "content", "words"), OTHER.values(), ids=OTHER)
def test_forged_content_is_refused(field, content, words):
    refused(WireError, words, field.read, Reader(content=content))


@pytest.mark.parametrize("alphabet", [1, 65_537])
def test_an_alphabet_that_the_bytes_do_not_hold_is_refused(alphabet):
    """Symbols from 65,536 on were sent modulo 65,536, and coded bytes of one symbol ended in a ValueError."""
    refused(ConfigError, "must be from 2 to 65536", SymbolField, alphabet=alphabet, count=3)


@given(st.binary(max_size=60), st.sampled_from(ALPHABETS), st.integers(0, 40))
def test_random_content(content, alphabet, count):
    for field in (SymbolField(alphabet=alphabet, count=count), Indices(size=alphabet, count=min(count, alphabet))):
        for front in (b"", b"\0", b"\1"):
            try:
                values = field.read(Reader(content=front + content))
            except WireError:
                continue
            assert len(values) == field.count
