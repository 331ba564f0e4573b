"""Sampled hockey sticks of rests: against quadrature, their weights' bounds, the failure of means, certificates."""

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from refusals import refused
from scipy.stats import chi2

from accounting import Plan, budget
from accounting.budget import certificates
from accounting.compose.lower_bound import counts_distribution
from accounting.compose.sampled_schedules import ScheduleUnderNoise, Sums, sampled_sums, weights_at
from accounting.errors import CalibrationError, UnsupportedMechanism
from accounting.mechanisms import MinSeparation
from tests.accounting.participation.test_ratio_law import chain_law

SMALL = ScheduleUnderNoise(schedule=MinSeparation(separation=2, probability=0.3), rounds=3, noise_multiplier=1.1)


def generator(seed=3):
    return np.random.Generator(np.random.Philox(key=seed))


def quadrature(rests, epsilon):
    """Both hockey sticks of three rounds, by sums over a grid and over all patterns."""
    axis, s = np.linspace(-7, 9, 120), 1 / rests.noise_multiplier
    weight = np.exp(-axis * axis / 2)
    weight /= weight.sum()
    x = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
    w = math.prod(np.meshgrid(weight, weight, weight, indexing="ij", sparse=True))
    law = chain_law(rests.schedule.separation, rests.schedule.probability, rests.rounds)
    ratio = sum(
        chance * math.prod([np.exp(s * x[k] - s * s / 2) for k in range(3) if pattern[k]], start=1 + 0 * w)
        for pattern, chance in law.items()
    )
    gamma = math.exp(epsilon)
    return (w * np.maximum(ratio - gamma, 0)).sum(), (w * np.maximum(1 - gamma * ratio, 0)).sum()


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("tilts", [(0.3, 0.2), (0.8, 0.7)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_means_are_the_hockey_sticks_and_weights_keep_to_their_bound(epsilon, tilts):
    """Within five standard errors (false alarm 6e-7). The bound of the first order is nearly attained."""
    rests = SMALL
    largest, found = rests.largest_weights(epsilon, tilts), []
    for chunk in rests.samples(generator(), 60_000, tilts):
        found.append(weights_at(chunk, epsilon))
    for truth, most, weights in zip(
        quadrature(rests, epsilon), largest, map(np.concatenate, zip(*found, strict=True)), strict=True
    ):
        assert weights.max() <= most * (1 + 1e-12)
        assert abs(weights.mean() - truth) < 5 * weights.std() / math.sqrt(len(weights)) + 1e-6
    assert np.concatenate([one for one, _ in found]).max() > 0.3 * largest[0]


def test_a_chain_without_the_rest_is_not_the_truth(monkeypatch):
    """Planted: the coin in the place of the chance, and no rest."""
    wrong = ScheduleUnderNoise(schedule=MinSeparation(separation=1, probability=0.45), rounds=3, noise_multiplier=1.1)
    ratio = ScheduleUnderNoise._log_ratio
    monkeypatch.setattr(ScheduleUnderNoise, "_log_ratio", lambda self, x, shift: ratio(wrong, x, shift))
    sums = sampled_sums(SMALL, generator(), 60_000, 0.4, (0.3, 0.2))
    truth = quadrature(SMALL, 0.4)
    errors = [math.sqrt(square) / sums.count for square in sums.squares]
    assert any(
        abs(one / sums.count - true) > 8 * error for one, true, error in zip(sums.totals, truth, errors, strict=True)
    )


@pytest.mark.parametrize(("separation", "probability", "rounds"), [(1, 0.2, 6), (3, 0.25, 6), (5, 0.2, 3), (4, 0.2, 4)])
def test_the_ratio_is_the_mean_over_patterns(separation, probability, rounds):
    rests = ScheduleUnderNoise(
        schedule=MinSeparation(separation=separation, probability=probability), rounds=rounds, noise_multiplier=0.9
    )
    x, s = generator().standard_normal((rounds, 5)), 1 / rests.noise_multiplier
    direct = sum(
        chance * math.prod([np.exp(s * x[k] - s * s / 2) for k in range(rounds) if pattern[k]], start=np.ones(5))
        for pattern, chance in chain_law(separation, probability, rounds).items()
    )
    assert np.exp(rests._log_ratio(rests._columns.T @ x, 1.0)) == pytest.approx(direct, rel=1e-12)


def test_patterns_rest_and_have_the_chances_of_the_schedule():
    """Chi-square of the number of participations, false alarm 1e-6; every round alike."""
    schedule = MinSeparation(separation=4, probability=0.15)
    rests = ScheduleUnderNoise(schedule=schedule, rounds=12, noise_multiplier=1.0)
    draws = generator()
    patterns = np.concatenate([rests._law.draw(draws, rests.rounds) for _ in range(8)], axis=1)
    for one, two in itertools.combinations(range(12), 2):
        assert two - one >= 4 or not np.any(patterns[one] * patterns[two])
    law, count = counts_distribution(schedule, 12), patterns.shape[1]
    seen = np.bincount(patterns.sum(axis=0).astype(int), minlength=len(law))
    kept = law > 1e-3
    assert chi2(kept.sum() - 1).sf(((seen - count * law)[kept] ** 2 / (count * law[kept])).sum()) > 1e-6
    assert np.all(np.abs(patterns.mean(axis=1) - 0.15) < 6 * math.sqrt(0.15 * 0.85 / count))


def test_means_exceed_their_bound_seldom():
    """Two-point weights at beta 0.2: far fewer than a fifth of 2,000 means are above; without the slack half are."""
    draws, beta, above, without = generator(9), 0.2, 0, 0
    for _ in range(2000):
        weights = (draws.random(200) < 0.03).astype(float)
        sums = Sums(count=200, totals=(weights.sum(), 0.0), squares=(weights.sum(), 0.0))
        above += sums.bounds((1.0, 1.0), beta)[0] < 0.03
        without += weights.mean() < 0.03
    assert above <= 0.1 * 2000
    assert without > 0.3 * 2000


@cache
def rests(delta=1e-3, rounds=30):
    plan = Plan(clients=6000, cohort=400, sampling="min-separation", separation=12, delta=delta)
    return budget.solve(plan, noise_multiplier=1.2, rounds=rounds)


@pytest.fixture(scope="module")
def certificate():
    return certificates.certified(certificates.Claim.of(rests()), samples=100_000)


def test_a_certificate_lies_between_the_bounds_and_charges_its_failure(certificate):
    stated = rests()
    assert stated.lower_bound < certificate.epsilon < stated.epsilon == certificate.deterministic
    assert certificate.failure == certificate.tries * 1e-12
    assert max(certificate.bounds) + certificate.failure <= certificate.delta == 1e-3
    assert "1e-12" in str(certificate)
    assert "Without sampling" in str(certificate)
    assert certificate.seed == certificates.seed_of(certificate.description)


def test_an_audit_computes_it_again(certificate):
    assert certificates.Claim.of(rests()).recomputes(certificate)
    assert certificate.seed != certificates.seed_of({**certificate.description, "samples": 100_001})
    assert not certificates.Claim.of(rests()).recomputes(replace(certificate, epsilon=certificate.epsilon * 0.9))


@pytest.mark.parametrize(
    "forged",
    [{"samples": 10**12}, {"samples": 0}, {"samples": "x"}, {"tilts": ("a", "b")}, {"tilts": (9.0, 9.0)}, {"tries": 0},
     {"tries": 6}, {"epsilon": -1e6}],
)  # fmt: skip
def test_a_forged_certificate_with_its_seed_is_not_sampled_again(certificate, forged):
    claim = certificates.Claim.of(rests())
    assert claim.is_of(certificate)
    description = certificates.description_of(claim, **{**certificates._question_of(certificate), **forged})
    stated = {name: value for name, value in forged.items() if name in ("tries", "epsilon")}
    other = replace(certificate, description=description, seed=certificates.seed_of(description), **stated)
    assert not claim.is_of(other)


def test_further_tries_are_counted_and_charged(monkeypatch):
    real, called = certificates._calibrated_tilts_and_epsilon, []

    def hopeful(*given):
        called.append(1)
        tilts, epsilon = real(*given)
        return tilts, certificates.rounded_up(epsilon * 0.97)

    monkeypatch.setattr(certificates, "_calibrated_tilts_and_epsilon", hopeful)
    monkeypatch.setattr(certificates, "STEP", 1.03)
    found = certificates.certified(certificates.Claim.of(rests()), samples=50_000)
    assert found.tries > 1
    assert found.failure == found.tries * 1e-12
    assert f"{found.tries} verifications" in str(found)
    monkeypatch.setattr(certificates, "MOST_TRIES", 1)
    refused(CalibrationError, "verify nothing", certificates.certified, certificates.Claim.of(rests()), samples=50_000)


def test_it_is_kept_by_all_that_it_follows_from(monkeypatch, tmp_path, certificate):
    monkeypatch.setenv("DPFED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(certificates, "certified", lambda claim, samples: certificate)
    first = certificates.cached_or_new_certificate(certificates.Claim.of(rests()), samples=100_000)
    assert first == certificate

    def anew(*given, **more):
        raise CalibrationError("computed anew")

    monkeypatch.setattr(certificates, "certified", anew)
    assert certificates.cached_or_new_certificate(certificates.Claim.of(rests()), samples=100_000) == first
    for other, samples in ((rests(delta=2e-3), 100_000), (rests(rounds=29), 100_000), (rests(), 60_000)):
        with pytest.raises(CalibrationError, match="anew"):
            certificates.cached_or_new_certificate(certificates.Claim.of(other), samples=samples)
    (file, *_) = (tmp_path / "certificates").glob("*.json")
    for one in (tmp_path / "certificates").glob("*.json"):
        one.write_text(file.read_text().replace(str(first.epsilon), "0.1"))
    with pytest.raises(CalibrationError, match="anew"):
        certificates.cached_or_new_certificate(certificates.Claim.of(rests()), samples=100_000)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"sampling": "balls-and-bins"}, "certificates are for 'min-separation'"),
        ({"sampling": "poisson"}, "certificates are for 'min-separation'"),
        ({"sampling": "min-separation", "separation": 5, "noise": "banded", "bands": 2}, "independent Gaussian noise"),
    ],
)
def test_other_settings_have_none(plan, words):
    plan = Plan(clients=600, cohort=60, **plan)
    stated = budget.solve(plan, noise_multiplier=2.0, rounds=10, with_lower_bound=False)
    refused(UnsupportedMechanism, words, certificates.certified, certificates.Claim.of(stated))


def test_with_other_releases_there_is_none():
    before = rests().mechanism
    plan = Plan(clients=6000, cohort=400, sampling="min-separation", separation=12, before=before, delta=1e-3)
    stated = budget.solve(plan, noise_multiplier=1.2, rounds=3, with_lower_bound=False)
    refused(UnsupportedMechanism, "other releases", certificates.certified, certificates.Claim.of(stated))
