"""Epsilons of random settings that version 0.3 before caps and exact beginnings stated: none may be larger now.

Sums of K uploads are stated there with the chance of a larger cohort charged to delta, at the same K or, where it was
the default, at a larger one. 500 settings were drawn (seed 41); those kept are of accounts that have changed.
"""

import json
from pathlib import Path

import pytest
from reference.shorthand import times

from accounting.compose import accountant
from accounting.mechanisms import from_dict

LINES = [json.loads(line) for line in (Path(__file__).parent / "earlier_epsilons.jsonl").read_text().splitlines()]
CHUNKS = 40


@pytest.mark.slow_but_one_in(CHUNKS)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_epsilon_is_looser_than_before(chunk):
    for line in LINES[chunk::CHUNKS]:
        run = times(from_dict(line["release"]), line["rounds"])
        assert accountant.epsilon(run, delta=line["delta"]) <= line["epsilon"] * (1 + 1e-6) + 1e-9
