"""Claims of README and docs: the register is complete; evidence kills mutants of sentence and register together."""

import re
import sys
from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import claims  # noqa: E402

ENTRIES = [one for one in claims.read_register() if one.get("returns")]
QUICK = ("README-5", "budget-9", "bias-correction-2", "nvflare-3", "participation-41", "quickstart-1", "deploy-7")
"""Entries whose evidence takes less than a tenth of a second."""


def test_the_register_is_that_of_the_pages():
    assert claims.differences(claims.read_register()) == []


def test_ten_mutants_are_killed():
    """A number, a verb or a name changes in the sentence and in the register; the evidence alone is as before."""
    killed = 0
    for entry in (one for one in ENTRIES if one["id"] in QUICK):
        texts = claims.evaluated(entry)
        assert claims.holds(entry["says"], texts), (entry["says"], texts)
        for kind, mutant in claims.mutants(entry["says"]):
            assert not claims.holds(mutant, texts), (kind, mutant)
            killed += 1
    assert killed >= 10


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: one["id"])
def test_evidence_returns_what_the_sentence_says(entry):
    """Every mutant is killed, but those of an entry that names its part without evidence."""
    texts = claims.evaluated(entry)
    assert claims.holds(entry["says"], texts), (entry["says"], texts)
    alive = [mutant for _, mutant in claims.mutants(entry["says"]) if claims.holds(mutant, texts)]
    assert not alive or entry.get("unchecked"), alive


FIRST = {"page": "README.md", "says": "Never more than 3 of 7.", "id": "README-1", "status": "tested"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "neither `returns` nor the reason"),
        ({"unchecked": "x", "test": "tests/docs/test_claims.py::test_nothing"}, "no such test"),
        ({"returns": ["eps('') + forged()"]}, "has no forged"),
        ({"unchecked": "x", "status": "cited"}, "without source"),
        ({"unchecked": "x", "status": "sure"}, "must be one of"),
    ],
)
def test_evidence_that_does_not_exist_is_found(change, words):
    assert any(words in one for one in claims._faults(FIRST | change))


def test_an_unlisted_sentence_and_a_stale_entry_are_found():
    entries = claims.read_register()
    changed = [*entries[1:], entries[0] | {"says": "It never fails."}]
    found = claims.differences(changed)
    assert any("not in the register" in one for one in found)
    assert any("stale" in one for one in found)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It costs 3. It is free. It never\nfails.", ["It costs 3.", "It never fails."]),
        ("| a | 3.5 |\n|---|---|\n| b | c |", ["| a | 3.5 |"]),
        ("`x = 3` is set, see arXiv 2503.10945 and Theorem 3.", []),
        ("```sh\ndpfed budget --clients 3   # 5.5 of them\n```", ["dpfed budget --clients 3   # 5.5 of them"]),
    ],
)
def test_sentences(text, sentences):
    assert [one for one in claims._sentences(text) if claims._is_claim(one)] == sentences


@pytest.mark.slow
def test_the_page_of_replays_is_that_of_its_results():
    made = script("experiments/audit-replay/run.py")
    assert made.page() == (ROOT / "docs" / "replay-power.md").read_text()


def test_the_page_of_claims_has_every_entry():
    text = claims.page_text()
    assert len(re.findall(r"^\| ", text, re.MULTILINE)) > len(claims.read_register())
