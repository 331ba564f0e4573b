"""Uploads of known law against enumeration of all their outcomes."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from accounting.errors import InvalidParameter, UnsupportedMechanism
from dpfed.audit import known_laws, thresholds
from dpfed.audit.known_laws import KnownPair, masked_noise, masks, rounded
from dpfed.audit.rejection import reject_claim
from dpfed.errors import ConfigError

DELTA = 1e-5


def enumerated_delta(pair, epsilon):
    """By the law of every outcome."""
    p, q = np.ones(1), np.ones(1)
    for row, other in zip(pair.p, pair.q, strict=True):
        p, q = np.outer(p, row).ravel(), np.outer(q, other).ravel()
    gamma = math.exp(epsilon)
    return max(np.maximum(p - gamma * q, 0).sum(), np.maximum(q - gamma * p, 0).sum())


def enumerated_epsilon(pair, delta):
    return brentq(lambda eps: enumerated_delta(pair, eps) - delta, 0, 200, xtol=1e-12)


@pytest.mark.parametrize(
    ("n", "p", "q", "epsilon"),
    [
        (1000, 0.51, 0.49, 5.749),
        (10_000, 0.505, 0.495, 9.995),
        (100, 0.1, 0.2, 18.82),
        (10_000, 0.1, 0.2, 582.76),
        (10, 0.2, 0.7, 12.527),
    ],
)
def test_like_coordinates_by_their_count(n, p, q, epsilon):
    """The number of ones says all: two binomial laws, here straight from scipy."""
    pair = masks(np.full(n, p), np.full(n, q))
    value = pair.epsilon(delta=DELTA)
    assert pair.is_exact
    assert value == pytest.approx(epsilon, abs=6e-3)
    k = np.arange(n + 1)
    one, other = binom.logpmf(k, n, p), binom.logpmf(k, n, q)
    deltas = [np.sum(np.exp(a) * -np.expm1(np.minimum(value + b - a, 0))) for a, b in ((one, other), (other, one))]
    assert max(deltas) == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(("n", "move"), [(1000, 0.01), (10_000, 0.005)])
def test_the_composition_on_a_grid_is_just_above_the_count(monkeypatch, n, move):
    pair = masks(np.full(n, 0.5 + move), np.full(n, 0.5 - move))
    exact = pair.epsilon(delta=DELTA)
    monkeypatch.setattr(known_laws, "_EXACT_OUTCOMES", 0)
    assert not pair.is_exact
    assert exact * (1 - 1e-11) <= pair.epsilon(delta=DELTA) <= exact * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_unlike_coins_equal_the_enumeration_from_above(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    d = 13
    p = rng.uniform(0.02, 0.98, d)
    pair = masks(p, np.clip(p + rng.normal(0, 0.15, d), 0.01, 0.99))
    exact = enumerated_epsilon(pair, 1e-4)
    assert pair.epsilon(delta=1e-4) == pytest.approx(exact, rel=1e-9)
    monkeypatch.setattr(known_laws, "_EXACT_OUTCOMES", 0)
    assert exact * (1 - 1e-10) <= pair.epsilon(delta=1e-4) <= exact * (1 + 1e-4)
    epsilons = np.array([-3.0, -0.5, 0.0, 0.3, 2.0, 0.9 * exact])
    above = pair.profile()(epsilons) / [enumerated_delta(pair, e) for e in epsilons]
    assert np.all((above >= 1 - 1e-9) & (above <= 1.01))


@pytest.mark.parametrize("seed", range(4))
def test_three_outcomes_equal_the_enumeration_from_above(seed):
    rng = np.random.default_rng(seed)
    tables = rng.dirichlet(np.full(3, 2.0), (2, 8))
    pair = KnownPair(p=tables[0], q=0.6 * tables[0] + 0.4 * tables[1])
    exact = enumerated_epsilon(pair, 1e-3)
    assert exact * (1 - 1e-10) <= pair.epsilon(delta=1e-3) <= exact * (1 + 1e-4)
    assert float(pair.profile()(exact)) == pytest.approx(1e-3, rel=5e-3)


def test_many_unlike_coins_are_equal_to_a_sample_of_their_losses():
    """2,000 different pairs, no closed form: the mean gain over 40,000 uploads, 5 standard errors."""
    rng = np.random.default_rng(0)
    d = 2000
    p = rng.uniform(0.3, 0.7, d)
    pair = masks(p, p + rng.normal(0, 0.3 / math.sqrt(d), d))
    heads, tails = (np.log(pair.p[:, k] / pair.q[:, k]) for k in (1, 0))
    losses = np.concatenate(
        [np.where(rng.random((2000, d), dtype=np.float32) < p, heads, tails).sum(axis=1) for _ in range(20)]
    )
    gains = np.maximum(-np.expm1(1.0 - losses), 0)
    assert float(pair.profile()(1.0)) == pytest.approx(gains.mean(), abs=5 * gains.std() / 200)


def test_a_rare_large_loss_fits_the_grid():
    """Probabilities of 1e-30 against 1e-12: a loss of 41 that hardly ever happens."""
    pair = KnownPair(p=[[1e-30, 0.5, 0.5]] * 3, q=[[1e-12, 0.5, 0.5]] * 3)
    assert 0 <= pair.epsilon(delta=1e-9) < 1e-3


def test_worlds_alike_cost_nothing():
    assert masks([0.0, 0.3, 1.0], [0.0, 0.3, 1.0]).epsilon(delta=DELTA) == 0
    assert rounded([0.2, 1.0], [0.2, 1.0]).epsilon(delta=DELTA) == 0


def test_masked_noise_without_a_floor_has_no_finite_epsilon():
    """An update of zero sends no ones; 100 coordinates at 1e-3 do with probability 1 - 0.999^100 = 0.0952."""
    pair = masked_noise(np.zeros(100), np.full(100, 1e-5), np.full(100, 1e-2))
    assert pair.delta_at_infinity == pytest.approx(1 - 0.999**100, rel=1e-12)
    assert float(pair.profile()(np.inf)) == pytest.approx(pair.delta_at_infinity, rel=1e-6)
    with pytest.raises(UnsupportedMechanism, match=r"no finite epsilon: delta\(inf\) = 0\.09521.*floor"):
        pair.epsilon(delta=DELTA)
    assert pair.epsilon(delta=0.5) == 0
    floored = masked_noise(np.zeros(100), np.full(100, 1e-5), np.full(100, 1e-2), floor=1e-3)
    assert floored.epsilon(delta=DELTA) == 0  # 1e-3 is the floor: the two look alike
    moved = masked_noise(np.zeros(100), np.full(100, 1e-4), np.full(100, 1e-2), floor=1e-3)
    assert moved.delta_at_infinity == 0
    assert 10 < moved.epsilon(delta=DELTA) < 100 * math.log(10)  # finite, and not worth having


@pytest.mark.parametrize("signed", [False, True])
def test_masked_noise_has_the_chances_that_the_upload_draws_with(signed):
    torch = pytest.importorskip("torch")
    from dpfed.compress.masked_noise import mask_probabilities

    rng = np.random.default_rng(1)
    update, noise = rng.normal(0, 0.01, 50), rng.uniform(-0.01, 0.01, 50)
    pair = masked_noise(update, np.zeros(50), noise, signed=signed, floor=0.05)
    drawn = mask_probabilities(torch.tensor(update), torch.tensor(noise), signed=signed, floor=0.05)
    assert pair.p[:, 1] == pytest.approx(drawn.numpy(), abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "common"),
    [(0.2, 0.7, 1.0), (1.25, 1.75, 1.0), (-0.5, -0.25, 1.0), (0.5, 1.5, 0.5), (1.0, 1.5, 1.0), (0.5, 7.5, 0.0)],
)
def test_rounded_levels_are_those_of_stochastic_rounding(x, y, common):
    """P(level) = 1 - distance, and `common` the chance of a level of the other world's."""
    pair = rounded([x], [y])
    levels = [
        math.floor(x),
        math.floor(x) + 1,
        *{math.floor(y), math.floor(y) + 1} - {math.floor(x), math.floor(x) + 1},
    ]
    chance = {v: [max(0.0, 1 - abs(v - level)) for level in levels] for v in (x, y)}
    assert sorted(pair.p[0][pair.p[0] > 0]) == pytest.approx(sorted(c for c in chance[x] if c > 0))
    assert sorted(pair.q[0][pair.q[0] > 0]) == pytest.approx(sorted(c for c in chance[y] if c > 0))
    pairs = sorted(zip(*(chance[v] for v in (x, y)), strict=True))
    kept = [row for row in sorted(zip(pair.p[0], pair.q[0], strict=True)) if any(row)]
    assert kept == [pytest.approx(row) for row in pairs if any(row)]
    assert pair.p[0][pair.q[0] > 0].sum() == pytest.approx(common)


def test_levels_of_several_steps_equal_the_enumeration():
    """Coordinates within one step and exactly on levels, by running over all outcomes."""
    x, y = np.array([0.3, 2.6, -1.4, 0.5]), np.array([0.6, 2.2, -1.7, 0.5])
    pair = rounded(x, y)
    total = [0.0, 0.0]
    for outcome in itertools.product(*(((math.floor(v), math.floor(v) + 1)) for v in x)):
        p, q = (math.prod(max(0.0, 1 - abs(v - level)) for v, level in zip(w, outcome, strict=True)) for w in (x, y))
        total = [total[0] + max(p - 2 * q, 0), total[1] + max(q - 2 * p, 0)]
    assert float(pair.profile()(math.log(2))) == pytest.approx(max(total), rel=1e-9)


def test_a_mask_upload_does_not_reject_its_own_profile_and_rejects_a_smaller_one():
    """The audit of an upload with its own law as the claim: scores are log-likelihood ratios, n = 2000 a world."""
    rng = np.random.default_rng(3)
    d, n = 200, 2000
    p = rng.uniform(0.2, 0.8, d)
    move = rng.normal(0, 0.02, d)
    pair, half = masks(p, p + move), masks(p, p + move / 2)
    heads, tails = (np.log(pair.p[:, k] / pair.q[:, k]) for k in (1, 0))
    scores0, scores1 = (
        np.where(rng.random((n, d)) < ones, heads, tails).sum(axis=1) for ones in (pair.q[:, 1], pair.p[:, 1])
    )
    for claim, rejected in ((pair, False), (half, True)):
        cut = thresholds.claimed_profile(claim.profile(), trials=n, alpha=0.01)
        assert reject_claim(scores0, scores1, claim.profile(), alpha=0.01, thresholds=cut).rejected is rejected


def test_wrong_input_is_refused():
    with pytest.raises(ConfigError, match=r"probabilities in \[0, 1\]"):
        masks([1.2], [0.5])
    with pytest.raises(ConfigError, match="of one shape"):
        masks([0.2, 0.3], [0.5])
    with pytest.raises(ConfigError, match="q: rows must be probabilities"):
        KnownPair(p=[[0.5, 0.5]], q=[[0.5, 0.6]])
    with pytest.raises(ConfigError, match="finite numbers, equally many"):
        rounded([1.0, math.nan], [1.0, 1.0])
    with pytest.raises(ConfigError, match="no entry of the noise 0"):
        masked_noise([0.0], [0.1], [0.0])
    with pytest.raises(InvalidParameter, match="delta="):
        masks([0.2], [0.5]).epsilon(delta=0.0)
