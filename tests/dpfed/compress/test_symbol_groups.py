"""Symbols coded several at once: digits by schoolbook arithmetic, weights by fractions, and what is refused."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from refusals import refused

from dpfed.compress.fields import Reader, SymbolField
from dpfed.compress.symbols import SymbolGroups, group_weights
from dpfed.errors import WireError

pytestmark = pytest.mark.slow_but_one_in(3)


def groups_of(low, span, alphabet=300):
    counts = np.zeros(alphabet, dtype=np.int64)
    counts[[low, low + span - 1]] = 1
    return SymbolGroups.of(counts)


@pytest.mark.parametrize(
    ("span", "together"), [(2, 8), (3, 8), (4, 4), (9, 4), (10, 2), (33, 2), (81, 2), (82, 1), (300, 1)]
)
def test_how_many_are_coded_at_once(span, together):
    groups = groups_of(0, span)
    assert (groups.span, groups.per_number) == (span, together)
    assert span**together <= 6561 or together == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("low", "span"), [(0, 2), (1, 2), (0, 3), (5, 7), (13, 9), (0, 33), (170, 81), (100, 150)])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1001])
def test_numbers_have_the_symbols_as_digits(low, span, count, dtype):
    groups = groups_of(low, span)
    symbols = np.random.default_rng(count).integers(low, low + span, count).astype(dtype)
    fill = low + span - 1
    numbers = groups.join_symbols(symbols, fill=fill)
    padded = symbols.tolist() + [fill] * (-count % groups.per_number)
    expected = [
        sum((symbol - low) * span**place for place, symbol in enumerate(padded[first : first + groups.per_number]))
        for first in range(0, len(padded), groups.per_number)
    ]
    assert numbers.tolist() == expected
    np.testing.assert_array_equal(groups.split_numbers(np.array(expected, dtype=np.uint16), count, fill=fill), symbols)


def test_symbols_that_fill_up_are_checked():
    groups = groups_of(0, 4)
    numbers = groups.join_symbols(np.array([1, 2, 3, 0, 1], dtype=np.uint8), fill=2)
    assert numbers.tolist() == [1 + 2 * 4 + 3 * 16, 1 + 2 * 4 + 2 * 16 + 2 * 64]
    refused(WireError, "padding", groups.split_numbers, np.array([57, numbers[1] - 64], dtype=np.uint16), 5, fill=2)


@pytest.mark.parametrize("counts", [[5], [0, 0, 9], [1, 0, 0, 1], [0, 1]])
def test_one_symbol_alone_has_a_neighbour(counts):
    """A model has two symbols at least, and none beyond the alphabet."""
    counts = np.array([*counts, 0])
    groups = SymbolGroups.of(counts)
    assert groups.span >= 2
    assert groups.low >= 0
    assert groups.low + groups.span <= len(counts)
    assert counts[groups.symbol_range].sum() == counts.sum()


@pytest.mark.parametrize("counts", [[1, 1], [3, 100_000, 17], [1 << 24, 1, 0, 5], [7, 0, 0, 0, 0, 1, 9]])
def test_weights_are_products_of_shares(counts):
    """Rounded down from the exact fractions; a share and three products are off by 2^-50 of themselves at most."""
    together = SymbolGroups.of(np.array(counts)).per_number
    weights = group_weights(np.array(counts), together)
    assert weights.sum() < 1 << 53
    total = sum(counts)
    for weight, digits in zip(weights, product(counts, repeat=together), strict=True):
        exact = Fraction(1 << 40)
        for count in digits:
            exact *= Fraction(count, total)
        assert weight == int(weight) >= 1
        assert int(exact * (1 - Fraction(1, 1 << 49))) <= weight <= max(1, exact * (1 + Fraction(1, 1 << 49)))


def test_a_far_symbol_costs_one_at_a_time_but_is_read_back():
    """One outlier among 33 makes groups of two; among 300 none."""
    for alphabet, together in ((33, 2), (300, 1)):
        symbols = np.full(50_001, 2).astype(SymbolField(alphabet=alphabet, count=1).dtype)
        symbols[::3], symbols[777] = 1, alphabet - 1
        field = SymbolField(alphabet=alphabet, count=len(symbols))
        block = field.write(symbols)
        assert SymbolGroups.of(np.bincount(symbols, minlength=alphabet)).per_number == together
        assert block.coded
        np.testing.assert_array_equal(field.read(Reader(content=block.content)), symbols)
