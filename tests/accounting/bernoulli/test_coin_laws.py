"""Laws of sums of coins at the ends, against their moments: also where most of the outcomes underflow."""

import numpy as np
import pytest
from reference import poisson_binomial

from accounting.bernoulli.sums import DistributionCache

BOXES = [(0, 0), (699, 699), (350, 350), (0, 200), (500, 699)]


def check(mass, tilt, j0, j1, cohort, c):
    """Sum of j0 coins at 1-c and the others, but for those left out, at c: a law; a move of one coin adds its size."""
    at = np.arange(len(mass))  # from the first column of the window: only differences matter below
    mean = mass @ at
    assert mass.sum() == pytest.approx(1, rel=1e-11)
    assert mass @ (at - mean) ** 2 == pytest.approx((cohort - (j1 - j0)) * c * (1 - c), rel=1e-9)
    assert mass @ tilt == pytest.approx(0, abs=1e-9)
    assert (mass * tilt) @ (at - mean) == pytest.approx(1, rel=1e-9)


def only_window(laws, j0, j1):
    return laws.window(laws.index(np.array([j0]), np.array([j1])))


@pytest.mark.parametrize("c", [0.02, 0.1, 0.45])
def test_windows_hold_all_the_mass(c):
    laws = DistributionCache(700, c)
    j0, j1 = np.array(BOXES).T
    index = laws.index(j0, j1)
    for row, box in zip(index, BOXES, strict=True):
        mass, tilt = laws.window(np.array([row]))
        check(mass[0], tilt[0], *box, 700, c)
    for mass, tilt, box in zip(*laws.window(index), BOXES, strict=True):
        check(mass, tilt, *box, 700, c)


def test_windows_leave_out_what_underflows():
    laws = DistributionCache(700, 0.02)
    assert laws.window(laws.index(np.array([0]), np.array([0])))[0].shape[1] < 350
    assert laws.window(laws.index(np.array([699]), np.array([699])))[0].shape[1] < 350


def test_laws_are_made_once():
    laws = DistributionCache(9, 0.2)
    first = laws.index(np.array([0, 3, 0]), np.array([2, 3, 2]))
    assert np.array_equal(first, laws.index(np.array([0, 3, 0]), np.array([2, 3, 2])))
    assert len(laws.mass) == 2


@pytest.mark.parametrize(("j0", "j1"), [(0, 0), (3, 7), (9, 9), (0, 9), (4, 4)])
def test_small_laws_equal_enumeration(j0, j1):
    c, cohort = 0.2, 10
    others = poisson_binomial.law([1 - c] * j0 + [c] * (cohort - 1 - j1))
    expected = np.convolve(others, [1 - c, c])
    moved = np.convolve(others, [-1.0, 1.0])
    mass, tilt = (part[0] for part in only_window(DistributionCache(cohort, c), j0, j1))
    assert mass == pytest.approx(expected, rel=1e-12, abs=0)
    assert mass * tilt == pytest.approx(moved, rel=1e-11, abs=1e-15)


def test_memory_grows_with_the_root_of_the_cohort():
    small, large = DistributionCache(10_000, 0.1), DistributionCache(1_000_000, 0.1)
    for laws in (small, large):
        laws.index(np.array([0, laws.cohort - 1]), np.array([0, laws.cohort - 1]))
    assert large.mass.shape[1] < 11 * small.mass.shape[1] < 11 * 2_500


def test_new_laws_may_be_wider_than_those_held():
    laws = DistributionCache(700, 0.1)
    first = laws.index(np.array([0]), np.array([600]))
    narrow = laws.window(first)
    wide = laws.index(np.array([0, 0, 300]), np.array([0, 600, 300]))
    assert wide[1] == first[0]
    assert laws.window(wide)[0].shape[1] > narrow[0].shape[1]
    for again, before in zip(laws.window(first), narrow, strict=True):
        assert np.array_equal(again, before)
