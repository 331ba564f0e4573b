"""Sampled hockey sticks of secret lanes: against all patterns, quadrature, the bounds of their weights, planted faults,
coverage; certificates of such runs and of their noise."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused
from scipy.linalg import toeplitz
from scipy.optimize import minimize
from scipy.stats import chi2

from accounting import Composed, Plan, budget, guarantee
from accounting.budget import certificates
from accounting.budget.certified_noise import cached_or_new_certified_noise, certified_noise
from accounting.compose import accountant, lower_bound
from accounting.compose.profiles import profile
from accounting.compose.sampled_schedules import CHUNK, ScheduleUnderNoise, sampled_sums, weights_at
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.factorisation import square_root
from accounting.ledger.terms import Terms, unit_of
from accounting.ledger.unit_filter import UnitFilter
from accounting.mechanisms import BallsAndBins, Subsampled

TINY = [
    # bins, lanes, bands, rounds: whole epochs, one cut off, columns cut off, one epoch, as many lanes as bins
    (4, 2, 2, 8),
    (4, 2, 2, 6),
    (4, 2, 2, 7),
    (4, 4, 3, 8),
    (6, 3, 3, 5),
    (2, 2, 1, 5),
]


def secret(bins, lanes, bands=1, c=None, **more):
    return BallsAndBins(
        bins=bins, lanes=lanes, coefficients=tuple(square_root(bands) if c is None else c), secret_lanes=True, **more
    )


def run(bins, lanes, bands, rounds, z=1.1):
    return ScheduleUnderNoise(schedule=secret(bins, lanes, bands), rounds=rounds, noise_multiplier=z)


def patterns(bins, lanes, rounds):
    """Every set of rounds of a client, as often as it is likely: a lane, and a bin of it in each epoch; cut off."""
    epochs = [range(first, first + bins) for first in range(0, rounds, bins)]
    return [
        [t for t in chosen if t < rounds]
        for lane in range(lanes)
        for chosen in itertools.product(*[[t for t in epoch if t % bins % lanes == lane] for epoch in epochs])
    ]


def means_of(one, sets=None):
    """Means over noise of every pattern, [patterns, rounds], from the whole matrix."""
    c = np.zeros(one.rounds)
    c[: len(one.schedule.coefficients)] = one.schedule.coefficients[: one.rounds]
    columns = toeplitz(c, np.zeros(one.rounds)) / one.noise_multiplier
    sets = patterns(one.schedule.bins, one.schedule.lanes, one.rounds) if sets is None else sets
    return np.array([columns[:, chosen].sum(axis=1) for chosen in sets])


def log_ratio(means, x, tilt=1.0):
    """log E_pi exp(tilt <m, x> - tilt^2 |m|^2 / 2) of every row x [n, T]."""
    logs = tilt * x @ means.T - tilt**2 * np.square(means).sum(axis=1) / 2
    return np.log(np.exp(logs).mean(axis=1))


def generator(seed=3):
    return np.random.Generator(np.random.Philox(key=seed))


@pytest.mark.parametrize("setting", TINY)
def test_the_ratio_is_the_mean_over_all_patterns(setting):
    one = run(*setting)
    x = 2 * generator().standard_normal((7, one.rounds))
    for tilt in (1.0, 1.7):
        found = one._log_ratio(one._columns.T @ x.T, tilt)
        assert found == pytest.approx(log_ratio(means_of(one), x, tilt), rel=1e-12, abs=1e-12)


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("setting", TINY)
@pytest.mark.parametrize(("epsilon", "tilts"), [(0.0, (0.4, 0.3)), (0.7, (1.1, 1.5)), (2.0, (0.8, 0.8))])
def test_weights_keep_to_their_bounds(setting, epsilon, tilts):
    """At the worst points that a search over the noise finds. The first bound is nearly attained."""
    one, (a, other) = run(*setting), tilts
    means, largest = means_of(one), one.largest_weights(epsilon, tilts)
    mean = means.mean(axis=0)

    def chunk(x):
        ratio = log_ratio(means, x)
        back = other * x @ mean + other**2 * mean @ mean / 2
        return (ratio, ratio - log_ratio(means, x, 1 + a)), (ratio, back)

    draws = generator()
    starts = np.concatenate([draws.standard_normal((300, one.rounds)) * scale for scale in (1.0, 3.0)])
    starts = np.concatenate([starts, means * 1.5, means * -0.5, np.outer(np.linspace(-4, 4, 40), mean)])
    for order in (0, 1):

        def less(x, order=order):
            return -weights_at(chunk(x[None]), epsilon)[order][0]

        weights = weights_at(chunk(starts), epsilon)[order]
        best = max(weights.max(), -minimize(less, starts[weights.argmax()], method="Nelder-Mead").fun)
        assert best <= largest[order] * (1 + 1e-9)
        assert best > 0.05 * largest[order] or order or epsilon > 1


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("setting", TINY)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.2])
def test_means_are_the_hockey_sticks_of_all_patterns(setting, epsilon):
    """Against 200,000 draws of the mixture itself, five joint standard errors: a false alarm below 1e-5 a case."""
    one, tilts = run(*setting), (0.5, 0.5)
    direct = shown(None, one, epsilon, seed=11, count=200_000)
    found = [weights_at(chunk, epsilon) for chunk in one.samples(generator(), 100_000, tilts)]
    for (true, own), weights in zip(direct, map(np.concatenate, zip(*found, strict=True)), strict=True):
        error = math.hypot(own, weights.std() / math.sqrt(len(weights)))
        assert abs(true - weights.mean()) < 5 * error + 1e-12


def exact(epsilon, z, c=(1.0, 0.7)):
    """Both hockey sticks of one epoch of two rounds in two secret lanes, by quadrature over the plane."""
    one = ScheduleUnderNoise(schedule=secret(2, 2, c=c), rounds=2, noise_multiplier=z)
    axis = np.linspace(-9, 11, 1200)
    weight = np.exp(-axis * axis / 2)
    weight /= weight.sum()
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    ratio, w = np.exp(log_ratio(means_of(one), x)), np.outer(weight, weight).ravel()
    return one, (
        (w * np.maximum(ratio - math.exp(epsilon), 0)).sum(),
        (w * np.maximum(1 - math.exp(epsilon) * ratio, 0)).sum(),
    )


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("epsilon", [0.0, 0.6, 1.5])
def test_against_quadrature(epsilon):
    """Five standard errors (false alarm 6e-7 each), and the deterministic account is above."""
    one, truth = exact(epsilon, 0.9)
    sums = sampled_sums(one, generator(), 200_000, epsilon, (0.8, 0.8))
    for total, square, true in zip(sums.totals, sums.squares, truth, strict=True):
        assert abs(total / sums.count - true) < 5 * math.sqrt(square) / sums.count + 1e-7
    noise = Subsampled(mechanism=gaussian(0.9, "zero-out"), sampling=one.schedule)
    assert max(truth) <= profile(times(noise, 2))(np.array([epsilon]))[0] * (1 + 1e-9)


def test_bounds_cover_the_truth():
    """200 bounds at failure 0.2, 5,000 samples each: far fewer than a fifth are below the truth, where means often
    are (planted: a bound without its slack)."""
    one, truth = exact(0.6, 0.9)
    largest, below, means = one.largest_weights(0.6, (0.8, 0.8)), 0, 0
    for seed in range(200):
        sums = sampled_sums(one, generator(seed), CHUNK, 0.6, (0.8, 0.8))
        below += any(bound < true for bound, true in zip(sums.bounds(largest, 0.2), truth, strict=True))
        means += any(total / sums.count < true for total, true in zip(sums.totals, truth, strict=True))
    assert below <= 0.1 * 200
    assert means > 0.4 * 200


def test_patterns_have_one_lane_and_one_round_an_epoch():
    """Chi-square of all patterns, false alarm 1e-6; planted: a lane drawn anew for each epoch."""
    one = run(4, 2, 2, 8)
    draws = generator()
    drawn = np.concatenate([one._law.draw(draws, one._columns.shape[1]) for _ in range(4)], axis=1)
    rounds = np.nonzero(drawn.T)[1].reshape(-1, 2)
    assert np.all(rounds // 4 == [0, 1])
    assert np.all(rounds[:, 0] % 2 == rounds[:, 1] % 2)
    kinds = {tuple(chosen): place for place, chosen in enumerate(patterns(4, 2, 8))}
    seen = np.bincount([kinds[tuple(chosen)] for chosen in rounds.tolist()], minlength=len(kinds))
    due = len(rounds) / len(kinds)
    assert chi2(len(kinds) - 1).sf(((seen - due) ** 2 / due).sum()) > 1e-6


C = (1.0, 0.8)
LANES = {"schedule": secret(4, 2, c=C), "rounds": 8, "noise_multiplier": 1.0}
ANEW = "a lane drawn anew each epoch"
FAULTS = {
    ANEW: [[a, b] for a in range(4) for b in range(4, 8)],
    "a bin kept": [[t, t + 4] for t in range(4)],
    "the lane of one epoch public": [[a, b] for a in (1, 3) for b in (4, 6)] + [[a, b] for a in (1, 3) for b in (5, 7)],
    "lanes of unequal chances": [[a, b] for a in (0, 2) for b in (4, 6)] * 9 + [[a, b] for a in (1, 3) for b in (5, 7)],
}


def shown(sets, one, epsilon, seed=5, count=400_000):
    """Both hockey sticks of a mixture over these patterns, or all, with standard errors."""
    means, draws = means_of(one, sets), generator(seed)
    x = draws.standard_normal((count, one.rounds))
    y = x + means[draws.integers(len(means), size=count)]
    both = (
        np.maximum(-np.expm1(epsilon - log_ratio(means, y)), 0),
        np.maximum(1 - np.exp(epsilon + log_ratio(means, x)), 0),
    )
    return [(one.mean(), one.std() / math.sqrt(count)) for one in both]


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", [*FAULTS, "sound"])
def test_what_is_not_the_schedule_shows_more_than_a_certificate_says(name):
    """Bounds at failure 1e-6, faults by five standard errors; the sound twin is not flagged."""
    one, epsilon, tilts = ScheduleUnderNoise(**LANES), 2.0, (0.8, 1.0)
    if name == ANEW:  # columns of two epochs overlap, which shows at a larger epsilon
        one, epsilon, tilts = replace(one, schedule=secret(4, 2, c=(1.0, 1.0))), 4.0, (1.2, 1.0)
    bounds = sampled_sums(one, generator(), 1_000_000, epsilon, tilts).bounds(one.largest_weights(epsilon, tilts), 1e-6)
    sets = FAULTS.get(name, patterns(4, 2, 8))
    flagged = any(
        mean - 5 * error > bound for (mean, error), bound in zip(shown(sets, one, epsilon), bounds, strict=True)
    )
    assert flagged == (name != "sound")


def test_a_lane_kept_for_the_next_run_shows_more_than_two_runs():
    """Two runs of one epoch whose client keeps its lane show more than two that draw anew, by five standard errors."""
    one = means_of(ScheduleUnderNoise(**{**LANES, "rounds": 4}), [[t] for t in range(4)])
    found = []
    for kept in (False, True):
        pairs = [(a, b) for a in range(4) for b in range(4) if not kept or a == b]  # as many lanes as bins
        means, draws = np.array([np.concatenate([one[a], one[b]]) for a, b in pairs]), generator(7)
        y = draws.standard_normal((400_000, 8)) + means[draws.integers(len(means), size=400_000)]
        weights = np.maximum(-np.expm1(3.0 - log_ratio(means, y)), 0)
        found.append((weights.mean(), weights.std() / math.sqrt(len(y))))
    (anew, error), (more, other) = found
    assert more - 5 * other > anew + 5 * error


def of(schedule, rounds, z=1.0, adjacency="add-remove"):
    noise = gaussian(z, adjacency)
    return times(Subsampled(mechanism=noise, sampling=schedule), rounds)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("lanes", "rounds"), [(4, 24), (12, 24), (4, 17), (12, 17)])
def test_the_deterministic_account_is_that_of_public_lanes_and_has_no_lower_bound(lanes, rounds):
    secretly = of(secret(12, lanes, lanes), rounds, 2.0)
    publicly = of(replace(secret(12, lanes, lanes), secret_lanes=False), rounds, 2.0)
    stated = guarantee(secretly, delta=1e-4)
    assert stated.epsilon == pytest.approx(accountant.epsilon(publicly, delta=1e-4), rel=1e-9)
    assert stated.lower_bound is None
    assert not any("only on its id" in note for note in stated.notes)
    assert lower_bound.epsilon(secretly, delta=1e-4) == 0
    with_others = Composed(parts=(*secretly.parts, *of(BallsAndBins(bins=4, stream="b"), 4, 2.0).parts))
    alone = lower_bound.epsilon(of(BallsAndBins(bins=4, stream="b"), 4, 2.0), delta=1e-4)
    assert 0 < lower_bound.epsilon(with_others, delta=1e-4) == pytest.approx(alone, rel=1e-3)


def test_secret_lanes_of_nothing_are_refused():
    assert "secret_lanes" not in BallsAndBins(bins=12, lanes=4).to_dict()
    for fields, words in (
        ({"lanes": 1, "secret_lanes": True}, "no lane is drawn"),
        ({"secret_lanes": 1}, "true or false"),
    ):
        refused(InvalidParameter, words, BallsAndBins, **{"bins": 4, "lanes": 2, **fields})
    refused(UnsupportedMechanism, "replace-one", lambda: of(secret(12, 12, 4), 3, adjacency="replace-one"))


def test_an_epoch_is_no_unit_of_a_project():
    """It is bought as a whole run."""
    ((release, _),) = of(secret(12, 4, 4), 12).parts
    assert unit_of(release) is None
    assert unit_of(replace(release, sampling=replace(release.sampling, secret_lanes=False))) is not None
    state = UnitFilter(Terms(epsilon=20.0, delta=1e-4))
    assert "no unit yet" in state.refusal(release, run="one", number=0)
    assert state.unit_for(((release, 24),)) == ((replace(release, sampling=replace(release.sampling, stream="")), 24),)


PLAN = {
    "clients": 600, "cohort": 50, "sampling": "balls-and-bins", "lanes": 4, "secret_lanes": True, "noise": "banded",
    "delta": 1e-3,
}  # fmt: skip


def test_a_certificate_is_below_the_deterministic_bound(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFED_CACHE_DIR", str(tmp_path))
    stated = budget.solve(Plan(**PLAN), noise_multiplier=2.0, rounds=24)
    assert stated.plan.adjacency == "add-remove"
    assert stated.to_dict()["secret_lanes"] is True
    found = certificates.cached_or_new_certificate(certificates.Claim.of(stated), samples=20_000)
    assert found.epsilon < found.deterministic == stated.epsilon
    assert found.holds
    assert certificates.Claim.of(stated).recomputes(found)
    assert not certificates.Claim.of(stated).recomputes(replace(found, epsilon=found.epsilon * 0.9))
    public = budget.solve(Plan(**{**PLAN, "secret_lanes": False}), noise_multiplier=2.0, rounds=24)
    refused(UnsupportedMechanism, "secret lanes", lambda: certificates.certified(certificates.Claim.of(public)))


def test_the_description_holds_all_that_the_bound_follows_from():
    stated = budget.solve(Plan(**PLAN), noise_multiplier=2.0, rounds=24)
    described = {"epsilon": 1.0, "tilts": (0.5, 0.5), "samples": 5000, "tries": 1}
    claim = certificates.Claim.of(stated)
    seed = certificates.seed_of(certificates.description_of(claim, **described))
    others = [{"epsilon": 1.1}, {"tilts": (0.5, 0.6)}, {"tilts": (0.6, 0.5)}, {"samples": 10_000}, {"tries": 2}]
    seeds = {certificates.seed_of(certificates.description_of(claim, **{**described, **one})) for one in others}
    for changed in ({"lanes": 6}, {"factorisation": "square-root"}, {"factorisation_power": 0.4}, {"cohort": 25}):
        other = budget.solve(Plan(**{**PLAN, **changed}), noise_multiplier=2.0, rounds=24)
        seeds.add(certificates.seed_of(certificates.description_of(certificates.Claim.of(other), **described)))
    for more in ({"rounds": 23, "noise_multiplier": 2.0}, {"rounds": 24, "noise_multiplier": 2.1}):
        other = budget.solve(Plan(**PLAN), **more)
        seeds.add(certificates.seed_of(certificates.description_of(certificates.Claim.of(other), **described)))
    assert seed not in seeds
    assert len(seeds) == len(others) + 4 + 2


@pytest.mark.slow
def test_noise_of_a_certified_epsilon(tmp_path, monkeypatch):
    """Smaller than what holds for sure, verified once, and its certificate is about the epsilon that was asked for."""
    monkeypatch.setenv("DPFED_CACHE_DIR", str(tmp_path))
    asked = {"epsilon": 1.5, "rounds": 24, "samples": 50_000}
    found = cached_or_new_certified_noise(Plan(**PLAN), **asked)
    sure = budget.solve(Plan(**PLAN), epsilon=1.5, rounds=24)
    error = found.budget.to_dict()["prefix_error_in_clips"]
    assert error < sure.to_dict()["prefix_error_in_clips"]
    one = found.certificate
    assert (one.epsilon, one.deterministic) == (1.5, found.budget.epsilon)
    assert one.holds
    assert one.deterministic > 1.5
    assert certificates.Claim.of(found.budget).recomputes(one)
    again = cached_or_new_certified_noise(Plan(**PLAN), **asked)
    assert (again.certificate, again.budget.noise_multiplier) == (one, found.budget.noise_multiplier)


@pytest.mark.slow
def test_noise_of_rests_and_further_tries_are_charged(monkeypatch):
    from accounting.budget import certified_noise as module

    plan = Plan(clients=6000, cohort=400, sampling="min-separation", separation=12, delta=5e-3)
    real = module._Search.smallest_multiplier
    monkeypatch.setattr(
        module._Search,
        "smallest_multiplier",
        lambda self, *given: real(self, *given) * (0.97 if given[-1] == module._FINE else 1),
    )
    monkeypatch.setattr(module, "STEP", 1.03)
    found = certified_noise(plan, epsilon=1.0, rounds=30, samples=100_000)
    assert found.certificate.tries > 1
    assert found.certificate.failure == found.certificate.tries * 1e-12
    assert found.budget.noise_multiplier < budget.noise_multiplier(plan, epsilon=1.0, rounds=30)
    monkeypatch.setattr(module, "MOST_TRIES", 1)
    refused(CalibrationError, "holds without sampling", certified_noise, plan, epsilon=1.0, rounds=30, samples=100_000)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lanes": None, "noise": "independent"}, "without lanes"),
        ({"lanes": 1}, "no lane is drawn"),
        ({"lanes": 5}, "lanes must divide"),
        ({"adjacency": "replace-one"}, "replace-one"),
        ({"factorisation": "square-root", "factorisation_power": 0.4}, "Remove one"),
        ({"factorisation_power": 1.5}, "factorisation_power"),
    ],
)
def test_plans_that_are_refused(fields, words):
    refused((InvalidParameter, UnsupportedMechanism), words, Plan, **{**PLAN, **fields})


def test_lanes_are_searched_and_are_at_least_two():
    plan = Plan(**{**PLAN, "lanes": None})
    assert plan.needs_lanes
    found = budget.solve(plan, epsilon=1.0, rounds=24, with_lower_bound=False).plan
    assert found.options["lanes"] > 1
    assert found.sampling.secret_lanes


@pytest.mark.parametrize("bounds", [(math.nan, 1e-7), (1e-7, math.nan), (1e-7, 2e-5), (2e-5, 1e-7), (1e-7, math.inf)])
def test_a_certificate_holds_only_by_both_bounds(bounds):
    fields = {"epsilon": 1.0, "delta": 1e-5, "failure": 1e-12, "tries": 1, "samples": 1, "deterministic": 2.0}
    one = certificates.Certificate(**fields, bounds=(1e-7, 1e-7), seed="", description={})
    assert one.holds
    assert not replace(one, bounds=bounds).holds
