"""Correct run folders seldom fail, and the laws that say how seldom are those of enumeration."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.stats import binom

from accounting.budget import Poisson
from dpfed.audit.evidence import canary_test, cohort_distribution, cohort_members, noise_evidence
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.run import STATISTICAL
from dpfed.diagnostics.watch import noise_record
from dpfed.mechanisms.integer_distributions import SkellamLaw
from dpfed.participation import sampling
from dpfed.randomness import Simulated
from dpfed.records.round import SumNoise
from dpfed.seeds import Seeds

from . import run_folders
from .run_folders import change, records

SIMULATED = 200


def as_claimed(folder, generator):
    """New diagnostics and canary scores, drawn from the laws that the configuration claims."""

    def draw(lines):
        for line in lines:
            drawn = np.flatnonzero(generator.random(60) < 0.2)
            line["cohort"], line["members"] = len(drawn), sampling.members_text(drawn, 60)
            line["participants"] = line["arrived"] = line["cohort"] + present[line["round"]]
            line["noise"] = asdict(noise_record(torch.from_numpy(2.0 * generator.standard_normal(610)), 1))

    def score(lines):
        for line in lines:
            line["score"] = line["present"] + 2.0 * float(generator.standard_normal()) / line["norm"]

    canaries = records(folder, "canaries.jsonl")
    present = {n: sum(one["present"] for one in canaries if one["round"] == n) for n in range(1, 11)}
    change(folder, "diagnostics.jsonl", draw)
    change(folder, "canaries.jsonl", score)


@pytest.mark.slow
def test_correct_runs_fail_no_more_often_than_is_said(tmp_path):
    """Folders drawn anew from the claimed laws; the exact binomial limits are exceeded with probability 1e-4 each."""
    folder = run_folders.run(tmp_path / "run", "audit.canaries=40", "federation.rounds=10")
    generator = np.random.default_rng(7)
    alarms = {0.95: 0, 0.5: 0}
    for number in range(SIMULATED):
        as_claimed(folder, generator)
        files = RunFiles(folder)
        alarms[0.95] += bool(failed_by_chance(files, alpha=0.05 / STATISTICAL))
        if number < 80:
            alarms[0.5] += bool(failed_by_chance(files, alpha=0.5 / STATISTICAL))
    assert alarms[0.95] <= binom.isf(1e-4, SIMULATED, 0.05)
    assert binom.ppf(1e-4, 80, 0.125) <= alarms[0.5] <= binom.isf(1e-4, 80, 0.5)  # and the checks do see chance


def failed_by_chance(files, alpha):
    """Every check that may fail by chance, but for that of counts (`test_run_statistics`)."""
    return [
        check
        for check in (
            noise_evidence.noise_is_as_charged,
            noise_evidence.noise_is_fresh,
            noise_evidence.noise_is_shaped_as_charged,
            cohort_distribution.sizes_follow_sampler,
            cohort_members.members_follow_sampler,
            lambda files, alpha: canary_test.canaries_agree_with_claim(canary_test.canary_result(files, alpha=alpha)),
        )
        if check(files, alpha=alpha)[0] is False
    ]


def test_the_law_of_several_cohorts_is_that_of_enumeration():
    for room, rounds in ((7, 3), (3, 3), (2, 2)):
        law = cohort_distribution.size_distribution(
            Poisson(cohort=2, cohort_cap=None if room == 7 else room).cohorts(7)
        )
        sizes = {n: min(n, room) for n in range(8)}
        centre, tails, far = 2, {}, {}
        for drawn in itertools.product(range(8), repeat=rounds):
            chance = math.prod(float(binom.pmf(n, 7, 2 / 7)) for n in drawn)
            total, distance = sum(sizes[n] for n in drawn), sum(abs(sizes[n] - centre) for n in drawn)
            tails[total] = tails.get(total, 0.0) + chance
            far[distance] = far.get(distance, 0.0) + chance
        for mass, shift, exact in (
            (law.mass, rounds * law.smallest_size, tails),
            (cohort_distribution.distance_distribution(law, centre), 0, far),
        ):
            for observed, chance in exact.items():
                low = sum(p for value, p in exact.items() if value <= observed)
                high = sum(p for value, p in exact.items() if value >= observed)
                found = cohort_distribution.two_sided_p_value(
                    cohort_distribution.distribution_of_sum(mass, rounds), observed - shift
                )
                assert found == pytest.approx(min(1.0, 2 * min(low, high)), rel=1e-9, abs=1e-15)  # a Fourier transform
                assert chance <= found + 1e-12


def test_cohorts_far_outside_of_the_law_and_huge_populations():
    who = Poisson(cohort=10_000).cohorts(1_000_000)
    law = cohort_distribution.size_distribution(who)
    assert float(law.mass.sum()) == pytest.approx(1.0, abs=1e-12)
    for sizes in ([0] * 50, [1_000_000] * 50, [10_000] * 50):
        assert cohort_distribution.poisson_finding(law, 10_000, sizes, 1e-6)[0] is False
    drawn = np.random.default_rng(3).binomial(1_000_000, 0.01, 50).tolist()
    assert cohort_distribution.poisson_finding(law, 10_000, drawn, 1e-3)[0] is True


def test_skellam_of_small_variance_is_not_taken_for_wrong_noise():
    """Excess kurtosis 1: with plain chi-square limits 11% of correct rounds would be outside of 5% limits."""
    alpha, rounds, n = 0.05, 800, 300
    randomness = Simulated(seeds=Seeds(root=5))
    outside = plain = 0
    for number in range(rounds):
        squares = SkellamLaw(1).sample(n, randomness, "noise", number).astype(float) ** 2
        noise = SumNoise(mean_square=float(squares.mean()), entries=n, draws=1, digest="")
        for excess in (1.0, 0.0):
            charged = noise_evidence.ChargedNoise(
                share_variance=1.0, least_draws=1, entries=n, whole_numbers=True, excess=excess
            )
            one = noise_evidence.MeasuredNoise(round=1, noise=noise, charged=charged, ratio=noise.mean_square)
            low, high = noise_evidence.limits_of_ratio(one, alpha=alpha)
            beyond = not low <= one.ratio <= high
            outside, plain = outside + (beyond and excess > 0), plain + (beyond and excess == 0)
    assert outside <= binom.isf(1e-4, rounds, alpha)
    assert plain > binom.isf(1e-4, rounds, alpha)
