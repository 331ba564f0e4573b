"""Write paper/theorems.md: the five theorems that dpfed's accounts add to the literature, with proofs and their tests.

    python paper/theorems.py > paper/theorems.md

Statements and proofs are taken from the pages docs/theory*.md, between the marks in `PARTS`, so that a theorem stands
in one place. A mark that a page lacks, and a test that does not exist, is an error.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "accounting"
FIXED, BITS, ROUNDS = "theory.md", "theory-bernoulli.md", "theory-participation.md"
# title, meaning, parts (page, first words, words that no longer belong to it), tests (file, functions)
PARTS = (
    (
        "Fixed-size cohorts under adaptive composition",
        "A cohort of exactly r out of n clients is no Poisson sample: who enters displaces another. The epsilon of T "
        "adaptive rounds is the value of a game, and a finite cover of configurations bounds it from above.",
        [
            (FIXED, "**Lemma 1 (anchor).**", "## 3. One round"),
            (FIXED, "**Fixed size, reduction", "**Theorem 3 (Poisson,"),
            (FIXED, "**Theorem 7 (fixed size", "**Renyi.**"),
        ],
        {
            "gaussian/test_fixed_size.py": [
                "is_the_supremum_over_all_neighbours_on_a_line",
                "the_wrong_sensitivity_is_caught",
            ],
            "gaussian/test_corner_profile.py": ["random_triples_are_below_a_cell", "a_missing_cell_is_noticed"],
            "compose/test_adaptive.py": [
                "no_enumerated_strategy_shows_more",
                "enumeration_notices_an_account_that_is_too_small",
            ],
        },
    ),
    (
        "A Gaussian dominates a sum of Bernoulli uploads",
        "The randomness of one-bit uploads hides a client. The profile of their sum is below that of a Gaussian, which "
        "then composes, samples and converts like any other.",
        [(BITS, "## Theorem 7: a Gaussian", "## Few coordinates")],
        {
            "bernoulli/test_certificate.py": [
                "exact_products_of_sums_stay_below",
                "a_window_too_small_is_refuted",
                "the_golden_bound_is_above_explicit_neighbours_and_near_them",
            ]
        },
    ),
    (
        "A secret schedule is a mixture of Gaussians",
        "For any random, secret set of rounds, the run is dominated by one pair: balls-and-bins, allocations, rests.",
        [(ROUNDS, "**Theorem 1 (a schedule", "**Theorem 7 (certificates")],
        {
            "participation/test_ratio_law.py": ["two_rounds_against_quadrature"],
            "participation/test_schedules.py": [
                "bounds_of_balls_and_bins_meet",
                "every_schedule_lies_between_its_bounds_by_monte_carlo",
                "a_bin_that_is_reused_shows_more_than_the_account",
            ],
            "participation/test_blocks.py": ["blocks_dominate_a_beginning_by_quadrature"],
        },
    ),
    (
        "One budget for runs that are chosen by results",
        "Adding up what was spent is no valid stopping rule. A rule in units of the planned round is one.",
        [(FIXED, "## 10. Projects", "## References")],
        {
            "ledger/test_unit_filter.py": [
                "no_adversary_exceeds_the_budget_and_with_natural_composition_one_does",
                "the_attack_exceeds_the_budget_where_both_are_accepted",
                "a_purchase_that_was_paid_too_little_is_found",
            ],
            "compose/test_unit_currency.py": ["prices_are_those_of_independent_code"],
        },
    ),
    (
        "Secret schedules with correlated noise and memory",
        "The third theorem holds for noise that is correlated over rounds and for clients with error feedback; "
        "public and secret lanes, and certificates by sampling, follow.",
        [
            (ROUNDS, "**Theorem 4 (any schedule", "## References"),
            (ROUNDS, "**Theorem 7 (certificates", "**Theorem 9 (a multiset"),
        ],
        {
            "participation/test_memory.py": [
                "a_client_with_memory_shows_no_more_than_the_pair",
                "without_its_conditions_the_bound_is_exceeded",
            ],
            "participation/test_lanes.py": [
                "all_lanes_are_below_the_account_and_one_attains_it",
                "each_condition_is_needed",
            ],
            "compose/test_sampled_lanes.py": [
                "bounds_cover_the_truth",
                "a_lane_kept_for_the_next_run_shows_more_than_two_runs",
            ],
        },
    ),
)


def extract(page: str, first: str, end: str) -> str:
    """Return the text of a page from its first words up to the words that follow it."""
    text = (ROOT / "docs" / page).read_text()
    if text.count(first) != 1 or end not in text.partition(first)[2]:
        raise SystemExit(
            f"docs/{page}: must have {first!r} once, and {end!r} behind it. Mend PARTS in paper/theorems.py."
        )
    found = text.partition(first)[2].partition(end)[0]
    found = re.sub(r"\]\((?!https?:|#)([^)]+)\)", r"](../docs/\1)", f"{first}{found}".strip())
    return re.sub(r"^##+ ", "#### ", found, flags=re.MULTILINE)


def document() -> str:
    """Return the whole document."""
    lines = [
        "# Five theorems",
        "",
        "Generated by `python paper/theorems.py > paper/theorems.md` from docs/theory.md, docs/theory-bernoulli.md and",
        "docs/theory-participation.md. Numbers of theorems and sections inside a text are those of its page.",
        "",
        "Notation: a clip norm C, noise of standard deviation sigma C, s = 1/sigma, gamma = e^epsilon, H_gamma the",
        "hockey-stick divergence, h a profile (H_gamma as a function of gamma), Phi the normal integral,",
        "(E) the identity h(gamma) = 1 - gamma + gamma h'(1/gamma) of a pair and its exchange.",
        "No one outside the project has reviewed the proofs.",
    ]
    for number, (title, meaning, parts, tests) in enumerate(PARTS, start=1):
        lines += ["", f"## {number}. {title}", "", meaning]
        for page, first, end in parts:
            lines += ["", f"*From [{page}](../docs/{page}).*", "", extract(page, first, end)]
        lines += ["", "### Tests that check it", ""]
        for file, names in tests.items():
            text = (TESTS / file).read_text()
            lacking = [name for name in names if f"\ndef test_{name}(" not in text]
            if lacking:
                raise SystemExit(f"tests/accounting/{file}: has no test_{lacking[0]}. Mend PARTS in paper/theorems.py.")
            lines += [f"- `tests/accounting/{file}`: " + ", ".join(name.replace("_", " ") for name in names)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(document())
