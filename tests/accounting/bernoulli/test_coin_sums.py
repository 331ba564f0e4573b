"""The moment of one move of a sum of coins: against its definition in 40 digits, for small and for large moves."""

import mpmath
import numpy as np
import pytest
from reference import poisson_binomial

from accounting.bernoulli import sums
from accounting.bernoulli.sums import SumDivergences, _moments

pytestmark = pytest.mark.slow_but_one_in(3)

MASS = np.array([0.1, 0.25, 0.3, 0.2, 0.15])
TILT = np.array([-0.9, -0.4, 0.1, 0.5, 0.0])
TILT = TILT - MASS @ TILT  # sum of mass times tilt is 0


def moment(alpha, t, direction):
    """sum P^a Q^(1-a) - 1 for the laws mass and mass (1 + t tilt); direction 1 has the moved one as P."""
    power = mpmath.mpf(alpha) if direction == 1 else 1 - mpmath.mpf(alpha)
    with mpmath.workdps(40):
        terms = [mpmath.mpf(m) * (1 + mpmath.mpf(t) * mpmath.mpf(x)) ** power for m, x in zip(MASS, TILT, strict=True)]
        # In exact numbers neither sum is what rounding made of it: take both off to first order.
        first = [mpmath.mpf(m) * (1 + power * mpmath.mpf(t) * mpmath.mpf(x)) for m, x in zip(MASS, TILT, strict=True)]
        return float(mpmath.fsum(terms) - mpmath.fsum(first))


def computed(alpha, t, direction):
    total, weight = _moments(np.array([alpha]), MASS[None], TILT[None], np.array([t]), direction)
    return float(total[0]), float(weight[0])


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("alpha", [1.25, 2.0, 2.5, 2.9, 4.0, 30.0])
@pytest.mark.parametrize("t", [1e-7, 1e-4, 1e-2, 0.3, 1.0])
def test_the_moment_is_what_it_is_defined_as(alpha, t, direction):
    total, weight = computed(alpha, t, direction)
    assert total == pytest.approx(moment(alpha, t, direction), rel=1e-9, abs=0)
    for smaller in t * np.array([0.01, 0.1, 0.5, 0.9, 1.0]):
        assert moment(alpha, smaller, direction) <= alpha * (alpha - 1) * weight * smaller**2 * (1 + 1e-9)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("alpha", [1.25, 2.0, 2.9, 4.5, 8.0, 30.0])
def test_the_largest_moves_that_are_summed_by_series(alpha, direction):
    """Just below |z| max(1, |e|) = 1e-3, where what the series leaves out is largest: all its terms count."""
    t = 0.999e-3 / np.abs(TILT).max() / max(1.0, alpha if direction == 1 else alpha - 1)
    assert computed(alpha, t, direction)[0] == pytest.approx(moment(alpha, t, direction), rel=1e-12, abs=0)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("alpha", [1.25, 2.5, 4.0, 30.0])
def test_the_weight_of_a_small_move_is_half_the_variance_of_the_tilt(alpha, direction):
    _, weight = computed(alpha, 1e-6, direction)
    assert weight == pytest.approx(MASS @ TILT**2 / 2, rel=1e-3)


def test_rows_of_a_block_do_not_mix():
    """Many laws, orders and moves at once are as many single ones."""
    laws = np.array([MASS, MASS[::-1]]), np.array([TILT, -TILT[::-1] / 2])
    alpha, t = np.array([2.5, 7.0]), np.array([0.3, 1e-3])
    for direction in (0, 1):
        together = _moments(alpha, *laws, t, direction)
        for row in (0, 1):
            alone = _moments(alpha[row : row + 1], laws[0][[row]], laws[1][[row]], t[row : row + 1], direction)
            assert [part[row] for part in together] == pytest.approx([float(part[0]) for part in alone], rel=1e-14)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("alpha", [1.25, 2.5, 2.9, 4.0])
@pytest.mark.parametrize("skew", [0.02, 0.5, 0.98])
def test_the_weight_holds_for_laws_skewed_to_either_side(alpha, direction, skew):
    """Two outcomes, tilted by 1/mass: the moment of every smaller move stays below alpha (alpha-1) w t^2."""
    mass = np.array([skew, 1 - skew])
    tilt = np.array([1 - skew, -skew]) / max(skew, 1 - skew)
    tilt -= mass @ tilt
    for t in (0.1, 0.6, 0.9):
        _, weight = _moments(np.array([alpha]), mass[None], tilt[None], np.array([t]), direction)
        for move in t * np.linspace(0.05, 1, 20):
            p, q = mass * (1 + move * tilt), mass
            if direction == 0:
                p, q = q, p
            exact = np.sum(p**alpha * q ** (1 - alpha)) - 1
            assert exact <= alpha * (alpha - 1) * weight[0] * move**2 * (1 + 1e-6)


@pytest.mark.parametrize(("cohort", "c"), [(2, 0.1), (5, 0.3), (9, 0.02)])
def test_sampled_is_the_larger_end_and_direction(cohort, c):
    """All other coins at one end or all at the other, either world first: multiplied out."""
    alpha, t = np.array([1.5, 4.0, 30.0]), (1 - 2 * c) * np.array([0.05, 0.5, 1.0])
    found = SumDivergences(cohort, c, alpha).attained(t)
    for i, order in enumerate(alpha):
        for k, move in enumerate(t):
            pairs = [([end] * (cohort - 1) + [c], [end] * (cohort - 1) + [c + move]) for end in (c, 1 - c)]
            values = [poisson_binomial.renyi(order, *pair[::way]) for pair in pairs for way in (1, -1)]
            assert found[i, k] == pytest.approx(max(values), rel=1e-9)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0, 30.0])
def test_the_weight_is_never_below_by_rounding(alpha):
    """A symmetric law: the moment is alpha (alpha-1)/2 t^2 but for t^4, so the weight has no room but its own."""
    for direction in (0, 1):
        _, weight = _moments(
            np.array([alpha]), np.full((1, 2), 0.5), np.array([[1.0, -1.0]]), np.array([1e-9]), direction
        )
        with mpmath.workdps(60):
            power = mpmath.mpf(alpha) if direction else 1 - mpmath.mpf(alpha)
            t = mpmath.mpf(1e-9)
            exact = ((1 + t) ** power + (1 - t) ** power) / 2 - 1
            assert exact <= mpmath.mpf(alpha) * (mpmath.mpf(alpha) - 1) * mpmath.mpf(float(weight[0])) * t**2


@pytest.mark.parametrize(("cohort", "c"), [(2, 0.1), (5, 0.3), (30, 0.05)])
def test_a_slope_above_half_the_information_leaves_nothing_of_small_moves(cohort, c):
    """For small moves t the divergence is alpha/2 I t^2, I the Fisher information of the sum, by differences."""
    alpha = np.array([1.5, 2.5, 8.0])
    for j in (0, cohort // 2, cohort - 1):
        others = [1 - c] * j + [c] * (cohort - 1 - j)
        p, ahead = poisson_binomial.law([*others, c]), poisson_binomial.law([*others, c + 1e-6])
        information = np.sum(((ahead - p) / 1e-6) ** 2 / p)
        for direction in (0, 1):
            low, high = (np.tile([[j + side, direction, t]], (3, 1)) for side, t in ((-0.5, 0.0), (0.5, 1e-5)))
            for share, nothing in ((1.02, True), (0.98, False)):
                slope = share * alpha / 2 * information
                upper, _ = SumDivergences(cohort, c, alpha)._evaluate(np.arange(3), low, high, slope)
                assert np.all((upper <= slope * 1e-14) == nothing)


def test_different_rows_with_one_mixed_number_are_not_taken_for_equal(monkeypatch):
    def bound():
        found = SumDivergences(30, 0.2, np.array([2.0, 5.0, 17.0]))
        return found.supremum_minus_slope(np.array([0.1, 0.5, 2.0]), 0.3, np.full(3, 1e-6), 10**5)

    right = bound()
    monkeypatch.setattr(sums, "_MIXERS", np.zeros_like(sums._MIXERS))  # every row has the number 0
    np.testing.assert_array_equal(bound(), right)
