"""Integer noise has exactly the law that is charged, whatever its tables hold.

Statistical tests are seeded, so they pass or fail for ever, at a false-alarm rate of one in a million each; those on
Secure() cannot be and have the same rate.
"""

from bisect import bisect_right

import mpmath
import numpy as np
import pytest
from refusals import refused
from scipy import special, stats

from dpfed.errors import ConfigError
from dpfed.mechanisms import integer_distributions
from dpfed.mechanisms.integer_distributions import (
    _UNDECIDED,
    LARGEST_VARIANCE,
    DiscreteGaussianLaw,
    SkellamLaw,
    draw_short,
)
from dpfed.randomness import Secure, Simulated
from dpfed.seeds import Seeds

pytestmark = pytest.mark.slow_but_one_in(3)

ALPHA = 1e-6
COUNT = 200_000
SIMULATED = Simulated(seeds=Seeds(root=5))
LAWS = [DiscreteGaussianLaw, SkellamLaw]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)


def exact_masses(law, variance, last):
    """P(|X| = k), k = 0 ... last, by mpmath from the definitions: Poisson's summation and Bessel's function."""
    v = mpmath.mpf(variance)
    if law is SkellamLaw:
        masses = [mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(last + 1)]
    else:
        waves = sum(mpmath.exp(-2 * mpmath.pi**2 * v * m**2) for m in range(1, 9))
        total = mpmath.sqrt(2 * mpmath.pi * v) * (1 + 2 * waves)
        masses = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * v)) / total for k in range(last + 1)]
    return masses[:1] + [2 * mass for mass in masses[1:]]


def exact_sums(law, variance, last):
    sums = [mpmath.mpf(0)]
    for mass in exact_masses(law, variance, last):
        sums.append(sums[-1] + mass)
    return sums[1:]


def double_masses(law, variance, last):
    """P(X = k), |k| <= last, in doubles, accurate to 1e-12."""
    k = np.abs(np.arange(-last, last + 1))
    if law is SkellamLaw:
        return special.ive(k, float(variance))
    weights = np.exp(-(k**2) / (2 * variance))
    return weights / weights.sum()


def p_value(draws, masses):
    """Chi-square of draws against the law on -last ... last, in cells that expect about 50 or more."""
    last = len(masses) // 2
    expected = len(draws) * masses
    counts = np.bincount(np.clip(draws, -last, last) + last, minlength=2 * last + 1)
    _, starts = np.unique(np.cumsum(expected) // 50, return_index=True)
    observed, wanted = np.add.reduceat(counts, starts), np.add.reduceat(expected, starts)
    observed, wanted = (
        np.append(cells[:-2], cells[-2:].sum()) for cells in (observed, wanted)
    )  # the last may be small
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


# --- the tables -------------------------------------------------------------------------------------------------------


@every_law
@pytest.mark.parametrize("variance", [1, 2, 50, 30_000])
def test_sums_are_right_to_every_bit_that_is_promised(law, variance):
    with mpmath.workdps(160):
        sums = integer_distributions._cumulative_sums(law(variance).weights(400))
        exact = exact_sums(law, variance, 60)
        worst = max(abs(mpmath.mpf(sums[k]) / sums[-1] - exact[k]) for k in range(min(61, len(sums))))
        assert worst < mpmath.mpf(2) ** -400


@every_law
@pytest.mark.parametrize("variance", [1, 2, 50])
def test_the_table_holds_the_integer_parts_to_the_last_bit_and_all_of_them(law, variance):
    with mpmath.workdps(60):
        table = integer_distributions._integer_parts(law(variance), 63)
        exact = [int(mpmath.floor(one * 2**63)) for one in exact_sums(law, variance, len(table) - 1)]
    assert table.tolist() == exact
    assert exact[-1] == 2**63 - 1 > exact[-2]


@every_law
@pytest.mark.parametrize("variance", [705_600, 10**10])
@pytest.mark.slow
def test_the_table_of_a_large_variance(law, variance):
    with mpmath.workdps(60):
        exact = [int(mpmath.floor(one * 2**63)) for one in exact_sums(law, variance, 40)]
    assert integer_distributions._integer_parts(law(variance), 63)[:41].tolist() == exact


def test_a_table_of_doubles_would_not_be_exact():
    """The planted fault: half of its entries are wrong, and it ends at eight standard deviations."""
    masses = double_masses(DiscreteGaussianLaw, 50, 100)[100:]
    sums = np.cumsum(np.append(masses[0], 2 * masses[1:]))
    floors = [int(min(one, 1 - 2**-53) * 2**63) for one in sums]
    exact = integer_distributions._integer_parts(DiscreteGaussianLaw(50), 63).tolist()
    assert sum(a != b for a, b in zip(floors, exact, strict=False)) > len(exact) / 2


class HardlyMoreThanHalf:
    """P(X = 0) = 1/2 + 2^-201, told too small by 2^-200 where few bits are asked for; the rest falls off by halves."""

    def __init__(self):
        self.asked = []

    def weights(self, bits):
        self.asked.append(bits)
        first = (1 << 999) + (1 << 799 if bits > 200 else -(1 << 780))
        return [first] + [(1 << 1000) - first >> k + 1 for k in range(1, 400)]


def test_an_integer_part_that_is_in_doubt_is_computed_again():
    """Too small by a hair, the sum's integer part would be one less: it is asked for until there is no doubt."""
    law = HardlyMoreThanHalf()
    assert integer_distributions._integer_parts(law, 63)[0] == 1 << 62
    assert law.asked == list(range(127, 320, 32))  # G(k) is 2^-(201+k) above 1 - 2^-(k+1)


# --- the search -------------------------------------------------------------------------------------------------------


class Script:
    """A source of bits that is read from a list of words, one list a call."""

    name = "script"

    def __init__(self, *calls):
        self.calls = [np.array(words, dtype=np.uint64) for words in calls]

    def bits(self, count, purpose, *path):
        words = self.calls.pop(0)
        assert len(words) == count
        return words


@every_law
def test_every_draw_is_the_first_k_whose_sum_exceeds_the_uniform(law):
    """The definition, at 8 bits looked up and 64 or 128 more drawn: for every head, and far into the tail."""
    tail = 2**64 - 1
    heads = np.arange(256, dtype=np.uint64) << np.uint64(56)
    rng = np.random.default_rng(0)
    more = rng.integers(0, 2**64, 256, dtype=np.uint64)
    with mpmath.workdps(80):
        sums = exact_sums(law, 3, 80)
        floors = {int(mpmath.floor(one * 256)) for one in sums}
        undecided = [head for head in range(256) if head in floors]
        script = Script(heads, [tail if head == 255 else more[head] for head in undecided], [12345 << 40])
        drawn = integer_distributions.draw(law(3), 256, script, "test", bits=8)
        for head in range(256):
            if head == 255:
                uniform = mpmath.mpf((head << 128) + (tail << 64) + (12345 << 40)) / mpmath.mpf(2) ** 136
            elif head in floors:
                uniform = mpmath.mpf((head << 64) + int(more[head])) / mpmath.mpf(2) ** 72
            else:
                uniform = mpmath.mpf(head) / 256
            assert drawn[head] == next(k for k, one in enumerate(sums) if uniform < one), head
    assert not script.calls
    assert len(undecided) > 5
    assert drawn[255] > 8 * 3**0.5


def test_the_last_bit_is_the_sign_and_nothing_else():
    words = SIMULATED.bits(10_000, "words") & ~np.uint64(1)
    plus = integer_distributions.draw(SkellamLaw(90), 10_000, Script(words), "test")
    minus = integer_distributions.draw(SkellamLaw(90), 10_000, Script(words | np.uint64(1)), "test")
    assert np.array_equal(plus, -minus)
    assert plus.min() == 0


def test_a_draw_that_is_in_doubt_waits_for_more_bits():
    """U = 1/2 and not a bit more is below P(X = 0), though not as it is told at first; 256 bits settle it."""
    script = Script([1 << 63], [0], [0], [0], [0])
    assert integer_distributions.draw(HardlyMoreThanHalf(), 1, script, "test", bits=8).tolist() == [0]
    assert not script.calls


@pytest.mark.parametrize(
    ("law", "variance"),
    [(law, variance) for law in LAWS for variance in (1, 50, 700)]
    + [pytest.param(DiscreteGaussianLaw, 662_480, marks=pytest.mark.slow)],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_every_short_draw_is_the_first_k_whose_sum_exceeds_the_uniform(law, variance):
    """The definition, in exact arithmetic, for each of the 2^16 words that a draw can begin with.

    An undecided one gets 48 random bits more, or those of the tail; a decided one has the same k at both ends of its
    cell. Sums to 60 digits, so that a cell that ended within 1e-50 of one would be seen as undecided here.
    """
    heads = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(variance)
    short = integer_distributions._short_table(law(variance))
    undecided = np.flatnonzero(short == _UNDECIDED)
    more = rng.integers(0, 2**64, len(undecided), dtype=np.uint64)
    drawn = draw_short(law(variance), 1 << 16, Script(heads.view(np.uint64), more), "test")
    with mpmath.workdps(60):
        sums = [int(mpmath.floor(one * 2**63)) for one in exact_sums(law, variance, int(14 * variance**0.5) + 8)]
    known = set(sums[:-1]) - {2**63 - 1}
    extra = dict(zip(undecided.tolist(), (more >> np.uint64(16)).tolist(), strict=True))
    for head in range(1 << 16):
        low = (head >> 1) << 48
        ends = [low | extra[head]] if head in extra else [low, low + 2**48 - 1]
        for uniform in ends:
            assert uniform not in known, "a test that cannot tell"
            assert abs(drawn[head]) == bisect_right(sums, uniform), head
        assert drawn[head] == 0 or (drawn[head] < 0) == bool(head & 1)
    assert 0 < len(undecided) < len(heads) / 4
    assert [len(draw_short(law(variance), count, SIMULATED, "edges")) for count in (0, 1, 5)] == [0, 1, 5]


def test_a_short_table_that_decides_too_much_is_seen():
    """The planted fault: cells with a G(k) in them that take the k of their lower end shift the law by 1 in 10,000."""
    law, masses = DiscreteGaussianLaw(30_000), double_masses(DiscreteGaussianLaw, 30_000, 1600)
    short = integer_distributions._short_table(law)
    wrong = np.repeat(np.maximum.accumulate(np.where(short[::2] >= 0, short[::2], -1)), 2)
    tail = np.bincount(np.maximum(wrong, 0), minlength=1601)[:1601] / (1 << 16)
    exact = masses[1600:] * np.where(np.arange(1601) > 0, 2, 1)
    right = np.bincount(np.abs(np.where(short == _UNDECIDED, 0, short)), minlength=1601)[:1601] / (1 << 16)
    assert np.abs(tail - exact).sum() > 1e-3
    assert (right[1:] <= exact[1:] + 1e-12).all()  # what is decided never exceeds the law


def wrong_look_ups(table, bits):
    """How many of all u at which k changes, or may, are not looked up as counting the integer parts tells."""
    floors = table.floors[1:].tolist()
    near = {floor + move for floor in floors for move in (-1, 0, 1)} | {0, (1 << bits) - 1}
    heads = sorted(head for head in near if 0 <= head < 1 << bits)
    found, open_cells = table.look_up(np.array(heads, dtype=np.int64))
    undecided = set(open_cells.tolist())
    held = set(floors)
    wrong = 0
    for place, head in enumerate(heads):
        right = place in undecided if head in held else found[place] == bisect_right(floors, head)
        wrong += not right or (place in undecided) != (head in held)
    return wrong


@every_law
@pytest.mark.parametrize("bits", [3, 8, 20, 63])
@pytest.mark.parametrize("variance", [1, 50, 30_000])
def test_every_place_where_k_changes_is_looked_up_rightly(law, variance, bits):
    assert not wrong_look_ups(integer_distributions._inversion_table(law(variance), bits), bits)


def test_a_search_that_goes_one_step_and_no_further_is_seen():
    """The planted fault: in the tail many integer parts share the first bits, and one step does not pass them all."""
    table = integer_distributions._inversion_table(DiscreteGaussianLaw(30_000), 63)

    def one_step(heads):
        found = table.guide_table[heads >> table.shift].astype(np.int64)
        found += table.floors.take(found + 1, mode="clip") <= heads
        return found, np.flatnonzero(table.floors[found] == heads)

    faulty = type("OneStep", (), {"floors": table.floors, "look_up": staticmethod(one_step)})
    assert wrong_look_ups(faulty, 63) > 1000


@pytest.mark.slow
def test_a_variance_too_large_for_short_draws_has_words_from_the_start():
    law = DiscreteGaussianLaw(10**10)
    assert integer_distributions._short_table(law) is None
    assert np.array_equal(law.sample(50, SIMULATED, "words"), integer_distributions.draw(law, 50, SIMULATED, "words"))


@pytest.mark.parametrize("count", [0, 1, integer_distributions._AT_ONCE, 2 * integer_distributions._AT_ONCE + 1])
def test_counts_at_the_edges_of_the_pieces(count):
    draws = DiscreteGaussianLaw(9).sample(count, SIMULATED, "edges")
    assert draws.shape == (count,)
    assert draws.dtype == np.int64
    assert count < 2 or draws[-1000:].std() == pytest.approx(3, abs=0.5)


# --- the laws ---------------------------------------------------------------------------------------------------------


@every_law
@pytest.mark.parametrize("source", [SIMULATED, Secure()], ids=lambda source: source.name)
@pytest.mark.parametrize("variance", [1, 2, 705_600])
def test_draws_follow_the_law(law, source, variance):
    draws = law(variance).sample(COUNT, source, "law", variance)
    assert p_value(draws, double_masses(law, variance, int(9 * variance**0.5) + 9)) > ALPHA


@every_law
@pytest.mark.slow
def test_a_large_variance_is_normal_to_a_part_of_a_step(law):
    """At σ = 1e5 the distribution function is Φ((k + 1/2) / σ) to 1e-10, and draws are hardly ever equal."""
    draws = law(10**10).sample(COUNT, SIMULATED, "large")
    assert stats.kstest((draws + 0.5) / 1e5, "norm").pvalue > ALPHA


def test_the_parameter_of_a_discrete_gaussian_is_its_variance_to_a_millionth():
    with mpmath.workdps(30):
        masses = exact_masses(DiscreteGaussianLaw, 1, 20)
        assert 0 < 1 - sum(mass * k**2 for k, mass in enumerate(masses)) < 1e-6


def test_the_laws_are_told_apart_and_so_is_a_rounded_normal():
    """Planted faults: rounded normal noise, Skellam for discrete Gaussian, a variance five per cent short."""
    rounded = np.rint(np.random.default_rng(1).normal(size=COUNT)).astype(np.int64)
    assert p_value(rounded, double_masses(DiscreteGaussianLaw, 1, 18)) < ALPHA
    skellam = SkellamLaw(2).sample(COUNT, SIMULATED, "fault")
    assert p_value(skellam, double_masses(DiscreteGaussianLaw, 2, 18)) < ALPHA
    short = DiscreteGaussianLaw(95).sample(COUNT, SIMULATED, "fault")
    assert p_value(short, double_masses(DiscreteGaussianLaw, 100, 100)) < ALPHA


# --- randomness and errors --------------------------------------------------------------------------------------------


@every_law
def test_simulated_draws_repeat_by_name_in_any_order(law):
    forth = [law(100).sample(50, SIMULATED, "noise", 3, client) for client in range(4)]
    back = [law(100).sample(50, SIMULATED, "noise", 3, client) for client in reversed(range(4))][::-1]
    assert np.array_equal(forth, back)
    assert len({tuple(row) for row in forth}) == 4
    assert not np.array_equal(forth[0], law(100).sample(50, Simulated(seeds=Seeds(root=6)), "noise", 3, 0))


def test_secure_draws_never_repeat():
    assert not np.array_equal(
        SkellamLaw(100).sample(50, Secure(), "noise", 0), SkellamLaw(100).sample(50, Secure(), "noise", 0)
    )


@pytest.mark.parametrize("source", [SIMULATED, Secure()], ids=lambda source: source.name)
def test_all_64_bits_are_fair(source):
    words = source.bits(40_000, "bits", 1)
    assert words.dtype == np.uint64
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(axis=0)
    assert stats.chi2(64).sf(((ones - 20_000) ** 2 / 10_000).sum()) > ALPHA


@every_law
@pytest.mark.parametrize("variance", [0, -1, 1.5, 4.0, True, LARGEST_VARIANCE + 1])
def test_a_variance_without_a_table_is_refused(law, variance):
    refused(ConfigError, "whole number from 1 to", law, variance)
