"""Simulated streams: no two names share one, every part of a name counts, and their law is the one that is claimed."""

import numpy as np
import pytest
import torch
from scipy import stats

from dpfed.randomness import SHARE, Simulated
from dpfed.seeds import _BLOCK, CudaStream, HostStream, Seeds, _fill_with_pairs

ALPHA = 1e-6
"""Chance that a test of statistics fails at a random seed; these seeds are fixed, so it passes or fails for ever."""

SOURCE = Simulated(seeds=Seeds(root=0))


def coins(seeds, count, purpose, *path):
    row = torch.empty(count)
    seeds.tensors(purpose, *path).fill_uniform(row)
    return row


DRAWS = {
    "normal": lambda seeds, *name: Simulated(seeds=seeds).normal(4, *name).numpy(),
    "coins": lambda seeds, *name: coins(seeds, 6, *name).numpy(),
    "uniform": lambda seeds, *name: Simulated(seeds=seeds).uniform(2, *name),
    "bits": lambda seeds, *name: Simulated(seeds=seeds).bits(2, *name),
    "subset": lambda seeds, *name: Simulated(seeds=seeds).subset(8, 1 << 30, *name),
    "integer": lambda seeds, *name: np.array([seeds.integer(*name)]),
}
"""A hundred bits or so of a stream, 63 of an integer."""


def test_the_noise_of_two_rounds_and_clients_that_once_was_one():
    """Their 63-bit seeds agree in the 32 bits that torch's generator on the CPU keeps."""
    seeds = Seeds(root=0)
    one, two = (seeds.integer("noise.share", *path) for path in ((521, 26), (1159, 15)))
    assert (one - two) % (1 << 32) == 0
    noise = [SOURCE.normal(1000, "noise.share", *path) for path in ((521, 26), (1159, 15))]
    assert not torch.any(noise[0] == noise[1])


def repeats(draw, rounds=1200, clients=128):
    """How many of the streams of so many rounds and clients begin as another does."""
    drawn = {draw(Seeds(root=0), "noise.share", r, c).tobytes() for r in range(rounds) for c in range(clients)}
    return rounds * clients - len(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "integer"])
def test_more_than_2_to_the_17_streams_are_all_different(kind):
    """153,600 streams, among them the two above. Chance to fail at a random root: 2^-30 where 63 bits are kept; to miss
    that 32 are, e^-2.7 at a random root, 0 at this one."""
    assert repeats(DRAWS[kind]) == 0


@pytest.mark.slow
def test_streams_of_32_bits_are_found():
    """The planted fault: as torch's generator on the CPU takes seeds."""
    assert repeats(lambda seeds, *name: np.array([seeds.integer(*name) % (1 << 32)])) > 0


def test_every_bit_of_a_key_changes_the_stream():
    rows = [HostStream("cpu", key=(1 << 127) - 1 ^ (1 << bit)).normal(4).numpy().tobytes() for bit in range(128)]
    assert len(set(rows)) == 128


def test_a_key_for_cuda_is_the_whole_seed():
    """Of 64 bits, which is the key of its Philox; here read back from the generator, as there is no GPU needed."""
    for key in (0, 1, 1 << 63, (1 << 64) - 1):
        assert CudaStream("cpu", key=key)._generator.initial_seed() % (1 << 64) == key


def changed_names(purpose="noise.share", path=(521, 26, 3)):
    """Names that differ from (purpose, *path) in one part: another purpose, each integer, one less, one more, order."""
    yield purpose + ".rest", path
    for place in range(len(path)):
        yield purpose, (*path[:place], path[place] + 1, *path[place + 1 :])
        yield purpose, path[:place] + path[place + 1 :]
    yield purpose, (*path, 0)
    yield purpose, path[::-1]


def same_as_another(draw):
    """Names of `changed_names` whose stream is the first one's, and "root" if another root has it."""
    name = ("noise.share", 521, 26, 3)
    first = draw(Seeds(root=0), *name)
    found = [path for purpose, path in changed_names() if np.array_equal(draw(Seeds(root=0), purpose, *path), first)]
    return found + (["root"] if np.array_equal(draw(Seeds(root=1), *name), first) else [])


@pytest.mark.parametrize("kind", DRAWS)
def test_every_part_of_a_name_counts(kind):
    assert same_as_another(DRAWS[kind]) == []


def test_a_stream_repeats_and_goes_on():
    one, two = (Seeds(root=3).tensors("x", 1) for _ in range(2))
    assert torch.equal(one.normal(100), two.normal(100))
    assert not torch.any(one.normal(100) == Seeds(root=3).tensors("x", 1).normal(100))


@pytest.mark.parametrize("counts", [(1,), (_BLOCK,), (_BLOCK - 1, 3), (2 * _BLOCK + 5, _BLOCK), (0, 7)])
def test_normals_in_blocks_are_those_of_one_call(counts):
    blocks, whole = HostStream("cpu", key=1 << 77), np.random.Generator(np.random.Philox(key=1 << 77))
    for count in counts:
        assert np.array_equal(blocks.normal(count).numpy(), whole.standard_normal(count).astype(np.float32))


def drawn_in_pairs(words):
    """Normals of these words in float32, those of float64, and the radii."""
    block = np.empty(2 * len(words), dtype=np.float32)
    _fill_with_pairs(block, words)
    uniforms = ((words & np.uint64((1 << 40) - 1)).astype(np.float64) + 0.5) * 2.0**-40
    radii, angles = np.sqrt(-2 * np.log(uniforms)), (words >> np.uint64(40)) * (2 * np.pi / 2**24)
    return block, np.concatenate([radii * np.cos(angles), radii * np.sin(angles)]), np.tile(radii, 2)


def test_pairs_are_within_their_error_of_the_exact_transform():
    generator = np.random.Generator(np.random.Philox(key=6))
    of_all = generator.bit_generator.random_raw(1 << 19)
    near_0 = ~(generator.bit_generator.random_raw(1 << 16) & ~np.uint64((1 << 40) - (1 << 26)))
    for words in (of_all, near_0, np.array([0, 1 << 40, (1 << 64) - 1], dtype=np.uint64)):
        found, exact, radii = drawn_in_pairs(words)
        allowed = np.minimum(3e-4, np.maximum(3e-6, 3e-5 / np.maximum(radii, 1e-9) * (radii < 1)))
        assert np.all(np.abs(found - exact) < allowed)
    assert np.abs(drawn_in_pairs(np.array([0], dtype=np.uint64))[0]).max() == pytest.approx(np.sqrt(82 * np.log(2)))


def p_value_of_pairs(draws):
    """Least p-value, times their number: mean, variance, distribution, pairs' correlation, tails at four edges."""
    half = len(draws) // 2
    one, other = draws[:half], draws[half : 2 * half]
    bins = np.histogram(draws, stats.norm.ppf(np.linspace(0, 1, 1001)))[0]
    found = [
        2 * stats.norm.sf(abs(draws.mean()) * len(draws) ** 0.5),
        2 * min(stats.chi2.cdf((draws**2).sum(), len(draws)), stats.chi2.sf((draws**2).sum(), len(draws))),
        stats.chisquare(bins).pvalue,
        2 * stats.norm.sf(abs((one * other).mean()) * half**0.5),
        2 * stats.norm.sf(abs(((one**2 - 1) * (other**2 - 1)).mean()) / 2 * half**0.5),
        *(tail_p_value(draws, edge) for edge in (2.0, 3.0, 4.0, 5.0)),
    ]
    return len(found) * min(found)


@pytest.mark.parametrize(("streams", "wider"), [(64, 1.006), pytest.param(256, 1.003, marks=pytest.mark.slow)])
def test_pairs_are_independent_normals(streams, wider):
    """1 or 4 million; a true generator fails at a random seed with probability 1e-6."""
    draws = [Seeds(root=4).tensors(SHARE, client).normal_in_pairs(_BLOCK).numpy() for client in range(streams)]
    both = np.concatenate([each.reshape(2, -1) for each in draws], axis=1).ravel().astype(np.float64)
    assert p_value_of_pairs(both) > ALPHA
    for fault in (both * wider, np.clip(both, -4.0, 4.0), np.tile(both[: len(both) // 2], 2), both.round(2)):
        assert p_value_of_pairs(fault) < ALPHA


@pytest.mark.parametrize("count", [0, 1, 2, 7, _BLOCK, _BLOCK + 1])
def test_any_number_of_pairs_is_drawn(count):
    stream = Seeds(root=4).tensors(SHARE, 0)
    one, two = stream.normal_in_pairs(count), stream.normal_in_pairs(count)
    assert one.shape == two.shape == (count,)
    assert not torch.any(one == two)
    assert torch.equal(one, Simulated(seeds=Seeds(root=4)).normal(count, SHARE, 0))


@pytest.mark.parametrize("ignored", [slice(0, 1), slice(1, 2), slice(2, 3), slice(None, None)])
@pytest.mark.parametrize("kind", DRAWS)
def test_a_stream_that_ignores_part_of_its_path_is_found(monkeypatch, kind, ignored):
    """The planted faults: the round, the client, the step, or all of them are left out of the key."""
    whole = Seeds._key_bits

    def short(self, count, of, purpose, path):
        kept = list(path)
        kept[ignored] = [0 for _ in kept[ignored]]
        return whole(self, count, of, purpose, tuple(kept))

    monkeypatch.setattr(Seeds, "_key_bits", short)
    assert same_as_another(DRAWS[kind]) != []


def tail_p_value(draws, edge):
    """Two-sided, of how many of `draws` lie beyond +-edge, by the binomial law."""
    beyond = int((np.abs(draws) > edge).sum())
    return stats.binomtest(beyond, len(draws), 2 * stats.norm.sf(edge)).pvalue


EDGES = (2.0, 3.0, 3.5, 4.0, 4.5)


def test_tails_of_normals_are_as_long_as_they_should_be():
    """4 million draws: 27 are expected beyond 4.5, and at 4.5 a clamp leaves none: chance e^-27."""
    draws = SOURCE.normal(4_000_000, "noise.sum", 0).numpy()
    assert all(tail_p_value(draws, edge) > ALPHA / len(EDGES) for edge in EDGES)
    clamped = draws.clip(-4.5, 4.5)
    assert min(tail_p_value(clamped, edge) for edge in EDGES) < ALPHA / len(EDGES)


def first_numbers(draw, rounds=64, clients=128):
    return np.array([draw(r, c) for r in range(rounds) for c in range(clients)]).reshape(rounds, clients, -1)


def neighbours_p_value(firsts):
    """The least p-value over: one normal law in all, and no correlation between rounds, clients or diagonals next to
    each other, at the same place or one to either side; Bonferroni."""
    x = (firsts - firsts.mean()) / firsts.std()
    shifts = [(dr, dc, dn) for dr in (0, 1) for dc in (-1, 0, 1) for dn in (-1, 0, 1) if (dr, dc) > (0, 0)]
    found = [stats.kstest(firsts.ravel(), "norm").pvalue]
    for dr, dc, dn in shifts:
        moved = np.roll(x, (-dr, -dc, -dn), axis=(0, 1, 2))
        found.append(2 * stats.norm.sf(abs((x * moved).sum()) / np.sqrt(x.size)))
    return min(found) * len(found)


def test_streams_next_to_each_other_are_independent():
    firsts = first_numbers(lambda r, c: SOURCE.normal(4, "noise.share", r, c).numpy())
    assert neighbours_p_value(firsts) > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["offset by one", "a tenth is shared", "a tenth short", "sum of the path"])
def test_streams_that_are_not_are_found(fault):
    """Planted: a client's stream is its neighbour's one place on; a tenth of the variance is a round's, the same for
    all; the law is too narrow; client and round are added."""
    line = SOURCE.normal(1000, "planted", 0).numpy()

    def draw(r, c):
        own = SOURCE.normal(4, "noise.share", r, c).numpy()
        if fault == "offset by one":
            return SOURCE.normal(140, "noise.share", r).numpy()[c : c + 4]
        if fault == "a tenth is shared":
            return np.sqrt(0.9) * own + np.sqrt(0.1) * line[r]
        if fault == "a tenth short":
            return 0.9 * own
        return SOURCE.normal(4, "noise.share", r + c).numpy()

    assert neighbours_p_value(first_numbers(draw)) < ALPHA


def test_names_are_written_so_that_no_two_are_one():
    """("a", 1, 23) is not ("a", 12, 3), nor ("a1", 23)."""
    names = [("a", (1, 23)), ("a", (12, 3)), ("a1", (23,)), ('a", 1', (23,)), ("a", ())]
    assert len({Seeds(root=0)._key_bits(128, "tensors", purpose, path) for purpose, path in names}) == len(names)
