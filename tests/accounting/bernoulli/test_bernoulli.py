"""One upload of coins: the certified bound against dense sampling, enumeration, optimisation and simulation."""

import numpy as np
import pytest
from reference import coin_majorant, product_law
from refusals import refused
from scipy.optimize import minimize

from accounting.bernoulli import channel_bound, channel_rdp, fedpm_bound
from accounting.bernoulli.debias import clipped_mean
from accounting.bernoulli.divergence import divergence
from accounting.errors import InvalidParameter

LOOSE = 1.015  # how far above the exact value the certified bound may be
ROUNDING = 1 - 1e-7  # of the sampled reference, which cancels where moves are tiny

TABLE = [
    (0.2, 10**6, 0.5, 0.25, 8, 16, 1.354e6, 2.371),
    (0.2, 10**6, 1.0, 1.0, 8, 4, 1.354e6, 0.8898),
    (0.2, 10**6, 1.0, 5.0, 32, 0.64, 1.379e6, 0.1465),
    (0.05, 10**6, 1.0, 0.5, 2, 4, 2.893e6, 1.597),
    (0.2, 5, 1.0, 0.5, 8, 16, 6.772, 1.698),
]


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(("c", "d", "l2", "sigma", "order", "gaussian", "floor", "exact"), TABLE)
def test_table(c, d, l2, sigma, order, gaussian, floor, exact):
    bound = float(channel_rdp(order, dimension=d, c=c, noise_std=sigma, l2_sensitivity=l2))
    assert exact * 0.9995 <= bound <= exact * LOOSE
    assert order * l2**2 / (2 * sigma**2) == pytest.approx(gaussian)
    assert float(fedpm_bound(order, 1e9, dimension=d, c=c)) == pytest.approx(floor, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 1e-6, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("c", [0.02, 0.3])
@pytest.mark.parametrize(("d", "l2", "linf"), [(1, 0.3, None), (50, 1.0, None), (10**6, 1.0, None), (10**4, 1.0, 0.05)])
def test_certified_against_dense_sampling(sigma, c, d, l2, linf):
    orders = np.array([1.05, 3.0, 32.0])
    bounds = channel_rdp(orders, dimension=d, c=c, noise_std=sigma, l2_sensitivity=l2, linf_sensitivity=linf)
    for order, bound in zip(orders, bounds, strict=True):
        sampled = coin_majorant.channel(order, d=d, c=c, sigma=sigma, l2=l2, linf=linf)
        if sigma > 0:
            assert bound <= order * l2**2 / (2 * sigma**2)
        assert sampled * ROUNDING <= bound <= sampled * LOOSE


@pytest.mark.slow
def test_huge_orders_and_dimensions():
    for d in (1, 10**6, 10**9):
        for sigma in (0.0, 1e-6, 1e3):
            bound = channel_bound([1.01, 64.0, 1e4], dimension=d, c=0.1, noise_std=sigma, l2_sensitivity=0.5)
            assert np.all(np.isfinite(bound.rdp))
            assert np.all(bound.rdp > 0)
            assert np.all(np.diff(bound.rdp) >= 0)
    # Much noise: the clip's slope squared over four times a coin's variance is all that is left of the Gaussian.
    much = float(channel_rdp(2, dimension=10**6, c=0.1, noise_std=1e3, l2_sensitivity=0.5))
    slope = 0.8 / (1e3 * np.sqrt(2 * np.pi))
    assert much == pytest.approx(2 * 0.25 * slope**2 / 2 / 0.25, rel=0.015)


def neighbours(rng, d, c, l2, linf):
    theta = np.where(rng.random(d) < 0.3, rng.choice([c, 1 - c], d), rng.uniform(c, 1 - c, d))
    move = rng.normal(size=d) * rng.choice([0.01, 1.0], d)
    move *= rng.choice([1.0, rng.random()]) * l2 / np.linalg.norm(move)
    return theta, np.clip(theta + np.clip(move, -linf, linf), c, 1 - c)


@pytest.mark.parametrize("sigma", [0.0, 0.15, 0.6])
@pytest.mark.slow
def test_never_below_enumerated_neighbours(sigma):
    rng = np.random.default_rng(5)
    orders = np.array([1.3, 2.0, 8.0, 50.0])
    for d, c, l2, linf in [(1, 0.1, 0.4, 1.0), (4, 0.2, 0.5, 0.3), (9, 0.05, 1.5, 1.0), (12, 0.3, 0.5, 0.2)]:
        bounds = channel_rdp(orders, dimension=d, c=c, noise_std=sigma, l2_sensitivity=l2, linf_sensitivity=linf)
        for _ in range(40):
            laws = [product_law.law(clipped_mean(x, c=c, noise_std=sigma)) for x in neighbours(rng, d, c, l2, linf)]
            for order, bound in zip(orders, bounds, strict=True):
                assert product_law.renyi(order, *laws) <= bound * (1 + 1e-9)


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(("d", "sigma", "order"), [(3, 0.2, 8.0), (2, 0.0, 2.0), (6, 0.5, 4.0), (8, 0.1, 30.0)])
def test_never_below_what_an_optimiser_finds(d, sigma, order):
    """The worst of many local optima over theta and theta'. For few coordinates the majorant need not be attained."""
    c, l2 = 0.15, 0.6
    bound = float(channel_rdp(order, dimension=d, c=c, noise_std=sigma, l2_sensitivity=l2))

    def cost(x):
        p, q = (np.asarray(clipped_mean(np.clip(part, c, 1 - c), c=c, noise_std=sigma)) for part in np.split(x, 2))
        return -float(coin_majorant.divergence(order, p, q).sum())

    rng = np.random.default_rng(d)
    inside = {"type": "ineq", "fun": lambda x: l2**2 - np.sum((x[:d] - x[d:]) ** 2)}
    found = []
    for _ in range(8):
        start = np.concatenate(neighbours(rng, d, c, l2, 1.0))
        result = minimize(cost, start, method="SLSQP", bounds=[(c, 1 - c)] * 2 * d, constraints=[inside])
        excess = max(1.0, np.linalg.norm(result.x[:d] - result.x[d:]) / l2)
        found.append(-result.fun / excess**2)
    assert 0.9 * bound <= max(found) <= bound * (1 + 1e-6)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    ("c", "sigma", "l2", "order"), [(0.2, 0.25, 3.0, 8.0), (0.1, 0.0, 2.0, 3.0), (0.3, 0.1, 3.5, 2.0)]
)
def test_attained_by_two_kinds_of_coordinates(c, sigma, l2, order):
    """The bound is attained within 2% by 200 coordinates that split the move as the majorant's corners say."""
    d = 200
    step = l2**2 / d
    moves = coin_majorant.moves_up_to(1 - 2 * c, step)
    values, bases, exchanged = coin_majorant.phi(order, c, sigma, moves)
    corners = coin_majorant.hull(moves**2, values)[:, 0]
    small, large = corners[corners <= step * (1 + 1e-12)][-1], corners[corners >= step][0]
    many = 0 if large <= small else int(d * (step - small) / (large - small))
    theta, other = np.zeros(d), np.zeros(d)
    for rows, u in ((slice(0, many), large), (slice(many, d), small)):
        at = int(np.argmin(np.abs(moves**2 - u))) if u > 0 else None
        pair = (0.5, 0.5) if at is None else (bases[at], min(bases[at] + moves[at], 1 - c))
        theta[rows], other[rows] = pair[::-1] if at is not None and exchanged[at] else pair
    assert np.linalg.norm(theta - other) <= l2 * (1 + 1e-9)
    p, q = (np.asarray(clipped_mean(x, c=c, noise_std=sigma)) for x in (theta, other))
    attained = float(coin_majorant.divergence(order, p, q).sum())
    bound = float(channel_rdp(order, dimension=d, c=c, noise_std=sigma, l2_sensitivity=l2))
    assert attained * (1 - 1e-9) <= bound <= attained * 1.02


def test_monotone():
    """In sensitivity, dimension and order; up to the looseness of a certified bound."""
    base = {"dimension": 100, "c": 0.2, "noise_std": 0.2, "l2_sensitivity": 0.7, "linf_sensitivity": 0.2}
    orders = np.array([1.2, 2.0, 5.0, 20.0])
    bound = channel_rdp(orders, **base)
    assert np.all(np.diff(bound) > 0)
    for change in ({"dimension": 400}, {"l2_sensitivity": 1.0}, {"linf_sensitivity": 0.4}):
        assert np.all(channel_rdp(orders, **base | change) * 1.013 >= bound)
    without = channel_rdp(orders, **base | {"linf_sensitivity": None})
    assert np.all(without * 1.013 >= bound)


def test_both_sensitivities_together_help_at_high_orders():
    base = {"dimension": 10**6, "c": 0.1, "noise_std": 0.0, "l2_sensitivity": 1.0}
    spread = channel_rdp([64.0], **base, linf_sensitivity=0.001)
    assert channel_rdp([64.0], **base) > 1.5 * spread


def test_linf_alone():
    d, c, t = 7, 0.1, 0.05
    bound = channel_bound([2.0, 9.0], dimension=d, c=c, noise_std=0.1, linf_sensitivity=t)
    assert bound.by == ("channel-linf", "channel-linf")
    for order, value in zip((2.0, 9.0), bound.rdp, strict=True):
        exact = d * coin_majorant.phi(order, c, 0.1, np.array([t]), bases=5001)[0][0]
        assert exact * ROUNDING <= value <= exact * 1.002
    assert np.all(channel_rdp([2.0], dimension=d, c=c, noise_std=0.1, linf_sensitivity=0) == 0)
    assert np.all(channel_rdp([2.0], dimension=d, c=c, noise_std=0.1, l2_sensitivity=0) == 0)


def test_fedpm_bound():
    assert float(fedpm_bound(5, 100.0, dimension=5, c=0.2)) == pytest.approx(6.6525, abs=5e-5)
    assert float(fedpm_bound(5, 100.0, dimension=5, c=0.2)) + np.log(1e4) / 4 == pytest.approx(8.9551, abs=5e-5)
    assert float(fedpm_bound(5, 3.0, dimension=10**6, c=0.2)) == 3.0  # no amplification at a model's size


@pytest.mark.parametrize(
    "wrong",
    [
        {"orders": 1.0}, {"orders": np.inf}, {"orders": [[2.0]]}, {"dimension": 0}, {"c": 0.5}, {"noise_std": -1},
        {"l2_sensitivity": None}, {"l2_sensitivity": -1}, {"linf_sensitivity": np.nan},
    ],
)  # fmt: skip
def test_refuses(wrong):
    good = {"orders": 2.0, "dimension": 3, "c": 0.1, "noise_std": 0.1, "l2_sensitivity": 0.1} | wrong
    refused(InvalidParameter, "", lambda: channel_bound(good.pop("orders"), **good))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("c", "noise_std"), [(0.1, 0.1), (0.25, 0.3), (0.4, 0.05)])
def test_an_l2_bound_wider_than_the_range_covers_the_whole_range(c, noise_std):
    """Every coordinate may then move from one edge to the other; what that costs is known."""
    orders = np.array([1.5, 2.0, 8.0, 64.0])
    low, high = (float(clipped_mean(theta, c=c, noise_std=noise_std)) for theta in (c, 1 - c))
    moved = np.maximum(divergence(orders, low, high), divergence(orders, high, low))
    bound = channel_rdp(orders, dimension=3, c=c, noise_std=noise_std, l2_sensitivity=10.0)
    assert np.all(bound >= 3 * moved)
    assert np.all(bound <= 1.013 * 3 * moved)
