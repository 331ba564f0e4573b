"""Trials of whole rounds in two neighbouring worlds, and the scores by which an adversary distinguishes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from accounting.arrays import Floats, Ints
from dpfed.audit.round.bernoulli_ratios import BernoulliBias, BernoulliRatio, BernoulliScores
from dpfed.audit.round.bound_checks import in_charged_metric
from dpfed.audit.round.claims import Claim
from dpfed.audit.round.count_of_norms import CountScore
from dpfed.audit.round.neighbours import Neighbours
from dpfed.audit.round.one_round import OneRound
from dpfed.audit.round.whole_round import RoundOutcome, WholeRounds
from dpfed.audit.statistics import power, score_distribution, thresholds
from dpfed.audit.statistics.epsilon_bounds import best_guess_cuts
from dpfed.audit.statistics.score_distribution import NormalMixture, ScoreDistribution
from dpfed.audit.statistics.thresholds import GuessCuts, ScoreCuts, Thresholds
from dpfed.audit.trials import calls_in_random_order
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.integers import Integers

PILOT = 200
"""Number of uncounted trials in each world that choose the cuts for scores of lossy encodings."""

_ROUNDINGS = 8
_NOTHING = 1e-6
_CANDIDATES = 121


@dataclass(frozen=True, kw_only=True)
class TrialOutcomes:
    """Outcome of trials in both worlds.

    scores:  for each kind of score, the scores in world 0 and in world 1, one for each trial
    entries: all different sets of ledger lines of a round
    follows_rule: True if every new state follows from the released sum alone
    """

    scores: dict[str, tuple[Floats, Floats]]
    entries: frozenset[tuple[str, ...]]
    follows_rule: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoWorlds:
    """One pair of worlds, prepared for trials.

    gap:             distance between noiseless releases over the claimed sensitivity; 1 if the pair attains it
    base, direction: [k], or [clients, k] if every upload is visible: the filter score is (release - base) @ direction
    distributions:   distribution of the scores of each kind if the claim holds; without the kinds for which it is
                     unknown
    """

    pair: Neighbours
    claim: Claim
    rounds: WholeRounds
    base: Tensor
    direction: Tensor
    gap: float
    distributions: dict[str, ScoreDistribution]
    ratio: BernoulliRatio | None = None
    count: CountScore | None = None

    @staticmethod
    def prepare(one: OneRound, claim: Claim, pair: Neighbours) -> TwoWorlds:
        """Prepare a pair for trials: noiseless releases and scores. one: round that draws new noise in every call."""
        if pair.broadcast is not None:
            one = replace(one, state=replace(one.state, broadcast=pair.broadcast))
        return (_noised_pair if claim.coins is None else _bernoulli_pair)(one, claim, pair)

    def trials(self, counts: tuple[int, int], *, seed: int = 0, say: Callable[[int], object] = int) -> TrialOutcomes:
        """Run whole rounds of both worlds in a random order. counts: numbers of trials in world 0 and in world 1.

        If every upload is visible, each upload of a round is a trial. say: function that is called with the number of
        finished trials.
        """
        of_round = self.rounds.one_round.clients if self.claim.visible_output == "uploads" else 1
        rounds = [math.ceil(count / of_round) for count in counts]
        found: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in self.pair.scores}
        entries, follows_rule = set(), []

        def run(numbers: list[int]) -> list[None]:
            for number in numbers:
                world = int(number >= rounds[0])
                done = self._round(world)
                entries.add(tuple(json.dumps(entry.to_dict(), sort_keys=True) for entry in done.entries))
                follows_rule.append(done.follows_rule)
                for kind, scores in found.items():
                    scores[world].extend(self._scores(kind, done))
            return [None] * len(numbers)

        for _ in calls_in_random_order(run, sum(rounds), np.random.default_rng([seed, 0x0D])):
            say(sum(len(some) for some in found[self.pair.scores[0]]))
        scores = {kind: (np.array(one[: counts[0]]), np.array(two[: counts[1]])) for kind, (one, two) in found.items()}
        return TrialOutcomes(scores=scores, entries=frozenset(entries), follows_rule=all(follows_rule))

    def cuts(self, kind: str, trials: int, alpha: float) -> ScoreCuts:
        """Return the cuts of a score for this number of trials in both worlds together.

        They are chosen by the claimed distribution; for lossy encodings, by an uncounted pilot.
        """
        law, profile, delta = self.distributions.get(kind), self.claim.profile, self.claim.delta
        if isinstance(law, NormalMixture) and len(law.weights[1]) > 1:
            low, high = law.range_of_means()
            at = np.linspace(low - 5.0, high + 5.0, _CANDIDATES)
            cut = power.threshold_for_short_noise(law, profile, trials=trials // 2, alpha=alpha)
            return _score_cuts(cut, best_guess_cuts(law.error_rates, at, trials=trials, alpha=alpha, delta=delta))
        if self.ratio is not None and self.ratio.has_impossible_values:
            return ScoreCuts.from_one_cut(0.0, "likelihood ratio 1, since a value is possible in one world only")
        centre, scale, mu, origin = self._standardisation(kind, trials)
        if not 1e-6 < abs(mu) < math.inf or not math.isfinite(scale):
            middle = centre + scale * mu / 2 if math.isfinite(mu) else 0.0
            return ScoreCuts.from_one_cut(middle if math.isfinite(middle) else 0.0, "no noise, or nothing to separate")
        unit = thresholds.gaussian_threshold(abs(mu), trials=trials // 2, alpha=alpha)
        at = np.linspace(-6.0, abs(mu) + 6.0, _CANDIDATES)
        found = best_guess_cuts(
            score_distribution.scores_of_all_clients(abs(mu)).error_rates, at, trials=trials, alpha=alpha, delta=delta
        )
        sign = 1.0 if mu > 0 else -1.0
        ends = sorted(centre + scale * sign * value for value in (found.low, found.high))
        values = tuple(centre + scale * sign * value for value in unit.values)
        return _score_cuts(
            Thresholds(values=values, origin=origin), GuessCuts(low=ends[0], high=ends[1], origin=origin)
        )

    def _standardisation(self, kind: str, trials: int) -> tuple[float, float, float, str]:
        """Return (centre, scale, mu, source); (score - centre) / scale is about N(0, 1) in world 0, N(mu, 1) in world
        1.
        """
        law = self.distributions.get(kind)
        if isinstance(law, NormalMixture):
            mu = float(law.means[1][0] if kind != "filter" else self.claim.mu or 0.0)
            return 0.0, 1.0, mu, "best for the claimed distribution"
        if self.ratio is not None:
            low, high, scale = self.ratio.moments
            return low, scale, (high - low) / scale if scale else 0.0, "the claimed samples"
        count = min(PILOT, max(trials // 2, 1))
        pilot = self.trials((count, count)).scores[kind]
        centre, scale = float(pilot[0].mean()), float(np.std(np.concatenate(pilot))) or 1.0
        return centre, scale, float(pilot[1].mean() - centre) / scale, "a pilot"

    def _round(self, world: int) -> RoundOutcome:
        pair, rounds = self.pair, self.rounds
        own = (pair.neighbour_update, pair.tested_update)[world]
        if self.claim.visible_output == "uploads":
            given = torch.zeros_like(pair.tested_update) if own is None else own
            return rounds.run(rounds.moves(given, given), rounds.smallest_cohort())
        return rounds.run(rounds.moves(own, pair.common_update), rounds.cohort(own is None))

    def _scores(self, kind: str, done: RoundOutcome) -> list[float]:
        if kind == "ratio":
            assert self.ratio is not None
            alone = self.claim.visible_output == "uploads"
            sums = torch.stack([row for _, row in done.uploads.values()]) if alone else done.total[None]
            return [float(score) for score in self.ratio.scores(sums)]
        if self.claim.visible_output == "uploads":
            rows = torch.stack([done.uploads[k][0 if kind == "filter" else 1] for k in range(len(done.uploads))])
            if kind == "support":
                return ((rows != 0).double() @ torch.sign(self.direction[0])).tolist()
            scores = ((rows.double() - self.base) * self.direction).sum(dim=1) / self.claim.noise_std
            return [float(score) for score in scores]
        if kind == "count":
            assert self.count is not None
            return [self.count.score(done.state)]
        released = self.rounds.released_sum(done)
        score = float((released - self.base) @ self.direction) / self.claim.noise_std
        if kind == "filter":
            return [score]
        assert self.count is not None
        return [self.count.joint_score(score, done.state, self.gap * (self.claim.mu or 0.0))]


def _score_cuts(of_profile: Thresholds, of_guesses: GuessCuts) -> ScoreCuts:
    return ScoreCuts(profile_thresholds=of_profile, guess_cuts=of_guesses, gaussian_cut=of_profile.values[0])


def _noised_pair(one: OneRound, claim: Claim, pair: Neighbours) -> TwoWorlds:
    """Prepare a pair for a noised vector: scores are inner products with the difference of the noiseless releases."""
    rounds, quiet = WholeRounds(one_round=one), WholeRounds(one_round=one.without_noise)
    if claim.visible_output == "uploads":
        ends = [_rows_before_encoding(quiet, update) for update in (pair.neighbour_update, pair.tested_update)]
        base, difference = ends[0], ends[1] - ends[0]
    else:
        together = rounds.smallest_cohort()
        ends = [
            _noiseless_releases(quiet, quiet.moves(own, pair.common_update), together[1:] if own is None else together)
            for own in (pair.neighbour_update, pair.tested_update)
        ]
        base, difference = ends[0].mean(dim=0), (ends[1] - ends[0]).mean(dim=0)
    direction = difference / torch.linalg.vector_norm(difference, dim=-1, keepdim=True).clamp_min(1e-300)
    gap = float(torch.linalg.vector_norm(ends[1] - ends[0], dim=1).mean()) / claim.sensitivity
    mu = min(gap, 1.0) * (claim.mu or 0.0)
    drawn = quiet.draws_cohort and claim.visible_output == "sum"
    distributions: dict[str, ScoreDistribution] = {
        "filter": _filter_score_distribution(quiet, claim, pair, mu, base, direction)
        if drawn
        else score_distribution.scores_of_all_clients(mu)
    }
    count = CountScore.prepare(quiet, pair, claim) if claim.count_separation and claim.visible_output == "sum" else None
    if count is not None and not one.sampled:
        distributions |= {
            "count": score_distribution.scores_of_all_clients(count.mu),
            "joint": score_distribution.scores_of_all_clients(math.hypot(mu, count.mu)),
        }
    return TwoWorlds(
        pair=pair,
        claim=claim,
        rounds=rounds,
        base=base,
        direction=direction,
        count=count,
        gap=gap,
        distributions=distributions,
    )


def _noiseless_releases(quiet: WholeRounds, moves: Tensor, cohort: Ints) -> Tensor:
    """Return noiseless releases [repeats, sent]; there are several repeats only if rows are rounded at random."""
    times = _ROUNDINGS if quiet.one_round.method.stages.find(Integers) is not None else 1
    return torch.stack([quiet.released_sum(quiet.run(moves, cohort), by_state=False) for _ in range(times)])


def _rows_before_encoding(quiet: WholeRounds, update: Tensor | None) -> Tensor:
    """Return the rows [clients, sent] that enter the encoding if every client sends this update."""
    given = torch.zeros(quiet.one_round.method.clients.course.size) if update is None else update
    done = quiet.run(quiet.moves(given, given), quiet.smallest_cohort())
    return torch.stack([done.uploads[k][0] for k in range(len(done.uploads))]).double()


def _filter_score_distribution(
    quiet: WholeRounds, claim: Claim, pair: Neighbours, mu: float, base: Tensor, direction: Tensor
) -> NormalMixture:
    """Return the distribution of the filter scores for drawn cohorts, a mixture over cohorts."""
    together, moves = quiet.smallest_cohort(), quiet.moves(pair.neighbour_update, pair.common_update)

    def mean_projection(cohort: Ints) -> float:
        return float(_noiseless_releases(quiet, moves, cohort).mean(dim=0) @ direction)

    origin = float(base @ direction)
    return score_distribution.scores_of_drawn_cohort(
        claim.sampling,
        quiet.one_round.method.sampler.clients,
        mu,
        out=(mean_projection(together[1:]) + mean_projection(together[1:2]) - origin) / claim.noise_std
        if pair.neighbour_update is not None
        else 0.0,
        rest=mean_projection(together[1:2]) / claim.noise_std if len(together) > 1 else 0.0,
        expected=len(together) - 1,
        present=pair.neighbour_update is not None,
    )


def _bernoulli_pair(one: OneRound, claim: Claim, pair: Neighbours) -> TwoWorlds:
    """Prepare a pair for sums of Bernoulli samples, whose distribution follows from the bounded moves.

    If the claimed clip to the edges hides the move, the scores assume samples without this clip: a 1 of probability 0
    then reveals its world.
    """
    mechanism = claim.coins
    assert mechanism is not None
    assert pair.neighbour_update is not None
    coins = BernoulliBias(edge=mechanism.floor, noise_std=mechanism.noise_std)
    stage = one.method.stages.find(PrivateCoins)
    trials = 1 if stage is None else stage.trials
    client, start = np.zeros(1, dtype=np.int64), one.reference.double()
    ends = [
        start + one.upload(update[None], client).bounded[0].double()
        for update in (pair.tested_update, pair.neighbour_update, pair.common_update)
    ]
    others = one.clients - 1 if claim.visible_output == "sum" else 0
    moved = ends[0].clamp(coins.edge, 1 - coins.edge) - ends[1].clamp(coins.edge, 1 - coins.edge)
    moved = in_charged_metric(one, claim, moved)
    gaps = [
        float(norm) / limit
        for norm, limit in (
            (trials**0.5 * moved.norm(), mechanism.sensitivity(mechanism.l2_clip)),
            (moved.abs().max(), mechanism.sensitivity(mechanism.linf_clip)),
        )
        if limit is not None
    ]
    scored = coins if max(gaps) > _NOTHING else replace(coins, edge=0.0)
    ratio = BernoulliRatio.from_probabilities(
        scored, ends[0], ends[1], ends[2], others, claim.sampling.probability, trials
    )
    return TwoWorlds(
        pair=pair,
        claim=claim,
        rounds=WholeRounds(one_round=one),
        base=torch.zeros(0),
        direction=torch.zeros(0),
        ratio=ratio,
        gap=max(gaps),
        distributions={
            "ratio": BernoulliScores(
                coins=coins, ends=(ends[0], ends[1], ends[2]), origin=start, ratio=ratio, trials=trials
            )
        },
    )
