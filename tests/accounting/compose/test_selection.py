"""The best of a random number of runs: exact laws of small mechanisms stay below, and dp-accounting agrees."""

import math

import numpy as np
import pytest

from accounting import Composed, PoissonSampling, Subsampled
from accounting.compose import accountant, selection
from accounting.compose.selection import RandomRuns
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import BernoulliAggregate, Gaussian

ORDERS = np.array([1.5, 2.0, 3.0, 5.0, 9.0, 20.0])
GOLDEN = Composed(
    parts=(
        (
            Subsampled(
                mechanism=Gaussian(noise_multiplier=1.4, adjacency="add-remove"),
                sampling=PoissonSampling(probability=100 / 6000),
            ),
            180,
        ),
    )
)
LAWS = [
    RandomRuns(mean=7.0, law="poisson"),
    RandomRuns(mean=7.0, eta=1.0),
    RandomRuns(mean=7.0),
    RandomRuns(mean=30.0, law="negative-binomial", eta=-0.5),
]


def divergence(p, q, orders):
    return np.array([np.log((p**a * q ** (1 - a)).sum()) / (a - 1) for a in orders])


def best_of(law, runs):
    """The law of the largest outcome of K draws; nothing, as the first outcome, where K = 0."""
    below = np.append(0.0, np.cumsum(law))
    if runs.law == "poisson":
        reached = np.exp(runs.mean * (below - 1))
        return np.append(reached[0], np.diff(reached))
    gamma, eta = runs.gamma, runs.eta
    if eta == 0:
        return np.diff(np.log1p(-(1 - gamma) * below) / math.log(gamma))
    return np.diff(((1 - (1 - gamma) * below) ** -eta - 1) / (gamma**-eta - 1))


@pytest.mark.parametrize("runs", LAWS)
def test_exact_laws_of_the_best_stay_below(runs):
    rng, nearest = np.random.default_rng(0), 0.0
    for _ in range(200):
        p = rng.dirichlet(np.full(4, 2.0))
        q = p * np.exp(rng.uniform(-0.4, 0.4, 4))
        q /= q.sum()
        for one, other in ((p, q), (q, p)):
            curve = np.maximum(divergence(p, q, ORDERS), divergence(q, p, ORDERS))
            exact = divergence(best_of(one, runs), best_of(other, runs), ORDERS)
            bound = selection.renyi(ORDERS, curve, runs)
            assert np.all(exact <= bound * (1 + 1e-9))
            nearest = max(nearest, float((exact / bound).max()))
    assert nearest > 0.05


def test_one_runs_own_curve_is_refuted():
    """Planted: the best costs no more than one run."""
    p, q = np.array([0.5, 0.4, 0.1]), np.array([0.53, 0.42, 0.05])
    exact = divergence(best_of(p, LAWS[1]), best_of(q, LAWS[1]), ORDERS)
    assert np.any(exact > np.maximum(divergence(p, q, ORDERS), divergence(q, p, ORDERS)))


@pytest.mark.parametrize(("runs", "shape"), [(LAWS[0], math.inf), (LAWS[1], 1.0), (LAWS[2], 0.0)])
def test_dp_accounting_states_the_same(runs, shape):
    dp_event = pytest.importorskip("dp_accounting").dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    run = dp_event.PoissonSampledDpEvent(100 / 6000, dp_event.GaussianDpEvent(1.4))
    theirs = rdp_privacy_accountant.RdpAccountant(list(accountant.orders(GOLDEN)))
    theirs.compose(dp_event.RepeatAndSelectDpEvent(dp_event.SelfComposedDpEvent(run, 180), runs.mean, shape))
    ours = selection.epsilon(GOLDEN, runs=runs, delta=1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)


def test_the_golden_number():
    """The best of 30 runs in the mean; ten runs that are composed cost 2.13."""
    stated = selection.epsilon(GOLDEN, runs=RandomRuns(mean=30.0), delta=6000**-1.1)
    assert stated == pytest.approx(1.6117, abs=1e-4)
    assert stated > accountant.epsilon(GOLDEN, delta=6000**-1.1)
    costs = [selection.epsilon(GOLDEN, runs=RandomRuns(mean=m), delta=6000**-1.1) for m in (3.0, 10.0, 30.0)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
def test_gamma_gives_the_mean(eta):
    runs = RandomRuns(mean=12.0, law="negative-binomial", eta=eta)
    k = np.arange(1, 4000)
    weights = np.cumprod(np.append(1.0, (k[:-1] + eta) / (k[:-1] + 1))) * (1 - runs.gamma) ** k
    assert (k * weights).sum() / weights.sum() == pytest.approx(12.0, rel=1e-3)


def test_what_is_not_proven_is_refused():
    coins = BernoulliAggregate(dimension=9, floor=0.1, adjacency="zero-out", l2_clip=0.1, cohort=10, overflow=1e-9)
    with pytest.raises(UnsupportedMechanism, match="overflow their slots"):
        selection.epsilon(coins, runs=RandomRuns(mean=3.0), delta=1e-5)
    for wrong in ({"mean": 0.0}, {"mean": 1.0}, {"mean": 2.0, "law": "fixed"}):
        with pytest.raises(InvalidParameter):
            RandomRuns(**wrong)
    with pytest.raises(InvalidParameter, match="above -1"):
        RandomRuns(mean=3.0, eta=-1.0)
