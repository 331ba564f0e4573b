"""Counting errors at thresholds."""

import math

import numpy as np
import pytest
from refusals import refused

from dpfed.audit.statistics.rejection import ErrorCounts, checked_scores
from dpfed.errors import ConfigError


def test_counts_equal_counting_one_by_one_with_ties_and_infinities():
    rng = np.random.default_rng(0)
    scores0 = np.append(rng.integers(-3, 4, 50).astype(float), [math.inf, -math.inf])
    scores1 = np.append(rng.integers(-1, 6, 70).astype(float), [math.inf, -math.inf, -math.inf])
    thresholds = np.array([-10.0, -3.0, 0.0, 0.5, 1.0, 6.0])
    counts = ErrorCounts.from_scores(scores0, scores1, thresholds)
    assert counts.false_positives.tolist() == [sum(s >= t for s in scores0) for t in thresholds]
    assert counts.false_negatives.tolist() == [sum(s < t for s in scores1) for t in thresholds]
    assert (counts.trials0, counts.trials1) == (52, 73)


def test_a_score_at_the_threshold_says_the_second_world():
    counts = ErrorCounts.from_scores(np.array([1.0]), np.array([1.0]), [1.0])
    assert (counts.false_positives[0], counts.false_negatives[0]) == (1, 0)


def test_limits_share_alpha_between_thresholds_and_worlds():
    one = ErrorCounts.from_scores(np.zeros(20), np.ones(20), [0.5])
    many = ErrorCounts.from_scores(np.zeros(20), np.ones(20), [0.5, 0.5, 0.5, 0.5])
    assert many.upper_limits(alpha=0.2)[0][0] == one.upper_limits(alpha=0.05)[0][0]
    assert one.upper_limits(alpha=0.05)[0][0] == pytest.approx(1 - 0.025 ** (1 / 20), rel=1e-12)


@pytest.mark.parametrize("scores", [[], [[1.0, 2.0]], 3.0, ["x"]])
def test_what_is_no_list_of_scores_is_refused(scores):
    refused(ConfigError, r"scores0.*list of (at least one number|numbers)", checked_scores, scores, "scores0")


def test_nan_is_refused_and_counted():
    refused(ConfigError, "2 of 3 scores are NaN", checked_scores, [math.nan, 1.0, math.nan], "scores1")
