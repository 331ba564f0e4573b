"""Scores of outputs of unknown distribution, learnt from a pilot whose calls are not counted as trials.

direction: inner product with the mean difference of the two worlds over the noise variance of each coordinate.
contrast: Fisher's discriminant with the noise covariance of all coordinates, for noise that coordinates share.
copies: Fisher's discriminant for coordinates with equal noise, as with one seed for every layer, whose differences
    have no noise.
entries: log-likelihood ratio of which entries are not zero, and of the number of entries.
size: norm of the output minus the mean output of world 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import ndtr

from accounting.arrays import Floats, Ints
from dpfed.audit.functions.claim import FunctionClaim
from dpfed.audit.functions.outputs import with_width
from dpfed.audit.statistics import rejection
from dpfed.audit.statistics.epsilon_bounds import best_guess_cuts
from dpfed.audit.statistics.power import threshold_for_short_noise
from dpfed.audit.statistics.rejection import ErrorCounts, GuessCuts, ScoreCuts, reject_counts

_NOTICED = 4.0
"""Separation of the worlds, in standard errors of the pilot, above which a score other than `direction` is used."""

_COPIES = 0.9
"""Correlation above which two coordinates have equal noise; 50 independent draws exceed it with probability 1e-18."""

_CANDIDATES = 81
_OWN = 0.05
_OWN_OF_COPIES = 1e-4
_WIDEST = 500
_WIDEST_PAIRS = 3_000
_MOST_NUMBERS = 30_000_000
_ROWS = 50
_FAR_APART = 20.0
_SHARED = 1.5
_FARTHEST = 1e12
_A_FIFTH_SHORT = 0.8


@dataclass(frozen=True, kw_only=True, eq=False)
class LearntScore:
    """One score, and scores of a part of the pilot that it was not learnt on.

    score_rows: function from a table of outputs [n, width + 2] to scores [n]
    pilot: scores in world 0 and in world 1
    shift: difference of the worlds' means measured without noise, from shared seeds; None if noise hides it
    """

    kind: str
    score_rows: Callable[[Floats], Floats]
    pilot: tuple[Floats, Floats]
    shift: float | None = None

    @property
    def centre(self) -> float:
        """Mean of the pilot's scores in world 0."""
        return float(self.pilot[0].mean())

    @property
    def std(self) -> float:
        """Standard deviation of the pilot's scores within a world; 0 if scores do not vary."""
        return float(np.sqrt((self.pilot[0].var() + self.pilot[1].var()) / 2))

    @property
    def sign_of_world_1(self) -> float:
        """+1 if scores of world 1 are higher than those of world 0 on average, else -1."""
        return 1.0 if self.pilot[1].mean() >= self.centre else -1.0

    @property
    def separation(self) -> float:
        """Distance between the mean scores of the two worlds, over the standard deviation within a world."""
        seen = float(self.pilot[1].mean()) - self.centre
        gap = abs(seen if self.shift is None else self.shift)
        if gap <= 1e-9 * max(float(np.abs(scores).max()) for scores in self.pilot):
            return 0.0
        return gap / self.std if self.std > 1e-9 * gap else math.inf

    def cuts(self, claim: FunctionClaim, *, trials: int, alpha: float) -> ScoreCuts:
        """Return the cuts for the profile and for guesses, chosen by the smoothed pilot, and the middle of the scores.

        For a Gaussian claim the cut of the profile is the best one for Gaussian scores. For a Gaussian claim on a drawn
        cohort a second cut is the best one for its distribution.
        """
        low, high = (float(end) for end in np.percentile(np.concatenate(self.pilot), [0, 100]))
        middle = (float(self.pilot[0].mean()) + float(self.pilot[1].mean())) / 2
        width = self.std * 1.06 * len(self.pilot[0]) ** -0.2
        if not width > 1e-12 * max(abs(low), abs(high)):
            cuts = GuessCuts(low=middle, high=middle)
            return ScoreCuts(profile_thresholds=(middle,), guess_cuts=cuts, gaussian_cut=middle)
        at = np.linspace(low - 3 * width, high + 3 * width, _CANDIDATES)
        rates, drawn = _smoothed_error_rates(self.pilot, width), claim.drawn_cohort
        guesses = best_guess_cuts(rates, at, trials=trials, alpha=alpha, delta=claim.delta)
        if claim.is_gaussian:
            apart = min(max(claim.mu, self.separation), _FAR_APART)
            unit = rejection.gaussian_threshold(apart, trials=trials // 2, alpha=alpha)
            best = self.centre + self.sign_of_world_1 * self.std * unit
            return ScoreCuts(profile_thresholds=(best,), guess_cuts=guesses, gaussian_cut=middle)
        short = [scores.mean() + _A_FIFTH_SHORT * (scores - scores.mean()) for scores in self.pilot]
        errors = _smoothed_error_rates((short[0], short[1]), _A_FIFTH_SHORT * width)
        seen = [ErrorCounts.expected_counts(errors(float(t)), trials=trials // 2) for t in at]
        shown = [reject_counts(counts, claim.profile, alpha=alpha).excess for counts in seen]
        loudest = float(at[int(np.argmax(shown))]) if max(shown) > 0 else middle
        if drawn is None:
            return ScoreCuts(profile_thresholds=(loudest,), guess_cuts=guesses, gaussian_cut=middle)
        unit = threshold_for_short_noise(drawn.law, claim.profile, trials=trials // 2, alpha=alpha / 2)
        best = self.centre + self.sign_of_world_1 * (unit - drawn.centre) * self.std / drawn.std
        return ScoreCuts(profile_thresholds=(loudest, best), guess_cuts=guesses, gaussian_cut=middle)


def learn_scores(one: tuple[Floats, Floats], other: tuple[Floats, Floats], *, shared: bool) -> list[LearntScore]:
    """Return the scores that separate the worlds of a pilot; the score `direction` is always among them.

    one, other: two tables of outputs of world 1 and of world 0: the first to learn on, the second to measure on.
    shared: True if the first tables of both worlds have equal seeds and noise follows the seed, so that noise cancels
    in their differences.
    """
    width = max(table.shape[1] for table in (*one, *other)) - 2
    first, second = ([with_width(table, width) for table in tables] for tables in (one, other))
    found: list[LearntScore] = []
    scale = _column_scales(first[0], second[0])
    learn_on = first[0] / scale, second[0] / scale
    for kind, learn in _KINDS.items():
        of = learn(*learn_on, scale)

        def score_table(table: Floats, of: Callable[[Floats], Floats] = of) -> Floats:
            return of(with_width(table, width))

        shift = float((of(first[0]) - of(second[0])).mean()) if shared and kind == "direction" else None
        score = LearntScore(kind=kind, score_rows=score_table, pilot=(of(second[1]), of(first[1])), shift=shift)
        if kind in ("contrast", "copies") and not score.separation > _SHARED * max(one.separation for one in found):
            continue
        if kind == "direction" or score.separation > _NOTICED / math.sqrt(len(score.pilot[0]) / 2):
            found.append(score)
    return found


def noise_follows_seed(one: Floats, other: Floats) -> bool:
    """Return True if noise follows the seed.

    one, other: tables of outputs of two worlds from equal seeds. Noise follows the seed if rows of equal seeds differ
    much less (variance at most a tenth) than rows of different seeds.
    """
    width = max(one.shape[1], other.shape[1]) - 2
    one, other = with_width(one, width), with_width(other, width)
    largest = float(_column_scales(one, other).max())
    one, other = one / largest, other / largest
    return float((one - other).var(axis=0).sum()) <= 0.1 * float(other.var(axis=0).sum() + one.var(axis=0).sum())


def _column_scales(one: Floats, other: Floats) -> Floats:
    """Return a power of two for each column; columns divided by it can be squared without overflow."""
    exponents = np.frexp(np.maximum(np.abs(one).max(axis=0), np.abs(other).max(axis=0)))[1]
    return np.asarray(np.ldexp(1.0, np.clip(exponents, -1000, 1000)), dtype=np.float64)


def _inner_product(weights: Floats, scale: Floats) -> Callable[[Floats], Floats]:
    largest = float(np.abs(weights).max()) or 1.0
    return lambda table: np.asarray(table @ (weights / largest / scale))


def _standardised_difference(one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return (mean difference / noise, noise) of each coordinate; noise: standard deviation within a world."""
    difference = (one - other).mean(axis=0)
    noise = (one.var(axis=0) + other.var(axis=0)) / 2
    std = np.sqrt(np.maximum(noise, 1e-18 * max(float((difference**2).max()), 1e-280)))
    return difference / std, std


def _learn_direction(one: Floats, other: Floats, scale: Floats) -> Callable[[Floats], Floats]:
    apart, std = _standardised_difference(one, other)
    return _inner_product(apart / std, scale)


def _learn_contrast(one: Floats, other: Floats, scale: Floats) -> Callable[[Floats], Floats]:
    """Return Fisher's discriminant; the covariance is regularised by a twentieth of each coordinate's variance.

    For wide tables it is computed in the space of the rows (Woodbury).
    """
    width, rows = one.shape[1], len(one) + len(other)
    if width > _WIDEST and rows * width > _MOST_NUMBERS:
        return _learn_direction(one, other, scale)
    apart, std = _standardised_difference(one, other)
    noise = np.concatenate([one - one.mean(axis=0), other - other.mean(axis=0)]) / std / math.sqrt(max(rows - 2, 1))
    if width <= _WIDEST:
        weights = np.linalg.solve(noise.T @ noise + _OWN * np.eye(width), apart)
    else:
        weights = apart - noise.T @ np.linalg.solve(noise @ noise.T + _OWN * np.eye(rows), noise @ apart)
    return _inner_product(weights / std, scale)


def _learn_copies(one: Floats, other: Floats, scale: Floats) -> Callable[[Floats], Floats]:
    """Return Fisher's discriminant if coordinates form groups with common noise, plus little noise of
    each coordinate.
    """
    apart, std = _standardised_difference(one, other)
    noise = (other[:_ROWS] - other[:_ROWS].mean(axis=0)) / std
    lengths = np.sqrt((noise**2).sum(axis=0))
    noise = noise / np.where(lengths > 0, lengths, 1.0)
    of = _groups_of_copies(noise)
    first = np.unique(of, return_index=True)[1]
    signs = np.where((noise * noise[:, first[of]]).sum(axis=0) < 0, -1.0, 1.0)
    members = coo_array((np.ones(of.size), (np.arange(of.size), of))).tocsr()
    common = np.asarray((noise * signs) @ members)
    common /= np.maximum(np.sqrt((common**2).sum(axis=0)), 1e-300)
    loads = (noise * common[:, of]).sum(axis=0)
    sizes = np.bincount(of)
    own = np.maximum(np.bincount(of, weights=1 - loads**2) / sizes, _OWN_OF_COPIES)
    along = np.bincount(of, weights=loads * apart) / (own + np.bincount(of, weights=loads**2))
    weights = np.where(sizes[of] > 1, (apart - loads * along[of]) / own[of], apart)
    return _inner_product(weights / std, scale)


def _groups_of_copies(noise: Floats) -> Ints:
    """Return the number of the group of each column of length 1; nearly equal (or opposite) columns share a group.

    In wide tables only columns next to each other in the order of a random projection are compared; exact copies are.
    """
    width = noise.shape[1]
    if width <= _WIDEST_PAIRS:
        left, right = np.nonzero(np.abs(noise.T @ noise) > _COPIES)
    else:
        order = np.argsort(np.abs(np.random.default_rng(7).standard_normal(len(noise)) @ noise))
        near = np.abs((noise[:, order[1:]] * noise[:, order[:-1]]).sum(axis=0)) > _COPIES
        left, right = order[:-1][near], order[1:][near]
    joined = coo_array((np.ones(left.size), (left, right)), shape=(width, width))
    return np.asarray(connected_components(joined, directed=False)[1], dtype=np.int64)


def _learn_entries(one: Floats, other: Floats, scale: Floats) -> Callable[[Floats], Floats]:
    """Return a naive Bayes log-likelihood ratio: from which entries are not zero and from the last two columns."""
    typical = np.median(other[:, -2:], axis=0) * scale[-2:]

    def marks_of(table: Floats) -> Floats:
        return np.concatenate([table[:, :-2] != 0, table[:, -2:] != typical], axis=1)

    rates = [(marks_of(table * scale).sum(axis=0) + 0.5) / (len(table) + 1) for table in (one, other)]
    yes, no = np.log(rates[0] / rates[1]), np.log((1 - rates[0]) / (1 - rates[1]))
    return lambda table: np.asarray(marks_of(table) @ (yes - no) + no.sum())


def _learn_size(one: Floats, other: Floats, scale: Floats) -> Callable[[Floats], Floats]:
    centre, spread = other.mean(axis=0), np.maximum(other.std(axis=0), 1e-300)
    spread = np.where(spread > 1e-9 * (np.abs(centre) + 1e-300), spread, 1.0) * scale
    centre = centre * scale

    def length(table: Floats) -> Floats:
        apart = np.clip((table - centre) / spread, -_FARTHEST, _FARTHEST)
        return np.asarray(np.log1p((apart**2).mean(axis=1)))

    sign = 1.0 if length(one * scale).mean() >= length(other * scale).mean() else -1.0
    return lambda table: sign * length(table)


_KINDS = {
    "direction": _learn_direction,
    "contrast": _learn_contrast,
    "copies": _learn_copies,
    "entries": _learn_entries,
    "size": _learn_size,
}


def _smoothed_error_rates(pilot: tuple[Floats, Floats], width: float) -> rejection.ErrorRates:
    """Return the error rates at a threshold by a Gaussian kernel density estimate of the pilot's scores."""

    def errors(threshold: float) -> tuple[float, float]:
        below = [float(ndtr((threshold - scores) / width).mean()) for scores in pilot]
        return 1 - below[0], below[1]

    return errors
