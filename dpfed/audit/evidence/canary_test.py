"""Test of a run's canaries against the claim of one round without sampling.

A fair coin flip decided if a canary was in its round. Its score is scaled so that the claimed noise has standard
deviation 1. It is about N(0, 1) for absent canaries and N(|z| / sigma, 1) for present ones, where z is the bounded row,
plus a contribution of all other clients. This is a smoke test for gross faults in a whole training (no noise, a row
that was not bounded, a canary counted twice), not a certificate: a hundred canaries do not reveal that noise is half of
the claimed noise. A canary is evidence about a random direction in one round, not about the worst client or all rounds.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from accounting.compose import accountant, profiles
from accounting.ledger import Release
from accounting.mechanisms import BernoulliAggregate, Unsampled, noise_of, unsampled
from accounting.rounding import downwards, upwards
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.statistics import epsilon_bounds, one_run
from dpfed.audit.statistics.one_run import factor_bound
from dpfed.audit.statistics.power import Power, RejectionRegion, power_of, scores_of_all_clients
from dpfed.audit.statistics.rejection import ClaimTest, gaussian_threshold, reject_claim
from dpfed.audit.verdict import Finding
from dpfed.participation.sampling import canaries_of
from dpfed.records.reading import Unavailable

_LOUD_ENOUGH = 0.95
"""Part of the clip norm that the norm of a canary's row must reach to test the bound."""

_OF_WHOLE = 0.1
_ROUNDING = 1e-6
_SHARED = 2.0
"""Bound on the variance of a mean score as a multiple of that of independent scores.

Canaries i and j of one round both have the term <z_i, z_j> in their scores, which counts twice in that variance.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class CanaryResult:
    """Result of the canaries: evidence on one round without its sampling.

    scores, present: score, and True if present, of every canary with a score [k]; in units of the claimed noise
    shift:           claimed mean score of present canaries: the median of |z| / sigma
    score_gap:       median of |z| over the clip norm
    round_epsilon:   claimed epsilon of one round without sampling, at `delta`
    claim, power:    test of two worlds against the claimed profile, and its power for any scores
    lower_bound:     lower bound on epsilon at `delta`, valid if the round is mu-GDP for some mu
    moved:           lower bound on the distance that present canaries move the sum, over the norm of their rows
    moved_epsilon:   lower bound on a round's epsilon from `moved` and the charged noise; None unless it is Gaussian
    too_far:         True if present canaries move the sum farther than their rows are long, which refutes the claim
    one_run:         lower bounds on epsilon at `delta` by guessing all coin flips of the run, for mu-GDP and for any
                     mechanism
    """

    scores: NDArray[np.float64]
    present: NDArray[np.bool_]
    shift: float
    score_gap: float
    delta: float
    round_epsilon: float
    lower_bound: float
    moved: float
    moved_epsilon: float | None
    too_far: bool
    claim: ClaimTest
    power: Power
    one_run_rejected: bool
    one_run: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the canaries, without the scores."""
        return {
            "present": int(self.present.sum()),
            "absent": int((~self.present).sum()),
            "claimed_shift": self.shift,
            "round_epsilon": self.round_epsilon,
            "round_lower_bound": self.lower_bound,
            "moved_at_least": self.moved,
            "round_lower_bound_known_law": self.moved_epsilon,
            "two_worlds": asdict(self.claim),
            "power": self.power.to_dict(),
            "one_run": self.one_run | {"rejected": self.one_run_rejected},
        }


def canaries_follow_seed(files: RunFiles) -> Finding:
    """Check that canaries.jsonl has, for every round with a result, the canaries and coin flips that run.seed gives."""
    schedule, expected = canaries_of(files.config), set()
    for one in files.results:
        present, absent = schedule.canaries_of_round(one.round - 1)
        expected |= {(one.round, int(canary), True) for canary in present}
        expected |= {(one.round, int(canary), False) for canary in absent}
    found = [(one.round, one.canary, one.present) for one in files.canaries]
    if len(set(found)) < len(found) or set(found) != expected:
        return False, (
            f"{len(expected - set(found))} lines are missing, {len(set(found) - expected)} are not of run.seed."
        )
    unscored = files.config.audit.canaries - len(found)
    return True, f"{len(found)} canaries have the rounds and coin flips that run.seed gives" + (
        f"; {unscored} more have no score, as their rounds ended without a result or were not run." if unscored else "."
    )


def canary_result(files: RunFiles, *, alpha: float) -> CanaryResult:
    """Return the tests of two worlds and of one run, each at 0.45 alpha, and the test of whole scores at 0.1 alpha.

    Thresholds and the number of guesses depend only on the claim and the number of canaries. Errors: Unavailable if
    there are no present, or no absent, canaries.
    """
    seen = [one for one in files.canaries if one.round in files.releases]
    present = np.array([one.present for one in seen], dtype=np.bool_)
    if len(seen) < 2 or present.all() or not present.any() or not all(one.norm > 0 for one in seen):
        raise Unavailable(f"canaries.jsonl: {int(present.sum())} canaries present and {int((~present).sum())} absent.")
    shifts = np.array([one.norm / noise_along_direction(files.releases[one.round]) for one in seen])
    scores = np.array([one.score for one in seen]) * shifts
    mechanism = mechanism_with_least_noise([files.releases[one.round] for one in seen])
    profile, delta = profiles.profile(mechanism), files.delta
    shift = float(np.median(shifts))
    each, parts = (1 - _OF_WHOLE) / 2 * alpha, np.array([one.score for one in seen])
    levels = (alpha, _OF_WHOLE * alpha)
    moved, surely = (factor_bound(parts[~present], parts[present], alpha=one, shared=_SHARED) for one in levels)
    cut = gaussian_threshold(shift, trials=max(files.config.audit.canaries // 2, 1), alpha=each)
    law = scores_of_all_clients(shift)
    trials = int((~present).sum()), int(present.sum())
    region = RejectionRegion.of_one_threshold(profile, law, threshold=cut, trials=trials, alpha=each)
    guesses = one_run.guess(scores, present, guesses=max(len(seen) // 2, 1), seed=files.config.run.seed)
    worlds = scores[~present], scores[present]
    mu = epsilon_bounds.gdp_lower_bound(*worlds, alpha=each, cut=cut)
    return CanaryResult(
        scores=scores,
        present=present,
        shift=shift,
        score_gap=float(np.median([one.norm / files.releases[one.round].clip_norm for one in seen])),
        delta=delta,
        round_epsilon=accountant.epsilon(mechanism, delta=delta),
        lower_bound=epsilon_bounds.epsilon_of_shift(mu, delta=delta),
        moved=moved,
        moved_epsilon=None
        if noise_of(mechanism) is None
        else epsilon_bounds.epsilon_of_shift(moved * float(shifts.min()), delta=delta),
        too_far=surely > 1 + _ROUNDING,
        claim=reject_claim(*worlds, profile, alpha=each, thresholds=(cut,)),
        power=power_of(region, law),
        one_run_rejected=one_run.rejects_profile(guesses, profile, alpha=each),
        one_run={
            "guesses": guesses.made,
            "correct": guesses.correct,
            "lower_bound": one_run.epsilon_lower_bound(guesses, delta=delta, alpha=each),
            "gdp_lower_bound": one_run.gdp_epsilon_lower_bound(guesses, delta=delta, alpha=each),
        },
    )


def canaries_agree_with_claim(found: CanaryResult) -> Finding:
    """Check the scores of canaries, and the guesses of their coin flips, against the claimed profile of one round.

    Inconclusive (None) if noise short by a fifth would not have been found, which holds for most numbers of canaries.
    The noise itself is measured by another check.
    """
    present, absent = found.scores[found.present], found.scores[~found.present]
    detail = (
        f"{len(present)} present, {len(absent)} absent: mean scores {present.mean():.2f} and {absent.mean():.2f} noise "
        f"standard deviations (claimed: {found.shift:.2f} and 0); one round has epsilon of at least "
        f"{downwards(found.lower_bound)} if it is Gaussian, {upwards(found.round_epsilon)} is claimed for it without "
        f"sampling; present canaries move the sum by at least {downwards(found.moved, digits=2)} of their bounded rows"
        f"{_moved_epsilon_text(found)}; {found.one_run['correct']} of {found.one_run['guesses']} coin flips guessed "
        "rightly. This is a smoke test for random directions, not for the worst client: these canaries would "
        f"have found {found.power.as_text()}."
    )
    if found.claim.rejected:
        return False, f"the scores reveal which canaries took part better than the claim of one round allows. {detail}"
    if found.too_far:
        return False, f"canaries move the sum farther than their bounded rows are long. {detail}"
    if found.one_run_rejected:
        return False, f"the coin flips can be guessed better than the claim of one round allows. {detail}"
    if found.score_gap < _LOUD_ENOUGH:
        return None, (f"canaries had only {found.score_gap:.3f} of the clip norm, so the clip was not tested. {detail}")
    return True if found.power.is_sufficient else None, detail


def _moved_epsilon_text(found: CanaryResult) -> str:
    if found.moved_epsilon is None:
        return ""
    return f" (epsilon of at least {downwards(found.moved_epsilon)} with the charged noise)"


def noise_along_direction(release: Release) -> float:
    """Return the standard deviation of the noise along a direction, in units of the released sum.

    For Bernoulli uploads it is that of K samples of probability 1/2, the largest possible; it affects thresholds only.
    """
    mechanism = unsampled(release.mechanism)
    if isinstance(mechanism, BernoulliAggregate):
        return math.sqrt(mechanism.cohort) / 2
    if not release.noise_std > 0:
        raise Unavailable(f"ledger.jsonl, round {release.round + 1}: no noise.")
    return release.noise_std


def mechanism_with_least_noise(releases: list[Release]) -> Unsampled:
    """Return the mechanism, without sampling, of the release with the least noise relative to its bound."""
    found = [unsampled(release.mechanism) for release in releases]
    if not all(one.sums for one in found):
        raise Unavailable("ledger.jsonl: each upload is a release, so there is no sum that could contain a canary.")
    return max(found, key=lambda one: math.inf if one.mu is None else one.mu)
