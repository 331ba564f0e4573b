"""Verdicts on the papers' claims: the rule has the error rate that it states, and the page shows what the files say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import ttest_1samp

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def verdicts() -> ModuleType:
    sys.path.insert(0, str(ROOT / "experiments"))
    import verdicts  # type: ignore[import-not-found]

    return verdicts


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_rule_is_the_one_sided_t_test(verdicts: ModuleType, count: int) -> None:
    drawn = np.random.default_rng(count).normal(0.5, 1.0, (200, count))
    above, below = (ttest_1samp(drawn, 0, axis=1, alternative=one).pvalue < 0.05 for one in ("greater", "less"))
    expected = np.where(above, "holds", np.where(below, "reversed", "not shown"))
    assert [verdicts.verdict(one) for one in drawn] == expected.tolist()


def test_without_a_difference_each_wrong_word_has_its_rate(verdicts: ModuleType) -> None:
    """Seeded; the test fails on a right rule with probability 1e-4 (four standard errors on either side)."""
    words = [verdicts.verdict(one) for one in np.random.default_rng(0).normal(0, 1.0, (4000, 3))]
    for word in ("holds", "reversed"):
        assert words.count(word) / len(words) == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / len(words)) ** 0.5)


def test_one_seed_shows_nothing_and_the_direction_counts(verdicts: ModuleType) -> None:
    assert verdicts.verdict([50.0]) == "not shown"
    assert verdicts.verdict([5.0, 5.1, 4.9]) == "holds"
    assert verdicts.verdict([-5.0, -5.1, -4.9]) == "reversed"
    cells = {"a": [5.0, 5.1, 4.9], "b": [-5.0, -5.1, -4.9], "c": [1.0]}
    assert verdicts.overall(cells) == "holds in 1, reversed in 1, not shown in 1 of 3"


def test_pairs_are_of_one_seed_and_one_device(verdicts: ModuleType) -> None:
    lines = [
        {"row": "A", "seed": "0", "device": "cpu", "x": "3"},
        {"row": "B", "seed": "0", "device": "cpu", "x": "1"},
        {"row": "A", "seed": "1", "device": "cpu", "x": "9"},
        {"row": "B", "seed": "1", "device": "gpu", "x": "1"},
    ]
    assert verdicts.paired(lines, "A", "B", "x") == [2.0]


def test_a_wrong_verdict_on_the_page_is_seen(verdicts: ModuleType) -> None:
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [f"| {' | '.join(row)} |" for row in verdicts.rows()]
    assert [row for row in rows if row not in page] == []
    other = {"holds": "reversed", "reversed": "holds"}
    decided = [row for row in verdicts.rows() if row[-1] in other]
    assert decided
    assert all(f"| {' | '.join([*row[:-1], other[row[-1]]])} |" not in page for row in decided)


def test_every_claim_has_results_and_differences_agree_with_the_stored_means(verdicts: ModuleType) -> None:
    assert all(claim.differences() for claim in verdicts.CLAIMS)
    means = {
        (line["row"], line["split"]): float(line["mean"])
        for line in verdicts.read("fedmrn/12-rounds/table.csv")
        if line["quantity"] == "test_accuracy"
    }
    for higher, lower in (("FedMRN", "EDEN"), ("FedMRN", "DRIVE"), ("SignSGD", "FedPM")):
        for split, differences in verdicts.fedmrn("Table 1", f"{higher} - {lower}")().items():
            assert np.mean(differences) == pytest.approx(means[higher, split] - means[lower, split], abs=0.1)
