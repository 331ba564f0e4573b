"""Gaussian noise in shares: the Gaussian's epsilon at what of delta its overflow leaves."""

import itertools
import math

import dp_accounting
import pytest
from dp_accounting import pld as google
from reference.shorthand import gaussian, times
from refusals import refused
from scipy import stats

from accounting import FixedSizeSampling, GaussianShares, PoissonSampling, guarantee, subsample
from accounting.compose import profiles, running
from accounting.compose.accountant import epsilon as epsilon_of
from accounting.compose.second_opinion import second_opinion
from accounting.compose.twins import overflow
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import BallsAndBins, with_whole_noise
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.independent import earlier_overflow

DELTA, ROUNDS, BETA = 1e-5, 20, 1e-7


def shares(z=1.2, adjacency="zero-out", **options):
    return GaussianShares(noise_multiplier=z, adjacency=adjacency, shares=130, **options)


def run(release, rounds=ROUNDS):
    return times(release, rounds)


def test_unsampled_it_is_the_closed_form_at_what_is_left_of_delta():
    truth = smallest_epsilon(DELTA - ROUNDS * BETA, mu=math.sqrt(ROUNDS) / 1.2)
    stated = guarantee(run(shares(overflow=BETA)), delta=DELTA)
    assert stated.epsilon == pytest.approx(truth, rel=1e-6)
    assert stated.epsilon >= truth * (1 - 1e-9)


def test_sampled_it_is_what_dp_accounting_states_at_what_is_left_of_delta():
    """Zero-out under Poisson sampling has the pair of laws of add-remove."""
    accountant = google.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.2))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, ROUNDS))
    peer = accountant.get_epsilon(DELTA - ROUNDS * BETA)
    release = subsample(shares(overflow=BETA), PoissonSampling(probability=0.1))
    stated = epsilon_of(run(release), delta=DELTA)
    assert stated == pytest.approx(peer, rel=1e-3)
    assert stated > epsilon_of(run(subsample(shares(), PoissonSampling(probability=0.1))), delta=DELTA)


@pytest.mark.parametrize(
    ("sampling", "accountant"),
    [
        *((sampling, name) for sampling in ("poisson", "fixed") for name in ("pld", "rdp")),
        ("poisson", "best"),
        pytest.param("fixed", "best", marks=pytest.mark.slow),
        ("fixed", "adaptive"),
    ],
)
def test_every_account_charges_for_what_overflows(accountant, sampling):
    """As the Gaussian at delta - T beta, and nothing at all where that is below zero."""
    drawn = PoissonSampling(probability=0.1) if sampling == "poisson" else FixedSizeSampling(cohort=100, clients=1000)
    adjacency = "zero-out" if sampling == "poisson" else "replace-one"
    plain = subsample(gaussian(2.0, adjacency), drawn)
    mine = subsample(shares(2.0, adjacency, overflow=BETA), drawn)
    stated = epsilon_of(run(mine), delta=DELTA, accountant=accountant)
    assert stated == pytest.approx(epsilon_of(run(plain), delta=DELTA - ROUNDS * BETA, accountant=accountant))
    stream = running.epsilons(mine, delta=DELTA, rounds=ROUNDS, accountant=accountant)
    *_, last = itertools.islice(stream, ROUNDS)
    assert last == pytest.approx(stated, rel=2e-3)
    with pytest.raises(UnsupportedMechanism, match="exceeds the uploads of a sum"):
        epsilon_of(run(mine), delta=ROUNDS * BETA * 0.99, accountant=accountant)


def test_the_profile_has_the_overflow_on_top():
    release = subsample(shares(overflow=BETA), PoissonSampling(probability=0.1))
    plain = subsample(shares(), PoissonSampling(probability=0.1))
    assert profiles.profile(release)(1.0) == pytest.approx(profiles.profile(plain)(1.0) + BETA, rel=1e-9)


@pytest.mark.parametrize("sampling", [None, PoissonSampling(probability=0.1)])
def test_the_lower_bound_is_nearly_that_of_the_whole_noise(sampling):
    """With an overflow as slots by default have it."""
    noise = shares(6.0 if sampling is None else 1.2, overflow=1e-5 * DELTA)
    release = noise if sampling is None else subsample(noise, sampling)
    stated = guarantee(run(release), delta=DELTA)
    assert stated.epsilon * 0.997 < stated.lower_bound <= stated.epsilon
    plain = guarantee(run(with_whole_noise(run(release)).parts[0][0]), delta=DELTA)
    assert stated.lower_bound < plain.lower_bound  # what may overflow is taken off


def test_the_second_opinion_is_of_the_whole_noise():
    release = run(subsample(shares(overflow=BETA), PoissonSampling(probability=0.1)))
    opinion, stated = second_opinion(release, delta=DELTA), epsilon_of(release, delta=DELTA)
    assert opinion.epsilon == pytest.approx(stated, rel=2e-3)
    assert second_opinion(run(shares(overflow=1e-6)), delta=DELTA).epsilon is None  # 20 times that is more than delta


def test_the_overflow_of_earlier_versions_is_a_binomial_tail():
    for adjacency, clients in (("zero-out", 6000), ("replace-one", 6000), ("add-remove", 6001)):
        beta = earlier_overflow(140, 1 / 60, 6000, Adjacency(adjacency))
        assert beta == pytest.approx(stats.binom(clients, 1 / 60).sf(140), rel=1e-9)
    assert overflow(run(shares(overflow=beta))) == pytest.approx(ROUNDS * beta)
    assert earlier_overflow(6000, 1 / 60, 6000, Adjacency.ZERO_OUT) == 0


@pytest.mark.parametrize(
    ("given", "named"),
    [({"adjacency": "add-remove"}, "add-remove"), ({"z": 0.0}, "noise_multiplier"), ({"overflow": 2.0}, "overflow")],
)
def test_what_has_no_meaning_is_refused(given, named):
    refused((InvalidParameter, UnsupportedMechanism), named, shares, **given)


def test_secret_numbers_of_uploads_are_refused():
    refused(UnsupportedMechanism, "balls-and-bins", lambda: subsample(shares(), BallsAndBins(bins=10)))
    with pytest.raises(UnsupportedMechanism, match="130 shares"):
        subsample(shares(adjacency="replace-one"), FixedSizeSampling(cohort=200, clients=1000))
