"""The best of a random number of runs: exact laws of small mechanisms stay below; dp-accounting has the Renyi bound."""

import math

import numpy as np
import pytest
import scipy
from reference.shorthand import gaussian, poisson, times
from refusals import refused

from accounting.compose import accountant, rdp, selection
from accounting.compose.profiles import Profile
from accounting.compose.selection import RandomRuns
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import BernoulliAggregate

ORDERS = np.array([1.5, 2.0, 3.0, 5.0, 9.0, 20.0])
GOLDEN = times(poisson(100 / 6000, 1.4), 180)
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
    for _ in range(60):
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


@pytest.mark.parametrize("mean", [0.05, 0.5, 0.9, 1.5])
def test_few_runs_that_may_be_none(mean):
    """K = 0 is an outcome, too: without its chance the Renyi bound would be below 0, and epsilon 0."""
    runs, (p, q) = RandomRuns(mean=mean, law="poisson"), np.array([[0.02, 0.48, 0.5], [0.01, 0.48, 0.51]])
    curve = np.maximum(divergence(p, q, ORDERS), divergence(q, p, ORDERS))
    for one, other in ((p, q), (q, p)):
        exact = divergence(best_of(one, runs), best_of(other, runs), ORDERS)
        assert np.all(exact <= selection.renyi(ORDERS, curve, runs))
    noise = gaussian(1.0, "zero-out")
    stated = selection.epsilon(noise, runs=runs, delta=1e-5)
    x = np.linspace(-12, 14, 200_001)
    best = [
        np.exp(-((x - shift) ** 2) / 2 - mean * scipy.special.ndtr(shift - x)) * mean / math.sqrt(2 * math.pi)
        for shift in (1.0, 0.0)  # scored by what comes out
    ]
    assert np.maximum(best[0] - math.exp(stated) * best[1], 0).sum() * (x[1] - x[0]) <= 1e-5
    assert np.maximum(best[0] - math.exp(0.4 * stated) * best[1], 0).sum() * (x[1] - x[0]) > 1e-5


def test_one_runs_own_curve_is_refuted():
    """Planted: the best costs no more than one run."""
    p, q = np.array([0.5, 0.4, 0.1]), np.array([0.53, 0.42, 0.05])
    exact = divergence(best_of(p, LAWS[1]), best_of(q, LAWS[1]), ORDERS)
    assert np.any(exact > np.maximum(divergence(p, q, ORDERS), divergence(q, p, ORDERS)))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("runs", "shape"), [(LAWS[0], math.inf), (LAWS[1], 1.0), (LAWS[2], 0.0)])
def test_dp_accounting_states_the_same(runs, shape):
    dp_event = pytest.importorskip("dp_accounting").dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    run = dp_event.PoissonSampledDpEvent(100 / 6000, dp_event.GaussianDpEvent(1.4))
    theirs = rdp_privacy_accountant.RdpAccountant(list(rdp.orders(GOLDEN)))
    theirs.compose(dp_event.RepeatAndSelectDpEvent(dp_event.SelfComposedDpEvent(run, 180), runs.mean, shape))
    orders = rdp.orders(GOLDEN)
    curve = selection.renyi(orders, rdp.curve(GOLDEN, orders), runs)
    ours = rdp.epsilon_from_curve(orders, curve, delta=1e-5).epsilon
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    assert selection.epsilon(GOLDEN, runs=runs, delta=1e-5) <= ours


def test_the_golden_number():
    """The best of 30 runs in the mean; ten runs that are composed cost 2.13, and Renyi orders state 1.61."""
    costs = [selection.epsilon(GOLDEN, runs=RandomRuns(mean=m), delta=6000**-1.1) for m in (3.0, 10.0, 30.0)]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(1.1960, abs=2e-3)
    assert costs[0] > accountant.epsilon(GOLDEN, delta=6000**-1.1)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
def test_gamma_gives_the_mean(eta):
    runs = RandomRuns(mean=12.0, law="negative-binomial", eta=eta)
    k = np.arange(1, 4000)
    weights = np.cumprod(np.append(1.0, (k[:-1] + eta) / (k[:-1] + 1))) * (1 - runs.gamma) ** k
    assert (k * weights).sum() / weights.sum() == pytest.approx(12.0, rel=1e-3)


def test_what_is_not_proven_is_refused():
    coins = BernoulliAggregate(dimension=9, floor=0.1, adjacency="zero-out", l2_clip=0.1, cohort=10, overflow=1e-9)
    refused(InvalidParameter, "no mechanism is given", lambda: selection.epsilon(runs=RandomRuns(mean=3.0), delta=1e-5))
    both = gaussian(1.0), gaussian(1.0, adjacency="zero-out")
    refused(UnsupportedMechanism, "one kind", selection.epsilon, *both, runs=RandomRuns(mean=3.0), delta=1e-5)
    refused(UnsupportedMechanism, "is known at delta", selection.epsilon, coins, runs=RandomRuns(mean=3.0), delta=1e-10)
    many = {"mean": 2e6, "law": "poisson"}
    for wrong in ({"mean": 0.0}, {"mean": 1.0}, {"mean": 2.0, "law": "fixed"}, {"mean": 3.0, "eta": -0.99}, many):
        refused(InvalidParameter, "", RandomRuns, **wrong)
    refused(InvalidParameter, "above -1", RandomRuns, mean=3.0, eta=-1.0)


def exact_excess(bound, levels, rng, runs, trials=6):
    """The largest of H of the best of K minus `bound`(profile of one run) over random pairs, at losses `levels`."""
    excess = -math.inf
    for _ in range(trials):
        p = np.sort(rng.dirichlet(np.full(5, 1.0)))[::-1]  # the best outcomes are rare
        q = p * np.exp(rng.uniform(0.2, 0.6) * np.linspace(-1, 1, 5))
        q /= q.sum()

        def one_run(losses, p=p, q=q):
            ratios = np.exp(np.asarray(losses))[..., None]
            both = [np.maximum(a - ratios * b, 0).sum(axis=-1) for a, b in ((p, q), (q, p))]
            return np.maximum(*both)

        one = Profile(above_zero=one_run, method="exact")
        for first, second in ((p, q), (q, p)):
            best = one_run_of_best(best_of(first, runs), best_of(second, runs), levels)
            excess = max(excess, float((best - bound(one, levels)).max()))
    return excess


def one_run_of_best(p, q, levels):
    return np.array([np.maximum(p - math.exp(level) * q, 0).sum() for level in levels])


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("runs", LAWS)
def test_hockey_sticks_of_the_best_stay_below_those_of_one_run(runs):
    """Exact laws of the best of K; planted: the profile of one run."""
    levels = np.linspace(0, 3, 31)

    def bound(one, at):
        return runs.largest_mean * one(at - selection.epsilon_shift([one], runs))

    rng = np.random.default_rng(3)
    assert exact_excess(bound, levels, rng, runs) <= 1e-12
    assert exact_excess(lambda one, at: one(at), levels, rng, runs) > 0


def test_the_shift_is_that_of_randomised_response():
    """x' <= min(e^e0 x, 1): the supremum is at x = e^-e0 (negative binomial), the gap 1 - e^-e0 (Poisson)."""
    e0 = 0.7

    def one_run(losses):
        return np.maximum(1 - np.exp(np.asarray(losses) - e0), 0) * math.exp(e0) / (1 + math.exp(e0))

    one = Profile(above_zero=one_run, method="exact")
    t = math.exp(e0)
    corner = 1 / (1 + t)  # x' = t x up to x = 1/(1 + t), then 1 - x' = (1 - x)/t
    for runs in LAWS[1:]:
        g = runs.gamma
        exact = (1 + runs.eta) * math.log((g + (1 - g) * t * corner) / (g + (1 - g) * corner))
        assert exact <= selection.epsilon_shift([one], runs) <= 1.03 * exact
    assert 7.0 * (t - 1) * corner <= selection.epsilon_shift([one], LAWS[0]) <= 1.03 * 7.0 * (t - 1) * corner


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("runs", [*LAWS, RandomRuns(mean=2.5, eta=0.3)])
def test_numbers_of_runs_have_their_mean(runs):
    """Equidistant uniforms: the mean of 20 000 quantiles is the law's to its spread over them."""
    drawn = [runs.drawn((i + 0.5) / 5000) for i in range(5000)]
    assert np.mean(drawn) == pytest.approx(runs.mean, rel=0.02)
    assert min(drawn) == (0 if runs.law == "poisson" else 1)


@pytest.mark.parametrize(
    ("runs", "spread"), [(RandomRuns(mean=2500.0, law="poisson"), 50.0), (RandomRuns(mean=1e4, eta=399.0), 510.0)]
)
def test_many_runs_are_drawn_at_random(runs, spread):
    """The probability of the smallest number is below the smallest double, and no number may be certain."""
    drawn = [runs.drawn((i + 0.5) / 50) for i in range(50)]
    assert np.mean(drawn) == pytest.approx(runs.mean, rel=1e-3)
    assert np.std(drawn) == pytest.approx(spread, rel=0.05)


def test_several_candidates_cost_what_the_dearest_does():
    strong, weak = (times(gaussian(z), 3) for z in (4.0, 8.0))
    runs = RandomRuns(mean=5.0)
    together = selection.epsilon(strong, weak, runs=runs, delta=1e-5)
    assert together == pytest.approx(selection.epsilon(strong, runs=runs, delta=1e-5), rel=1e-9)
