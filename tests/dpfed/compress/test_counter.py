"""The counter-based generator: against numpy's uint64, position by position, and statistically.

Every sample is seeded, so a test either always passes or never; the stated rates are those of a fresh seed.
"""

import numpy as np
import pytest
import torch
from reference import counter_stream
from refusals import refused
from scipy import stats

from dpfed.compress import counter
from dpfed.errors import ConfigError

SEEDS = torch.tensor([0, 7, -1, 2**63 - 1])
KINDS = [counter.bits, counter.uniform, counter.rademacher, counter.normal]
by_kind = pytest.mark.parametrize("draw", KINDS, ids=lambda draw: draw.__name__)


def test_published_vectors_of_splitmix64():
    """The first outputs of SplitMix64 from state 1234567, as its users print them."""
    states = torch.tensor([1234567]) + torch.arange(1, 6) * counter._GOLDEN
    assert [word % 2**64 for word in counter._mixed(states).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_streams_against_numpy():
    for row, seed in enumerate(SEEDS.tolist()):
        one = SEEDS[row : row + 1]
        words = counter.bits(one, "p", 1000)[0].numpy().view(np.uint64)
        np.testing.assert_array_equal(words, counter_stream.words(seed, "p", 1000))
        np.testing.assert_array_equal(counter.uniform(one, "p", 999)[0], counter_stream.uniforms(seed, "p", 999))
        np.testing.assert_array_equal(counter.rademacher(one, "p", 1500)[0], counter_stream.signs(seed, "p", 1500))
        np.testing.assert_array_equal(
            counter.random_subset(one, "p", 999, 99)[0], counter_stream.subset(seed, "p", 999, 99)
        )
        normals = counter.normal(one, "p", 999)[0].numpy()
        np.testing.assert_allclose(normals, counter_stream.normals(seed, "p", 999), rtol=0, atol=3e-6)


@by_kind
def test_a_number_depends_on_its_position_only(draw, monkeypatch):
    """Any start, any count, any chunks, any companions: the same numbers, bit for bit."""
    whole = draw(SEEDS, "p", 5000)
    assert draw(SEEDS, "p", 301).equal(whole[:, :301])
    for start, count in [(0, 1), (1, 0), (17, 2048), (511, 2), (2047, 2), (2048, 2048), (4999, 1)]:
        assert draw(SEEDS, "p", count, start=start).equal(whole[:, start : start + count])
    assert draw(SEEDS[2:3], "p", 5000).equal(whole[2:3])
    assert draw(SEEDS.flip(0), "p", 5000).equal(whole.flip(0))
    monkeypatch.setattr(counter, "_CHUNK_WORDS", 96)
    assert draw(SEEDS, "p", 5000).equal(whole)


@pytest.mark.parametrize(("start", "count"), [(0, 5000), (0, 1), (17, 2048), (511, 2), (512, 512), (4999, 1)])
def test_flipped_sign_bits_are_products(start, count, monkeypatch):
    """Bit for bit, zeros and infinities among them; what was given stays as it is."""
    values = torch.randn(4, count, generator=torch.Generator().manual_seed(start))
    values[1, 0], values[2, 0], values[3, 0] = 0.0, -0.0, float("inf")
    before = values.clone()
    expected = (values * counter.rademacher(SEEDS, "p", count, start=start)).view(torch.int32)
    assert counter.multiply_by_signs(values, SEEDS, "p", start=start).view(torch.int32).equal(expected)
    monkeypatch.setattr(counter, "_CHUNK_WORDS", 96)
    assert counter.multiply_by_signs(values, SEEDS, "p", start=start).view(torch.int32).equal(expected)
    assert values.equal(before)


@by_kind
def test_more_rows_than_a_chunk(draw):
    seeds = torch.arange(40_000)
    assert draw(seeds, "p", 3)[[0, 20_000, 39_999]].equal(draw(seeds[[0, 20_000, 39_999]], "p", 3))


def test_streams_of_other_seeds_and_purposes_are_uncorrelated():
    """200 streams, n = 10 000: all 19 900 correlations below 5.6 / √n (rate 4e-4)."""
    drawn = torch.cat([counter.uniform(torch.arange(100), purpose, 10_000) for purpose in ("mask", "mask.1")])
    correlations = np.corrcoef(drawn.numpy())
    np.fill_diagonal(correlations, 0)
    assert np.abs(correlations).max() < 5.6 / 100


def test_uniforms_are_uniform():
    """Chi-square in 256 cells of the value, and in 16 x 16 cells of neighbours; each 1e-4."""
    drawn = counter.uniform(torch.arange(20), "p", 50_000).double().numpy()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    cells = np.bincount((drawn * 256).astype(int).ravel(), minlength=256)
    pairs = (drawn * 16).astype(int).reshape(20, -1, 2)
    pair_cells = np.bincount((pairs[..., 0] * 16 + pairs[..., 1]).ravel(), minlength=256)
    for counts in (cells, pair_cells):
        assert stats.chisquare(counts).pvalue > 1e-4


def test_signs_and_normals_have_their_laws():
    """Signs: products at every lag fair to 5 deviations. Normals: Kolmogorov-Smirnov 1e-4, far tail present."""
    signs = counter.rademacher(torch.arange(4), "p", 100_000)
    for lag in (0, 1, 2, 16, 32, 64, 512):
        products = signs if lag == 0 else signs[:, lag:] * signs[:, :-lag]
        assert abs(float(products.mean())) < 5 / np.sqrt(products.numel())
    normals = counter.normal(torch.arange(4), "p", 250_000).double().numpy()
    assert stats.kstest(normals.ravel(), "norm").pvalue > 1e-4
    assert 4.5 < np.abs(normals).max() < 6.7
    assert abs(np.mean(normals[:, 0::2] * normals[:, 1::2])) < 5 / np.sqrt(normals.size / 2)


def test_the_smallest_and_the_largest_word_give_finite_normals():
    words = torch.tensor([[0, -1, 2**63 - 1, -(2**63), 2**31 - 1, -(2**31)]])
    drawn = counter._normals_of(words)
    assert bool(torch.isfinite(drawn).all())
    assert float(drawn.abs().max()) < 6.7


def test_coins_meet_their_probabilities():
    """p in {0, .1, .5, 1}: exact at the ends, within 5 standard deviations between; repeatable from any start."""
    probabilities = torch.tensor([-1.0, 0.0, 0.1, 0.5, 1.0, 2.0])[:, None].expand(6, 100_000)
    drawn = counter.coins(probabilities, torch.arange(6), "p")
    shares = drawn.double().mean(dim=1).tolist()
    assert shares[0] == shares[1] == 0
    assert shares[4] == shares[5] == 1
    assert abs(shares[2] - 0.1) < 5 * np.sqrt(0.09 / 100_000)
    assert abs(shares[3] - 0.5) < 5 * 0.5 / np.sqrt(100_000)
    assert counter.coins(probabilities[:, 77:], torch.arange(6), "p", start=77).equal(drawn[:, 77:])


@pytest.mark.parametrize(("size", "kept"), [(1, 0), (1, 1), (9, 9), (1 << 17, 5)])
def test_subset_sizes(size, kept):
    drawn = counter.random_subset(SEEDS, "p", size, kept)
    assert drawn.shape == (4, kept)
    assert all(len(set(row)) == kept and all(0 <= at < size for at in row) for row in drawn.tolist())


@pytest.mark.parametrize("kept", [1, 99, 500, 998, 999])
def test_a_subset_is_the_same_in_any_pieces(kept, monkeypatch):
    """By an independent stream, whose keys are all sorted; the words in pieces of 96, of 1,000 and all together."""
    for chunk in (96, 1000, 1 << 15):
        monkeypatch.setattr(counter, "_CHUNK_WORDS", chunk)
        for seed in (0, 5, 2**63):
            one = counter.client_seeds([seed], 1)
            drawn = counter.random_subset(one, "p", 999, kept)[0]
            np.testing.assert_array_equal(drawn, counter_stream.subset(seed, "p", 999, kept))


@pytest.mark.parametrize("shift", [0, 1, 12, 40, 63])
def test_the_smallest_are_found_where_nobody_expects_them(shift):
    """Words that are not uniform but ever smaller: from a shift of one on, the window of the expected misses them."""
    size, low = 1000, 1023
    words = np.random.default_rng(shift).integers(-(2**63), 2**63 - 1, size, dtype=np.int64) >> shift
    by_key = sorted(range(size), key=lambda place: (int(words[place]) >> 10, place))
    for kept in (1, 2, 300, 999, 1000):
        pieces = [(0, words[:400]), (400, words[400:401]), (401, words[401:])]
        found = counter._smallest_places(lambda pieces=pieces: iter(pieces), size, kept, low)
        assert found.tolist() == sorted(by_key[:kept])


def test_a_window_that_misses_says_so():
    words = np.arange(-50, 50, dtype=np.int64) << 40
    for kept, least, most, right in [(10, -(60 << 40), 0, True), (10, 0, 60 << 40, False), (60, -(60 << 40), 0, False)]:
        found = counter._smallest_between([(0, words)], 100, kept, 127, least, most)
        assert (found is not None) == right
        assert found is None or found.tolist() == list(range(kept))


def test_client_seeds():
    one = counter.client_seeds(7, 5)
    assert one.equal(counter.client_seeds(7, 9)[:5])
    assert len(set(one.tolist())) == 5
    assert not one.equal(counter.client_seeds(8, 5))
    assert counter.client_seeds([0, -1, 2**64 - 1], 3).tolist() == [0, -1, -1]


@pytest.mark.parametrize(
    ("seed", "message"),
    [(2**64, "64 bits"), ("7", "integer"), (None, "integer"), ([1, 2], "2 integers for 3"), ([1, 2, 0.5], "0.5")],
)
def test_other_seeds_are_refused(seed, message):
    refused(ConfigError, message, counter.client_seeds, seed, 3)


def test_other_ranges_are_refused():
    refused(ConfigError, "negative", counter.bits, SEEDS, "p", 3, start=-1)
    refused(ConfigError, "6 of 5", counter.random_subset, SEEDS, "p", 5, 6)
