"""The bounds of single boxes: never below the function anywhere inside. A wrong weight or chord shows here first."""

import numpy as np
import pytest
from reference import coin_majorant, poisson_binomial

from accounting.bernoulli import channel as coin_cells
from accounting.bernoulli.channel import _Cells
from accounting.bernoulli.majorant import second_order_bound, supremum_above_chord
from accounting.bernoulli.sums import SumDivergences

pytestmark = pytest.mark.slow_but_one_in(3)


def boxes(rng, count, c):
    """Random boxes of all sizes, many of them at the ends."""
    a0 = np.where(rng.random(count) < 0.2, c, rng.uniform(c, 1 - c, count))
    a1 = np.minimum(a0 + (1 - 2 * c) * 10 ** rng.uniform(-4, 0, count), 1 - c)
    t0 = np.where(rng.random(count) < 0.2, 0, (1 - c - a0) * 10 ** rng.uniform(-2, 0, count))
    t1 = t0 + (1 - 2 * c) * 10 ** rng.uniform(-3, 0, count)
    return np.stack([a0, t0], axis=1), np.stack([a1, np.minimum(t1, 1 - 2 * c)], axis=1)


def shortfall(c, sigma, seed=0, count=1500):
    """The most by which a bound falls below the function inside its box, over random boxes, orders and slopes."""
    rng = np.random.default_rng(seed)
    alpha = np.array([1.1, 2.0, 2.5, 8.0, 30.0])
    slope = alpha * 10 ** rng.uniform(-1, 1, len(alpha))
    low, high = boxes(rng, count, c)
    problem = rng.integers(0, len(alpha), count)
    upper = _Cells(alpha, slope, c, sigma).bound(problem, low, high)
    worst = -np.inf
    for _ in range(60):
        share = np.where(rng.random((count, 2)) < 0.2, rng.integers(0, 2, (count, 2)), rng.random((count, 2)))
        a, t = (low + share * (high - low)).T
        t = np.minimum(t, 1 - c - a)
        inside = t >= low[:, 1]
        p, q = (coin_majorant.mean(x, c, sigma) for x in (a, np.minimum(a + t, 1 - c)))
        value = coin_majorant.divergence(alpha[problem], p, q) - slope[problem] * t * t
        worst = max(worst, np.max((value - upper)[inside]))
    return worst


@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.2, 3.0])
@pytest.mark.parametrize("c", [0.01, 0.2, 0.45])
def test_bound_of_every_box(c, sigma):
    assert shortfall(c, sigma) < 1e-11


def test_boxes_shrink_to_their_values():
    c, sigma = 0.1, 0.3
    cells = _Cells(np.array([5.0]), np.array([4.0]), c, sigma)
    low, width = np.array([[0.15, 0.3]]), 1e-5
    upper = cells.bound(np.array([0]), low, low + width)[0]
    p, q = coin_majorant.mean(0.15, c, sigma), coin_majorant.mean(0.45, c, sigma)
    assert upper == pytest.approx(coin_majorant.divergence(5.0, p, q) - 4 * 0.09, abs=2e-3)


def no_maximum(self, alpha, p0, p1, step):
    """The weight A/3 + B/6: below the truth where the far end bends less."""
    q = np.minimum(p1 + step, self.top)
    near, far = 1 / p1 + 1 / (1 - p1), (p1 / q) ** alpha / q + ((1 - p1) / (1 - q)) ** alpha / (1 - q)
    return near / 3 + far / 6


def capped(self, a0, a1, t, steepest, beyond=0.0, original=_Cells._largest_step):
    return original(self, a0, a1, t, steepest, 0.0)


def half(self, theta):
    return np.full(len(theta), 0.5)


def noisier(theta, *, c, noise_std):
    return coin_majorant.mean(theta, c, noise_std * 1.05)


def one_side(self, problem, low, high, original=_Cells.bound):
    return np.where(low[:, 0] >= 0.5, -np.inf, original(self, problem, low, high))


FAULTS = {
    "no maximum in the weight": (_Cells, "_second_order_weight", no_maximum),
    "the slope of g forgotten": (_Cells, "_slope", half),
    "chords capped at the top": (_Cells, "_largest_step", capped),
    "too much noise assumed": (coin_cells, "clipped_mean", noisier),
    "one direction over bases below 1/2 only": (_Cells, "bound", one_side),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(monkeypatch, fault):
    owner, name, wrong = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    assert max(shortfall(0.1, 0.2), shortfall(0.1, 0.02)) > 1e-6


@pytest.mark.parametrize(("cohort", "c"), [(2, 0.1), (5, 0.02), (9, 0.2), (40, 0.3)])
def test_boxes_of_sums(cohort, c):
    """Random ranges of j and t, both directions: not below any law inside."""
    rng = np.random.default_rng(cohort)
    alpha = np.array([1.2, 2.0, 2.6, 8.0, 30.0])
    slope = alpha / cohort * 10 ** rng.uniform(-1, 1, len(alpha))
    count, problem = 120, rng.integers(0, len(alpha), 120)
    j0 = rng.integers(0, cohort, count)
    j1 = np.minimum(j0 + rng.integers(0, 1 + cohort // 3, count), cohort - 1)
    t0 = np.where(rng.random(count) < 0.3, 0, rng.uniform(0, 1 - 2 * c, count))
    t1 = t0 + (1 - 2 * c - t0) * 10 ** rng.uniform(-2, 0, count)
    direction = rng.integers(0, 2, count)
    low, high = np.stack([j0 - 0.5, direction, t0], axis=1), np.stack([j1 + 0.5, direction, t1], axis=1)
    upper, attained = SumDivergences(cohort, c, alpha)._evaluate(problem, low, high, slope)
    for row in range(count):
        for share in (0.0, 0.3, rng.random(), 1.0):
            j, t = int(rng.integers(j0[row], j1[row] + 1)), t0[row] + share * (t1[row] - t0[row])
            others = [1 - c] * j + [c] * (cohort - 1 - j)
            pair = [[*others, c], [*others, c + t]]
            order, s = alpha[problem[row]], slope[problem[row]]
            value = poisson_binomial.renyi(order, *(pair[::-1] if direction[row] else pair)) - s * t * t
            assert value <= upper[row] + 1e-11
            if j0[row] == j1[row] and share == 1.0:
                assert attained[row] == pytest.approx(value, abs=1e-11)


def test_above_chord_against_a_grid():
    rng = np.random.default_rng(3)
    n = 400
    alpha, slope = 1 + 10 ** rng.uniform(-2, 2, n), 10 ** rng.uniform(-2, 3, n)
    t0, f0 = rng.uniform(0, 0.5, n), 10 ** rng.uniform(-6, 3, n)
    t1, f1 = t0 + rng.uniform(0.01, 0.5, n), f0 * (1 + 10 ** rng.uniform(-3, 3, n))
    share = np.linspace(0, 1, 2001)[:, None]
    t, f = t0 + share * (t1 - t0), f0 + share * (f1 - f0)
    grid = (np.log1p(f) / (alpha - 1) - slope * t * t).max(axis=0)
    found = supremum_above_chord(alpha, slope, t0, t1, f0, f1)
    assert np.all(found >= grid - 1e-12 * np.abs(grid))
    assert found == pytest.approx(grid, rel=1e-4, abs=1e-3)


SEARCHES = [(0.15, 0.0, 1.0), (0.1, 0.2, 1.0), (0.3, 0.02, 1.0), (0.1, 0.3, 0.1), (0.45, 1.0, 1.0)]


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(("c", "sigma", "share"), SEARCHES)
@pytest.mark.parametrize("steepness", [0.0, 0.5, 0.9])
def test_the_largest_of_all_moves_is_found(c, sigma, share, steepness):
    """Between what a dense grid attains and 1% more, for slopes that put the best move at the end or inside, and by a
    search of thousands of boxes, not of hundreds of thousands."""
    alpha, farthest = np.array([1.5, 4.0, 30.0]), share * (1 - 2 * c)
    moves = np.unique([*np.geomspace(1e-3, 1, 60) * farthest, *np.linspace(0.02, 1, 60) * farthest])
    values = np.array([coin_majorant.phi(order, c, sigma, moves)[0] for order in alpha])
    slope = steepness * values[:, -1] / farthest**2
    attained = (values - slope[:, None] * moves**2).max(axis=1)
    found = coin_cells.largest_divergence(alpha, slope, c, sigma, farthest, attained * 0.009, 12_000)
    assert np.all(found >= attained * (1 - 1e-7))
    assert np.all(found <= attained * 1.01)


def test_nobody_can_move_not_at_all():
    assert np.all(coin_cells.largest_divergence(np.array([2.0]), np.zeros(1), 0.1, 0.1, 0.0, np.zeros(1), 9) == 0)


@pytest.mark.parametrize("sigma", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("c", [0.05, 0.3])
def test_a_slope_above_half_the_information_leaves_nothing_of_small_moves(c, sigma):
    """For small moves t the divergence is alpha/2 I t^2, I the Fisher information of the noised coin at its base."""
    alpha, a = np.array([1.2, 2.0, 2.5, 8.0, 30.0]), c + (1 - 2 * c) * np.array([0.0, 0.1, 0.5, 0.9])
    width = 1e-7
    p, ahead = coin_majorant.mean(a, c, sigma), coin_majorant.mean(a + width, c, sigma)
    information = ((ahead - p) / width) ** 2 / (p * (1 - p))
    order, base = (grid.ravel() for grid in np.indices((len(alpha), len(a))))
    low = np.stack([a[base], np.zeros(len(base))], axis=1)
    high = np.stack([a[base] + 1e-6, np.full(len(base), 1e-5)], axis=1)
    slope = alpha[order] / 2 * information[base]
    enough = _Cells(alpha[order], slope * 1.02, c, sigma).bound(np.arange(len(base)), low, high)
    assert np.all(enough <= slope * 1e-14)
    too_low = _Cells(alpha[order], slope * 0.98, c, sigma).bound(np.arange(len(base)), low, high)
    assert np.all(too_low >= slope * 0.0199e-10)


@pytest.mark.parametrize("sigma", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("high", [0.3, 0.5, 0.8, 0.9])
def test_how_much_the_mean_bends_downwards(sigma, high):
    """At least the largest -g'' up to `high`, by second differences; and near it where the other end is far."""
    c, h = 0.1, 1e-4
    theta = np.linspace(c, high, 400)
    g = [coin_majorant.mean(theta + shift, c, sigma) for shift in (-h, 0, h)]
    largest = np.max(2 * g[1] - g[0] - g[2]) / h**2
    found = _Cells(np.array([2.0]), np.array([1.0]), c, sigma)._largest_curvature(np.array([high]))[0]
    assert found >= largest * (1 - 1e-4) - 1e-5
    assert found <= largest * 1.01 + 1e-5 or sigma > 0.05 or high < 0.8


def random_cells(c, sigma, count=500):
    """Cells of random orders and slopes, and random boxes."""
    rng = np.random.default_rng(8)
    alpha = 1 + 10 ** rng.uniform(-1, 1.5, count)
    low, high = boxes(rng, count, c)
    return _Cells(alpha, alpha * 10 ** rng.uniform(-2, 2, count), c, sigma), low, high


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_what_no_coin_can_be_does_not_loosen_a_box(sigma):
    """Bases a > 1 - c - t0 have no move in the box: with them and without, the bound is the same."""
    cells, low, high = random_cells(0.1, sigma)
    cut = high.copy()
    cut[:, 0] = np.minimum(high[:, 0], 1 - 0.1 - low[:, 1])
    stick_out = (cut[:, 0] < high[:, 0]) & (cut[:, 0] >= low[:, 0])
    assert stick_out.sum() > 20
    problem = np.arange(len(low))
    assert np.array_equal(cells.bound(problem, low, high)[stick_out], cells.bound(problem, low, cut)[stick_out])


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_values_of_a_box_are_those_of_pairs_inside_it(sigma):
    """Attained by two means from [c, 1-c], or nothing: at a middle or a corner beyond 1 - c there are no such coins."""
    c = 0.1
    cells, low, high = random_cells(c, sigma)
    found = cells.value(np.arange(len(low)), low, high)
    (a, t), (a0, t1) = (low + high).T / 2, (low[:, 0], high[:, 1])
    reached = np.full(len(low), -np.inf)
    for base, move in ((a, t), (a0, t1)):
        p, q = (coin_majorant.mean(np.minimum(x, 1 - c), c, sigma) for x in (base, base + move))
        there = coin_majorant.divergence(cells.alpha, p, q) - cells.slope * move**2
        reached = np.where(base + move <= 1 - c, np.maximum(reached, there), reached)
    assert np.any(np.isinf(reached))
    assert np.any(np.isfinite(reached))
    assert found == pytest.approx(reached, rel=1e-9, abs=1e-12)


def test_the_second_order_bound_is_the_largest_over_its_moves():
    """Beside a grid of moves, at slopes that put the best one at either end of the box, inside and beyond it."""
    cells, low, high = random_cells(0.1, 0.3)
    alpha, slope, t0, t1 = cells.alpha, cells.slope, low[:, 1], np.maximum(high[:, 1], low[:, 1])
    p, step, steepest = np.full(len(t0), 0.4), np.full(len(t0), 0.2), np.full(len(t0), 0.8)
    weight = cells._second_order_weight(alpha, p, p, step) * steepest**2
    w = alpha * (alpha - 1) * weight
    square = (t0 + np.linspace(0, 1, 2001)[:, None] * (t1 - t0)) ** 2
    values = np.log1p(w * square) / (alpha - 1) - slope * square
    assert len(np.unique(np.argmax(values, axis=0))) > 30
    largest = values.max(axis=0)
    found = second_order_bound(alpha, slope, weight, t0, t1)
    assert np.all(found >= largest - 1e-12 * np.abs(largest))
    assert found == pytest.approx(largest, rel=1e-4, abs=1e-5)
