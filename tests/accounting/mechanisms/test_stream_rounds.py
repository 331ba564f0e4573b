"""A schedule's releases are accounted by their rounds: any multiset of rounds of any streams, against the truth."""

from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from reference.shorthand import gaussian
from refusals import refused
from scipy.stats import norm

from accounting import Composed, Header, Ledger, PoissonSampling, Release
from accounting.compose import accountant
from accounting.compose.running import Running
from accounting.errors import AccountingError, LedgerError, UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.ledger import Aborted
from accounting.mechanisms import (
    Allocation,
    BallsAndBins,
    CorrelatedRounds,
    Cyclic,
    DiscreteGaussian,
    MinSeparation,
    ReleasedRounds,
    subsample,
)
from tests.accounting.ledger.old_lines import lines_as_of_03


def one_round(schedule, z=1.0):
    return subsample(gaussian(z, "zero-out"), schedule)


def line(number, mechanism, nonce=None):
    return Release(
        round=number, mechanism=mechanism, clip_norm=1.0, noise_std=1e9, noise_placement="server", nonce=nonce
    )


@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "l.jsonl", Header(unit="client", clients=100, randomness="secure"))


def epsilon_of(ledger, *entries, delta=1e-5):
    return Ledger.read(lines_as_of_03(ledger, *entries)).if_fixed_in_advance(delta, with_lower_bound=False).epsilon


def rounds_of(numbers, mechanism):
    released = ReleasedRounds()
    for number in numbers:
        released.add(mechanism, number)
    return released


def by_count(numbers, mechanism):
    """The planted fault: n lines as the first n rounds."""
    return Composed(parts=((mechanism, len(numbers)),))


# -- Public orders: closed form ----------------------------------------


@pytest.mark.parametrize(
    "numbers", [(0, 10, 20, 30), (0, 0, 0, 0), tuple(n for n in range(31) if n not in (1, 2, 3)), (30, 20, 10, 0)]
)
def test_a_client_of_four_rounds_has_the_epsilon_of_four(ledger, numbers):
    turns = one_round(Cyclic(period=10))
    stated = epsilon_of(ledger, *(line(number, turns) for number in numbers))
    assert stated == pytest.approx(smallest_epsilon(1e-5, mu=2.0), rel=1e-9) == pytest.approx(9.99726, rel=1e-6)


def test_no_multiset_of_turns_has_less_than_its_most_frequent_client():
    draw, below = np.random.default_rng(5), 0
    for _ in range(100):
        period, z = int(draw.integers(1, 8)), float(draw.uniform(0.5, 5.0))
        numbers = draw.integers(0, draw.integers(1, 40), size=draw.integers(1, 20)).tolist()
        truth = max(Counter(number % period for number in numbers).values()) ** 0.5 / z
        turns = one_round(Cyclic(period=period), z)
        stated = accountant.epsilon(rounds_of(numbers, turns).composition(), delta=1e-5)
        assert stated >= smallest_epsilon(1e-5, mu=truth) * (1 - 1e-12)
        below += accountant.epsilon(by_count(numbers, turns), delta=1e-5) < smallest_epsilon(1e-5, mu=truth) * 0.99
    assert below > 30  # the count is found out


# -- Secret schedules: patterns of up to 3 rounds by quadrature, more rounds by sampling ----------


@cache
def patterns(schedule, rounds):
    """Pairs (probability, rounds of the client) of the first `rounds` rounds."""
    match schedule:
        case BallsAndBins():
            found = [(1.0, ())]
            for epoch in range(-(-rounds // schedule.bins)):
                lanes = range(schedule.bins)
                found = [(p / schedule.bins, (*s, epoch * schedule.bins + b)) for p, s in found for b in lanes]
        case Allocation():
            subsets = list(combinations(range(schedule.rounds), schedule.participations))
            found = [(1 / len(subsets), subset) for subset in subsets]
        case MinSeparation():
            free = 1 - schedule.probability * (schedule.separation - 1)
            states = [(free, (), 0)]
            states += [(schedule.probability, (), rest) for rest in range(1, schedule.separation)]
            for number in range(rounds):
                states = [
                    one
                    for p, s, rest in states
                    for one in (
                        [(p, s, rest - 1)]
                        if rest
                        else [
                            (p * (1 - schedule.coin), s, 0),
                            (p * schedule.coin, (*s, number), schedule.separation - 1),
                        ]
                    )
                ]
            found = [(p, s) for p, s, _ in states]
    merged = Counter()
    for p, s in found:
        merged[tuple(number for number in s if number < rounds)] += p
    return tuple((p, s) for s, p in merged.items())


def shifts_of(schedule, numbers, z):
    """Probability and shift vector of every pattern: round t with m releases has the shift sqrt(m) / z."""
    rounds = max(numbers) + 1
    times = Counter(numbers)
    scale = np.array([times[number] ** 0.5 / z for number in range(rounds)])
    found = patterns(schedule, rounds)
    taken = np.array([[number in s for number in range(rounds)] for _, s in found])
    return np.array([p for p, _ in found]), taken * scale


POINTS = {1: 20_001, 2: 301, 3: 71}
"""Points of each axis by the number of rounds; errors below 2% of the divergences tested here."""


def exact_deltas(schedule, numbers, z, epsilon, end=7.0):
    """Hockey-stick divergences in both orders, by a product rule over up to 3 rounds."""
    probabilities, shifts = shifts_of(schedule, numbers, z)
    shifts = shifts[:, shifts.any(axis=0)]
    if not shifts.shape[1]:
        return 0.0, 0.0
    x = np.linspace(-end, end + shifts.max(), POINTS[shifts.shape[1]])
    grid = np.stack(np.meshgrid(*[x] * shifts.shape[1], indexing="ij"), axis=-1).reshape(-1, shifts.shape[1])
    q = np.prod(norm.pdf(grid), axis=1) * (x[1] - x[0]) ** shifts.shape[1]
    ratio = np.exp(grid @ shifts.T - (shifts**2).sum(axis=1) / 2) @ probabilities
    return float(q @ np.maximum(ratio - np.exp(epsilon), 0)), float(q @ np.maximum(1 - np.exp(epsilon) * ratio, 0))


def least_deltas(schedule, numbers, z, epsilon, samples, generator):
    """Lower bounds on both divergences, each of which is above the truth with probability 5e-7 at most (Hoeffding)."""
    probabilities, shifts = shifts_of(schedule, numbers, z)
    slack = (np.log(2e6) / (2 * samples)) ** 0.5
    found = []
    for shown in (True, False):
        drawn = generator.choice(len(probabilities), p=probabilities / probabilities.sum(), size=samples)
        y = generator.standard_normal((samples, shifts.shape[1])) + (shifts[drawn] if shown else 0.0)
        ratio = np.exp(y @ shifts.T - (shifts**2).sum(axis=1) / 2) @ probabilities
        kept = np.maximum(1 - np.exp(epsilon) / ratio, 0) if shown else np.maximum(1 - np.exp(epsilon) * ratio, 0)
        found.append(float(kept.mean() - slack))
    return found


SECRET = (
    BallsAndBins(bins=2),
    BallsAndBins(bins=3),
    Allocation(participations=1, rounds=3),
    Allocation(participations=2, rounds=3),
    MinSeparation(separation=2, probability=0.3),
    MinSeparation(separation=1, probability=0.4),
)


def small_settings(count, seed):
    draw = np.random.default_rng(seed)
    for number in range(count):
        schedule = SECRET[number % len(SECRET)]
        numbers = tuple(draw.integers(0, 3, size=draw.integers(1, 6)).tolist())
        yield schedule, numbers, float(draw.uniform(0.8, 2.5)), float(10 ** draw.uniform(-4, -1))


def exceeds(schedule, numbers, z, delta, composed):
    epsilon = accountant.epsilon(composed, delta=delta)
    return max(exact_deltas(schedule, numbers, z, epsilon)) > delta * 1.02 + 1e-7


@pytest.mark.parametrize(("count", "seed"), [(6, 1), pytest.param(150, 2, marks=pytest.mark.slow)])
def test_small_multisets_of_secret_rounds_by_quadrature(count, seed):
    found = 0
    for schedule, numbers, z, delta in small_settings(count, seed):
        mechanism = one_round(schedule, z)
        assert not exceeds(schedule, numbers, z, delta, rounds_of(numbers, mechanism).composition())
        if len(numbers) <= (schedule.ends_after or 9):
            found += exceeds(schedule, numbers, z, delta, by_count(numbers, mechanism))
    assert found >= 1  # the count is found out


LONGER = (
    BallsAndBins(bins=4),
    BallsAndBins(bins=6),
    Allocation(participations=3, rounds=12),
    MinSeparation(separation=4, probability=0.15),
)


def longer_settings(count, seed):
    draw = np.random.default_rng(seed)
    for number in range(count):
        schedule = LONGER[number % len(LONGER)]
        last = int(draw.integers(4, 13))
        numbers = draw.choice(last, size=int(draw.integers(1, last + 1)), replace=False).tolist()
        numbers += [int(draw.choice(numbers)) for _ in range(draw.integers(0, 3))]
        yield schedule, tuple(numbers), float(draw.uniform(0.6, 1.5)), 0.05


def longer_multisets(count, seed, samples):
    """Return how often the count is below the sampled lower bound; the account must never be."""
    generator, found = np.random.default_rng(seed + 1000), 0
    for schedule, numbers, z, delta in longer_settings(count, seed):
        mechanism = one_round(schedule, z)
        stated = accountant.epsilon(rounds_of(numbers, mechanism).composition(), delta=delta)
        assert max(least_deltas(schedule, numbers, z, stated, samples, generator)) <= delta
        if len(numbers) <= (schedule.ends_after or 99):
            counted = accountant.epsilon(by_count(numbers, mechanism), delta=delta)
            found += max(least_deltas(schedule, numbers, z, counted, samples, generator)) > delta
    return found


@pytest.mark.parametrize(
    ("count", "seed", "samples", "least"), [(2, 8, 20_000, 1), pytest.param(40, 4, 50_000, 3, marks=pytest.mark.slow)]
)
def test_longer_multisets_are_above_a_sampled_lower_bound(count, seed, samples, least):
    """False alarms: at most 1e-6 for each setting."""
    assert longer_multisets(count, seed, samples) >= least


def test_repeats_are_of_the_same_participants():
    """Two releases of every round are not two independent schedules: one of noise z / sqrt(2), which is more."""
    bins = one_round(BallsAndBins(bins=3))
    ((release, rounds),) = rounds_of([0, 1, 2, 0, 1, 2], bins).composition().parts
    assert (release.mechanism.noise_multiplier, rounds) == (pytest.approx(2**-0.5), 3)
    apart = Composed(parts=tuple((one_round(BallsAndBins(bins=3, stream=name)), 3) for name in "ab"))
    epsilon = accountant.epsilon(apart, delta=1e-3)
    assert exact_deltas(BallsAndBins(bins=3), [0, 1, 2] * 2, 1.0, epsilon)[0] > 1.1e-3


def test_rounds_in_order_are_the_composition_of_their_number():
    for schedule in (*SECRET, Cyclic(period=3), CorrelatedRounds(separation=2, coefficients=(1.0, 0.5))):
        mechanism = one_round(schedule)
        released = rounds_of(range(3), mechanism)
        assert released.is_exact
        assert released.composition() == Composed(parts=((mechanism, 3),))


def test_repeats_of_integer_noise_and_sparse_rounds_have_no_amplification():
    noise = DiscreteGaussian(dimension=8, l2_bound=10.0, share_variance=400.0, adjacency="zero-out")
    assert rounds_of([0, 0, 1], subsample(noise, BallsAndBins(bins=3))).composition().parts == ((noise, 2),)
    sparse = rounds_of([0, 10**12], one_round(BallsAndBins(bins=6)))
    assert sparse.composition().parts == ((gaussian(1.0, "zero-out"), 2),)
    assert not sparse.is_exact


# -- Interleaved streams ----------------------------------------


def test_interleaved_streams_are_each_accounted_by_their_rounds():
    first, second = (one_round(Cyclic(period=10, stream=name)) for name in "ab")
    plain = gaussian(2.0, "zero-out")
    released = ReleasedRounds()
    for number in (0, 10, 20):
        released.add(first, number)
        released.add(second, number // 2)
        released.add(plain, 0)
    mu = (3 + 2 + 3 / 4) ** 0.5  # rounds 0, 5, 10 of the second: two participations by the prefix
    stated = accountant.epsilon(released.composition(), delta=1e-5)
    assert stated == pytest.approx(smallest_epsilon(1e-5, mu=mu), rel=1e-9)
    running = Running(delta=1e-5, typical=plain, rounds=9)
    for number in (0, 10, 20):
        running.add(first, first=number)
        running.add(second, first=number // 2)
        running.add(plain)
    assert running.epsilon() == pytest.approx(stated, rel=1e-3)


def test_running_totals_take_rounds_by_their_numbers():
    turns = one_round(Cyclic(period=10))
    running = Running(delta=1e-5, typical=turns, rounds=40)
    for number in (0, 10, 20):
        running.add(turns, first=number)
    assert running.epsilon() == pytest.approx(smallest_epsilon(1e-5, mu=3**0.5), rel=1e-3)
    assert running.epsilon(turns, number=30) == pytest.approx(smallest_epsilon(1e-5, mu=2.0), rel=1e-3)
    assert running.epsilon(turns, number=0) == pytest.approx(smallest_epsilon(1e-5, mu=6**0.5), rel=2.0)
    assert running.epsilon(turns, number=0) >= smallest_epsilon(1e-5, mu=2.0) * (1 - 1e-9)
    assert running.epsilon() == pytest.approx(smallest_epsilon(1e-5, mu=3**0.5), rel=1e-3)


# -- Correlated noise ----------------------------------------

CORRELATED = {
    "banded": CorrelatedRounds(separation=2, coefficients=(1.0, 0.5)),
    "buffered": CorrelatedRounds(separation=2, weights=(0.5,), decays=(0.9,)),
    "lanes": BallsAndBins(bins=4, lanes=2, coefficients=(1.0, 0.5)),
}


@pytest.mark.parametrize("name", CORRELATED)
def test_a_gap_of_correlated_noise_has_no_epsilon_unless_its_noise_was_drawn(ledger, name):
    mechanism = one_round(CORRELATED[name])
    ledger.record(line(0, mechanism))
    refused(LedgerError, "noise_drawn=True", lambda: ledger.record(line(2, mechanism)))
    refused(LedgerError, "a round has one release", lambda: ledger.record(line(0, mechanism)))
    for numbers in ((2,), (0, 2), (0, 0), (1, 0), (0, 1, 3), (0, 2, 1)):
        refused(UnsupportedMechanism, "No epsilon is known", rounds_of(numbers, mechanism).composition)
    ledger.record(Aborted(round=1, reason="too few uploads", noise_drawn=True))
    ledger.record(line(2, mechanism))
    read = Ledger.read(ledger.path)
    assert read.mechanism() == Composed(parts=((mechanism, 3),))
    assert read.if_fixed_in_advance(1e-5).lower_bound is None


# -- Ledgers ----------------------------------------


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("schedule", [Cyclic(period=10), *SECRET[:4], SECRET[4]])
def test_recording_refuses_a_second_line_of_a_round_and_reading_never(ledger, schedule):
    mechanism = one_round(schedule)
    ledger.record(line(1, mechanism, "one"))
    ledger.record(line(1, mechanism, "one"))  # the same release
    for nonce in (None, "two"):
        refused(LedgerError, "a round has one release", ledger.record, line(1, mechanism, nonce))
    refused(LedgerError, "a round has one release", lambda: ledger.record_all([line(0, mechanism), line(0, mechanism)]))
    ledger.record_all([line(0, mechanism), Aborted(round=0, reason="unpaid", nonce=None)])
    assert Ledger.read(ledger.path).mechanism() == ledger.mechanism() == Composed(parts=((mechanism, 2),))
    twice = Ledger.read(lines_as_of_03(ledger, line(1, mechanism, "two")))
    assert twice.if_fixed_in_advance(1e-5).epsilon > ledger.if_fixed_in_advance(1e-5).epsilon
    assert twice.if_fixed_in_advance(1e-5).lower_bound is None  # that of other releases


def test_a_revoked_round_may_be_released_again(ledger):
    mechanism = one_round(BallsAndBins(bins=3))
    ledger.record(line(0, mechanism, "one"))
    ledger.record(Aborted(round=0, reason="the project was not charged", nonce="one"))
    ledger.record(line(0, mechanism, "two"))
    assert Ledger.resume(ledger.path).mechanism() == ledger.mechanism() == Composed(parts=((mechanism, 1),))


def test_an_allocation_ends(ledger):
    mechanism = one_round(Allocation(participations=1, rounds=3))
    refused(LedgerError, "ends after 3 rounds", lambda: ledger.record(line(3, mechanism)))
    refused(UnsupportedMechanism, "ends after 3 rounds", lambda: epsilon_of(ledger, line(3, mechanism)))


def test_repeated_rounds_without_a_schedule_are_counted(ledger):
    poisson = subsample(gaussian(1.0, "zero-out"), PoissonSampling(probability=0.1))
    ledger.record_all(line(number % 2, poisson) for number in range(6))
    assert Ledger.read(ledger.path).mechanism() == Composed(parts=((poisson, 6),))


def test_a_failed_write_leaves_the_rounds_as_they_were(ledger, monkeypatch):
    mechanism = one_round(BallsAndBins(bins=3))
    ledger.record(line(0, mechanism))

    def full(*_, **__):
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr("accounting.ledger.regular_file.append", full)
        refused(AccountingError, "", lambda: ledger.record(line(1, mechanism)))
    ledger.record(line(1, mechanism))
    assert ledger.mechanism() == Composed(parts=((mechanism, 2),))
