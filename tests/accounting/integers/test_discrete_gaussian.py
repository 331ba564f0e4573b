"""The account of summed discrete Gaussians against exact laws: small cases by enumeration, constants by mpmath."""

import itertools
import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from reference import integer_distributions as laws
from reference.shorthand import gaussian, times

from accounting import Composed, DiscreteGaussian, FixedSizeSampling, PoissonSampling, Skellam, Subsampled, guarantee
from accounting.compose import rdp
from accounting.compose.running import epsilons
from accounting.errors import UnsupportedMechanism
from accounting.integers import discrete_gaussian

pytestmark = pytest.mark.slow_but_one_in(3)


def noise(variance, shares, norm, dimension=1, adjacency="zero-out", **more):
    return DiscreteGaussian(
        dimension=dimension, l2_bound=norm * (1 + 1e-15), share_variance=variance, shares=shares, adjacency=adjacency,
        **more,
    )  # fmt: skip


def exact(variance, shares, moves):
    """The neighbouring laws of a sum of shares, moved by `moves` and not."""
    reach = 15 + math.ceil((12 if len(moves) > 1 else 38) * math.sqrt(variance))
    return laws.shifted(laws.summed(laws.discrete_gaussian(variance, reach), shares), moves)


@pytest.mark.parametrize("variance", [0.041, 0.1, 0.5, 1.0, 4.0])
def test_the_lattice_distortion_is_that_of_the_worst_shift(variance):
    """The sum over shifted integers is largest at 0 and smallest at 1/2: their log-ratio is the distortion."""
    with mp.workdps(80):
        at = [
            mp.fsum(mp.exp(-((n + c) ** 2) / (2 * mp.mpf(variance))) for n in range(-60, 61))
            for c in (0, mp.mpf(1) / 2)
        ]
        middle = mp.sqrt(2 * mp.pi * variance)
        e = float(max(at[0] / middle - 1, 1 - at[1] / middle))
    assert float(discrete_gaussian.lattice_distortion(variance)) == pytest.approx(2 * math.atanh(e), rel=1e-9, abs=0)


def test_tiny_noise_has_no_finite_distortion():
    assert np.isinf(discrete_gaussian.lattice_distortion([0.0, 0.01, 0.039])).all()
    assert np.isfinite(discrete_gaussian.lattice_distortion([0.041, 1.0, 1e30])).all()


@pytest.mark.parametrize("variance", [0.12, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("shares", [2, 3, 5, 8])
def test_tau_covers_the_exact_sum_of_shares(variance, shares):
    tau = discrete_gaussian.shares_distortion(variance, shares)
    reach = 20 + int(30 * math.sqrt(variance))
    total = laws.summed(laws.discrete_gaussian(variance, reach), shares)
    one = laws.discrete_gaussian(variance * shares, len(total) // 2)
    x = np.abs(np.arange(len(total)) - len(total) // 2)
    inside = x <= 10 * math.sqrt(variance * shares)
    worst = np.abs(np.log(total[inside] / one[inside])).max()
    assert worst <= tau + 1e-12
    if shares == 2:
        assert tau < 2.5 * worst + 1e-12  # so a third of it would be caught


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize(("variance", "smoothing"), [(0.3, 0.1), (1.0, 0.25), (1.0, 0.5), (4.0, 1.0)])
@pytest.mark.parametrize("move", [0, 1, 4])
def test_a_discretised_gaussian_is_as_close_as_claimed(variance, smoothing, move):
    """x from N(move, V - t^2), then an integer from the discrete Gaussian of variance t^2 around x, by quadrature."""
    x = np.linspace(-40, 40, 40_001)
    density = np.exp(-((x - move) ** 2) / (2 * (variance - smoothing)))
    density /= density.sum()
    n = np.arange(-60, 61)
    total = sum(np.exp(-((k - x) ** 2) / (2 * smoothing)) for k in range(-60, 61))
    near = np.array([(density * np.exp(-((k - x) ** 2) / (2 * smoothing)) / total).sum() for k in n])
    wanted = np.exp(-((n - move) ** 2) / (2 * variance))
    wanted /= wanted.sum()
    inside = np.abs(n - move) <= 7 * math.sqrt(variance)
    worst = np.abs(np.log(near[inside] / wanted[inside])).max()
    assert worst <= float(discrete_gaussian.lattice_distortion(smoothing)) + 1e-9
    if smoothing < 0.3:
        assert worst > float(discrete_gaussian.lattice_distortion(smoothing)) / 100


CASES = [
    (variance, shares, moves)
    for variance, shares in [(0.12, 1), (0.25, 2), (0.49, 1), (0.49, 3), (1.0, 2), (2.0, 5), (9.0, 1), (9.0, 3)]
    for moves in [(1,), (4,), (1, -2)]
    if len(moves) == 1 or variance <= 2
]


@pytest.mark.parametrize(("variance", "shares", "moves"), CASES)
def test_never_below_the_exact_epsilon(variance, shares, moves):
    mechanism = noise(variance, shares, math.hypot(*moves), len(moves))
    pair = exact(variance, shares, moves)
    for delta in (1e-2, 1e-5, 1e-8):
        truth = laws.smallest_epsilon(pair, delta)
        for accountant in ("best", "rdp", "pld") if variance == 1 else ("best", "rdp"):
            assert guarantee(mechanism, delta=delta, accountant=accountant).epsilon >= truth * (1 - 1e-9)


@pytest.mark.parametrize(("variance", "shares", "moves"), CASES)
def test_never_below_the_exact_renyi_divergence(variance, shares, moves):
    mechanism = noise(variance, shares, math.hypot(*moves), len(moves))
    pair = exact(variance, shares, moves)
    for order in (1.05, 1.5, 2, 5, 10):
        assert float(rdp.curve(mechanism, order)) >= laws.renyi(pair, order, floor=1e-200) * (1 - 1e-9) - 1e-12


def test_is_tight_where_noise_is_a_few_steps_and_so_finds_planted_faults():
    truth = laws.smallest_epsilon(exact(9.0, 3, (4,)), 1e-5)
    stated = guarantee(noise(9.0, 3, 4), delta=1e-5).epsilon
    assert truth <= stated <= 1.02 * truth
    for fault in (
        noise(9.0 * 1.1, 3, 4),  # a variance 10% too large
        noise(9.0, 4, 4),  # a share that is not there
        noise(9.0, 3, 3.8),  # a norm without its rounding
    ):
        assert guarantee(fault, delta=1e-5).epsilon < truth


@pytest.mark.parametrize(("variance", "shares"), [(0.25, 2), (1.0, 1), (4.0, 3)])
@pytest.mark.parametrize("move", [1, 3])
@pytest.mark.parametrize("q", [0.02, 0.3])
def test_poisson_sampled_rounds_against_the_exact_mixture(variance, shares, move, q):
    pair = laws.mixed(exact(variance, shares, (move,)), q)
    mechanism = Subsampled(mechanism=noise(variance, shares, move), sampling=PoissonSampling(probability=q))
    for delta in (1e-4, 1e-7):
        truth = laws.smallest_epsilon(pair, delta)
        stated = guarantee(mechanism, delta=delta).epsilon
        assert stated >= truth * (1 - 1e-9)
        assert variance < 4 or stated < 1.2 * truth + 1e-3
    for order in (2, 5):
        assert float(rdp.curve(mechanism, order)) >= laws.renyi(pair, order, floor=1e-200) * (1 - 1e-9)


@pytest.mark.parametrize(("variance", "shares", "bound", "q"), [(0.5, 1, 1, 0.2), (2.0, 2, 3, 0.2), (4.0, 1, 2, 0.5)])
def test_fixed_size_cohorts_against_the_exact_worst_neighbours(variance, shares, bound, q):
    """All others send -bound, the client sends +bound or (replaced) -bound."""
    moved, still = exact(variance, shares, (2 * bound,))
    pair = laws.mixed((moved, still), q)
    cohort = {0.2: (2, 10), 0.5: (5, 10)}[q]
    mechanism = Subsampled(
        mechanism=noise(variance, shares, bound, adjacency="replace-one"),
        sampling=FixedSizeSampling(cohort=cohort[0], clients=cohort[1]),
    )
    for delta in (1e-3, 1e-6):
        assert guarantee(mechanism, delta=delta).epsilon >= laws.smallest_epsilon(pair, delta) * (1 - 1e-9)


def test_two_sampled_rounds_against_the_exact_product():
    one = laws.mixed(exact(1.0, 2, (2,)), 0.3)
    kept = slice(len(one[0]) // 2 - 16, len(one[0]) // 2 + 17)
    pair = tuple(np.outer(law[kept], law[kept]).ravel() for law in one)
    mechanism = Subsampled(mechanism=noise(1.0, 2, 2), sampling=PoissonSampling(probability=0.3))
    for delta in (1e-3, 1e-6):
        truth = laws.smallest_epsilon(pair, delta)
        assert truth <= guarantee(times(mechanism, 2), delta=delta).epsilon < 1.25 * truth


@pytest.mark.parametrize("share_std", [1.0, 1.5, 2.0, 30.0])
@pytest.mark.parametrize(("shares", "dimension", "norm"), [(2, 100, 1.0), (100, 1000, 40.0), (1000, 10**6, 700.0)])
def test_not_above_the_published_bound(share_std, shares, dimension, norm):
    """Kairouz, Liu, Steinke 2021: the least of three Renyi bounds with 10 sum exp(-2 pi^2 s^2 k/(k+1)) for tau."""
    tau = 10 * sum(math.exp(-2 * math.pi**2 * share_std**2 * k / (k + 1)) for k in range(1, shares))
    shift = norm / share_std / math.sqrt(shares)
    l1 = min(math.sqrt(dimension) * norm, norm**2)
    for order in (1.5, 2.0, 8.0, 64.0):
        published = min(
            order / 2 * shift**2 + tau * dimension,
            order / 2 * (shift**2 + 2 * l1 * tau / share_std / math.sqrt(shares) + tau**2 * dimension),
            order / 2 * (shift + tau * math.sqrt(dimension)) ** 2,
        )
        ours = float(rdp.curve(noise(share_std**2, shares, norm, dimension), order))
        assert ours <= published * (1 + 1e-9)


def test_the_published_setting_costs_rounding_and_nothing_else():
    """d = 1.6e6, 100 shares, 6000 steps, z = 1.4: within 1% of continuous noise, alone and sampled (0.63%, 0.89%)."""
    steps, longer = 6000, 1.0056318
    mechanism = noise(float(math.ceil((1.4 * steps) ** 2 / 100)), 100, steps * longer, 1_600_000)
    plain = gaussian(1.4, "zero-out")
    sampling = PoissonSampling(probability=0.1)
    for ours, theirs, rise in (
        (mechanism, plain, 0.0063),
        (
            times(Subsampled(mechanism=mechanism, sampling=sampling), 100),
            times(Subsampled(mechanism=plain, sampling=sampling), 100),
            0.0089,
        ),
    ):
        stated, continuous = (guarantee(m, delta=1e-5, with_lower_bound=False).epsilon for m in (ours, theirs))
        assert stated / continuous - 1 == pytest.approx(rise, abs=2e-4)


def test_mixed_with_gaussians_and_skellam_in_one_composition():
    parts = [(noise(100.0, 5, 20), 3), (gaussian(1.0, "zero-out"), 2)]
    shift = math.sqrt(3 * 400 / 500 + 2)
    together = gaussian(1 / shift, "zero-out")
    stated = guarantee(Composed(parts=tuple(parts)), delta=1e-5)
    assert stated.epsilon == pytest.approx(guarantee(together, delta=1e-5).epsilon, rel=5e-3)
    assert stated.epsilon >= guarantee(together, delta=1e-5).epsilon
    assert stated.lower_bound is None
    skellam = Skellam(dimension=1, l2_bound=20.0, share_variance=100.0, shares=5, adjacency="zero-out")
    more = guarantee(Composed(parts=(*parts, (skellam, 1))), delta=1e-5)
    assert more.method == "analytic-gaussian"
    assert more.epsilon > stated.epsilon
    beyond = Composed(parts=(*parts, (replace(skellam, share_variance=1e12, l2_bound=2e6), 1)))
    assert guarantee(beyond, delta=1e-5).method == "rdp"


@pytest.mark.parametrize("law", [DiscreteGaussian, Skellam])
@pytest.mark.parametrize("sampling", [None, PoissonSampling(probability=0.2)])
@pytest.mark.parametrize("accountant", ["best", "rdp"])
def test_the_stream_agrees_with_the_composition_and_charges_overflow(law, sampling, accountant):
    plain = law(dimension=50, l2_bound=30.0, share_variance=400.0, shares=4, adjacency="zero-out", overflow=1e-6)
    mechanism = plain if sampling is None else Subsampled(mechanism=plain, sampling=sampling)
    stream = list(itertools.islice(epsilons(mechanism, delta=1e-5, rounds=12, accountant=accountant), 12))
    bare = law(dimension=50, l2_bound=30.0, share_variance=400.0, shares=4, adjacency="zero-out")
    bare = bare if sampling is None else Subsampled(mechanism=bare, sampling=sampling)
    for count in (1, 3, 9):
        stated = guarantee(times(mechanism, count), delta=1e-5, accountant=accountant).epsilon
        assert stream[count - 1] == pytest.approx(stated, rel=2e-4)
        charged = times(bare, count)
        smaller = guarantee(charged, delta=1e-5 - count * 1e-6, accountant=accountant, with_lower_bound=False).epsilon
        assert stated == pytest.approx(smaller, rel=1e-9)
        assert stated > guarantee(charged, delta=1e-5, accountant=accountant, with_lower_bound=False).epsilon
    assert math.isinf(stream[10])  # 11 times the overflow is more than delta
    with pytest.raises(
        UnsupportedMechanism, match=r"exceeds the uploads of a sum with probability 1.1e-05.*Raise the number"
    ):
        guarantee(times(mechanism, 11), delta=1e-5, accountant=accountant)


@pytest.mark.parametrize("sampling", [None, PoissonSampling(probability=0.0), PoissonSampling(probability=1e-3)])
@pytest.mark.parametrize(
    ("dimension", "variance", "shares"), [(1, 1e18, 1), (10**6, 9.0, 1000), (1, 1.0, 1), (7, 1e6, 10**6)]
)
@pytest.mark.parametrize("rounds", [1, 10_000])
def test_a_number_or_a_clear_refusal_at_the_edges(sampling, dimension, variance, shares, rounds):
    plain = noise(variance, shares, 10.0, dimension)
    mechanism = plain if sampling is None else Subsampled(mechanism=plain, sampling=sampling)
    stated = guarantee(times(mechanism, rounds), delta=1e-6)
    assert 0 <= stated.epsilon < math.inf
    if sampling is not None and sampling.probability == 0:
        assert stated.epsilon == 0


def test_shares_beyond_those_summed_one_by_one_count_too():
    """30,000 shares: not below the whole sum, of which the steps fall with their number."""
    k = np.arange(1.0, 30_000)
    whole = float(discrete_gaussian.lattice_distortion(0.5 * k / (k + 1)).sum())
    assert whole <= discrete_gaussian.shares_distortion(0.5, 30_000) <= 1.001 * whole
