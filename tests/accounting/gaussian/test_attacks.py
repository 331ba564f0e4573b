"""Moments of the loss that the named neighbours show: against closed forms and adaptive quadrature."""

import itertools
import math

import pytest
from reference.mixtures import log_density
from reference.shorthand import fixed, poisson
from scipy.integrate import quad

from accounting.gaussian.attacks import AttackPair, attack_pairs


def moments(pair):
    """Mean and variance of log p/q under p, straight from the definition."""

    def power(n):
        def integrand(x):
            loss = float(log_density(list(pair.p), x) - log_density(list(pair.q), x))
            return math.exp(float(log_density(list(pair.p), x))) / math.sqrt(2 * math.pi) * loss**n

        means = sorted({m for _, m in (*pair.p, *pair.q)})
        edges = [means[0] - 12, *means, means[-1] + 12]
        return math.fsum(quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(edges))

    return power(1), power(2) - power(1) ** 2


@pytest.mark.parametrize("shift", [1e-3, 0.5, 3.0, 10.0, 40.0])
def test_one_shift_has_the_moments_of_a_gaussian(shift):
    """N(s, 1) against N(0, 1): the loss s x - s^2/2 has mean s^2/2 and variance s^2."""
    mean, variance = AttackPair(p=((1.0, shift),), q=((1.0, 0.0),)).loss_moments()
    assert mean == pytest.approx(shift**2 / 2, rel=1e-3)
    assert variance == pytest.approx(shift**2, rel=1e-3)


@pytest.mark.parametrize(
    "mechanism",
    [
        poisson(0.1, 1.0), poisson(0.5, 0.25), poisson(0.02, 4.0, "replace-one"),
        fixed(10, 100, 1.0), fixed(30, 100, 0.5, "zero-out"),
    ],
)  # fmt: skip
def test_mixtures_have_the_moments_of_their_definition(mechanism):
    for pair in attack_pairs(mechanism):
        assert pair.loss_moments() == pytest.approx(moments(pair), rel=0.01)


@pytest.mark.parametrize("sigma", [0.25, 1.0, 4.0])
def test_a_client_moves_the_sum_by_its_clip_and_no_further(sigma):
    """In units of the noise a vector of the clip norm is 1/sigma long: shown whole, in every kind of round."""
    adjacencies = [(poisson(0.1, sigma, one)) for one in ("add-remove", "zero-out", "replace-one")]
    for mechanism in (*adjacencies, fixed(1, 9, sigma), fixed(1, 9, sigma, "zero-out")):
        for pair in attack_pairs(mechanism):
            assert [sum(weight for weight, _ in law) for law in (pair.p, pair.q)] == pytest.approx([1, 1])
            assert max(abs(mean) for _, mean in (*pair.p, *pair.q)) == pytest.approx(1 / sigma, rel=1e-12)
