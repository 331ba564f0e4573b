"""Accountant `exact` for coins, and coins of noised probabilities in a sum, against enumeration."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from reference.poisson_binomial import renyi
from reference.shorthand import gaussian, times

from accounting.bernoulli import debias
from accounting.bernoulli.exact import MOST_COINS, channel_epsilon, channel_profile, walk_epsilon
from accounting.bernoulli.sums import aggregate_rdp
from accounting.compose import accountant, rdp, running
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel


def channel(**changes):
    return BernoulliChannel(**({"dimension": 5, "floor": 0.2, "adjacency": "replace-one", "linf_clip": 1.0} | changes))


@pytest.mark.parametrize(
    ("d", "c", "delta"), [(1, 0.4, 0.1), (5, 0.2, 1e-4), (12, 0.1, 1e-3), (30, 0.3, 1e-5), (5, 0.2, 0.3)]
)
def test_over_the_whole_range_it_is_randomised_response(d, c, delta):
    expected = channel_epsilon(delta, p=np.full(d, 1 - c), q=np.full(d, c))
    stated = accountant.guarantee(channel(dimension=d, floor=c), delta=delta, accountant="exact")
    assert stated.method == "exact"
    assert stated.epsilon == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert stated.epsilon <= d * math.log((1 - c) / c) * (1 + 1e-15)


def test_rounds_are_more_coordinates():
    five = accountant.epsilon(times(channel(), 7), delta=1e-5, accountant="exact")
    together = accountant.epsilon(channel(dimension=35), delta=1e-5, accountant="exact")
    assert five == pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize("noise_std", [0.0, 0.3])
def test_no_pair_of_uploads_within_the_bound_is_further_apart(noise_std):
    """Random thetas, moves up to the L-infinity bound in random directions, and the corners: none above the claim."""
    generator = np.random.default_rng(5)
    c, t, d = 0.15, 0.2, 6
    mechanism = BernoulliChannel(dimension=d, floor=c, adjacency="zero-out", linf_clip=t, noise_std=noise_std)
    claim = accountant.epsilon(mechanism, delta=1e-3, accountant="exact")
    worst = 0.0
    corners = [np.where([(trial >> i) & 1 for i in range(d)], c, c + t) for trial in range(2**d)]
    inside = [generator.uniform(c, 1 - c, d) for _ in range(200)]
    pairs = [(start, 2 * c + t - start) for start in corners]
    pairs += [(start, np.clip(start + generator.choice([-t, t], d), c, 1 - c)) for start in inside]
    for start, end in pairs:
        p, q = (np.atleast_1d(debias.clipped_mean(x, c=c, noise_std=noise_std)) for x in (start, end))
        worst = max(worst, channel_epsilon(1e-3, p=p, q=q))
    assert worst <= claim
    if noise_std == 0:
        assert claim == pytest.approx(worst, rel=1e-9)  # attained in corners


def test_a_claim_with_half_the_move_is_broken_by_enumeration():
    """Planted fault: the clip taken for half of what it is."""
    wrong = walk_epsilon(6, 0.15 + 0.1, 0.15, 1e-3)
    p, q = np.full(6, 0.35), np.full(6, 0.15)
    assert float(channel_profile(wrong, p=p, q=q)) > 1e-3


def test_long_walks_lie_above_what_is_attained():
    mechanism = channel(dimension=20_000, floor=0.2, adjacency="zero-out", linf_clip=0.005)
    claim = accountant.epsilon(mechanism, delta=1e-5, accountant="exact")
    attained = channel_epsilon(1e-5, p=np.full(20_000, 0.205), q=np.full(20_000, 0.2))
    assert attained <= accountant.epsilon(mechanism, delta=1e-5) <= claim <= 2 * attained


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("n", "u", "delta"), [(20_000, 0.502, 1e-5), (5_000, 0.52, 1e-6), (200_000, 0.5005, 1e-7)])
def test_walks_by_fourier_transform_against_binomial_laws(n, u, delta):
    """Randomised response has the binomial law of `channel_epsilon`, without a convolution: not below it, and near."""
    exact = channel_epsilon(delta, p=np.full(n, u), q=np.full(n, 1 - u))
    assert exact <= walk_epsilon(n, u, 1 - u, delta) <= exact * 1.001


def test_best_takes_the_exact_law_where_it_is_smaller():
    stated = accountant.guarantee(channel(), delta=1e-4)
    assert stated.method == "exact"
    assert stated.epsilon < accountant.epsilon(channel(), delta=1e-4, accountant="rdp")
    stream = running.epsilons(channel(), delta=1e-4, rounds=3)
    assert [next(stream) for _ in range(3)] == pytest.approx(
        [accountant.epsilon(times(channel(), n), delta=1e-4) for n in (1, 2, 3)], rel=1e-9
    )


@pytest.mark.parametrize(
    "mechanism",
    [
        gaussian(1.0, "zero-out"),
        channel(dimension=MOST_COINS + 1),
        BernoulliAggregate(dimension=2, floor=0.2, adjacency="zero-out", linf_clip=0.1, cohort=3),
    ],
)
def test_exact_refuses_what_it_has_no_law_for(mechanism):
    with pytest.raises(UnsupportedMechanism, match="individually visible Bernoulli uploads"):
        accountant.epsilon(mechanism, delta=1e-5, accountant="exact")


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("noise_std", [0.05, 0.4, 5.0])
def test_noised_coins_in_a_sum_against_enumeration(noise_std):
    """K = 4, d = 2: no allocation of the move and no others' probabilities exceed the bound, below that of no noise."""
    generator = np.random.default_rng(1)
    c, k, move, alpha = 0.1, 4, 0.3, 6.0
    setting = {"cohort": k, "dimension": 2, "c": c, "l2_sensitivity": move}
    claim = float(aggregate_rdp(alpha, noise_std=noise_std, **setting))
    assert claim <= float(aggregate_rdp(alpha, **setting))
    worst = 0.0
    for trial in range(150):
        total = 0.0
        angle = generator.uniform(0, math.pi / 2)
        for step in (move * math.cos(angle), move * math.sin(angle)):
            others = generator.choice([c, 1 - c], k - 1) if trial % 2 else generator.uniform(c, 1 - c, k - 1)
            start = generator.choice([c, (1 - step) / 2, generator.uniform(c, 1 - c - step)])
            means = debias.clipped_mean(np.append(others, [start, start + step]), c=c, noise_std=noise_std)
            total += renyi(alpha, [*means[:-2], means[-1]], means[:-1])
        worst = max(worst, total)
    assert worst <= claim
    assert claim < 1.6 * worst + 1e-6


def test_the_ledgers_description_keeps_the_noise():
    coins = BernoulliAggregate(dimension=2, floor=0.2, adjacency="zero-out", linf_clip=0.1, cohort=3, noise_std=0.3)
    assert coins.to_dict()["noise_std"] == 0.3
    assert float(rdp.curve(coins, 4.0)) < float(rdp.curve(replace(coins, noise_std=0.0), 4.0))


@pytest.mark.parametrize("delta", [1e-11, 1e-9])
@pytest.mark.parametrize(("n", "u"), [(4, 0.9), (60, 0.55), (1000, 0.505)])
def test_short_walks_are_exact_at_the_smallest_delta(n, u, delta):
    exact = channel_epsilon(delta, p=np.full(n, u), q=np.full(n, 1 - u))
    assert exact <= walk_epsilon(n, u, 1 - u, delta) * (1 + 1e-12)
    assert walk_epsilon(n, u, 1 - u, delta) <= exact * 1.01


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("n", "u", "v", "delta"), [(40, 1 - 1e-12, 1e-12, 1e-5), (200, 0.99, 0.01, 1e-5), (40, 0.2, 0.01, 0.5)]
)
def test_walks_whose_second_law_underflows(n, u, v, delta):
    """Losses beyond 745: e^-loss is 0 in floating point. By multinomials in 60 digits; sought by bisection."""
    with mpmath.workdps(60):
        u, v, loss = mpmath.mpf(u), mpmath.mpf(v), mpmath.log(mpmath.mpf(u) / mpmath.mpf(v))
        law = [mpmath.fsum(_ways(n, up, up - k) * u**up * v ** (up - k) * (1 - u - v) ** (n - 2 * up + k)
                           for up in range(k, (n + k) // 2 + 1)) for k in range(1, n + 1)]  # fmt: skip
        low, high = mpmath.mpf(0), n * loss
        for _ in range(120):
            middle = (low + high) / 2
            gained = mpmath.fsum(
                p * (1 - mpmath.exp(middle - k * loss)) for k, p in enumerate(law, 1) if k * loss > middle
            )
            low, high = (low, middle) if gained <= delta else (middle, high)
        found = walk_epsilon(n, float(u), float(v), delta)
        assert float(high) * (1 - 1e-15) <= found <= float(high) * (1 + 1e-9)


def _ways(n, up, down):
    return mpmath.binomial(n, up) * mpmath.binomial(n - up, down)


@pytest.mark.parametrize("c", [0.1, 0.3, 0.45])
def test_at_no_delta_it_is_the_pure_cap_and_not_below_by_rounding(c):
    claim = accountant.epsilon(channel(dimension=1, floor=c), delta=1e-300, accountant="exact")
    cap = math.log1p(-c) - math.log(c)  # d log((1-c)/c) of one coin
    assert cap * (1 - 1e-15) <= claim <= cap * (1 + 1e-11)
