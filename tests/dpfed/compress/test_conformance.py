"""`dpfed.compress.check`: what comes with dpfed passes it, and a scheme that lies is found, for the right reason.

A correct scheme fails by chance with probability 1e-6; everything here is seeded.
"""

import dataclasses

import pytest
import torch
from reference.compressors import SETTINGS, make
from reference.own_schemes import LIARS, Honest, fresh_names

import dpfed.compress
from dpfed.compress import conformance
from dpfed.errors import ConfigError

pytestmark = pytest.mark.slow_but_one_in(3)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_scheme_of_ours_passes(setting):
    found = dpfed.compress.check(make(setting))
    assert found.passed, str(found)


@pytest.mark.parametrize("name", ["fedpm", "fedmask"])
def test_masks_of_probabilities_pass(name):
    probabilities = torch.rand(5, 100, generator=torch.Generator().manual_seed(1))
    found = dpfed.compress.check(dpfed.compress.get(name), updates=probabilities)
    assert found.passed, str(found)


def test_an_honest_scheme_of_fifteen_lines_passes():
    with fresh_names():
        found = dpfed.compress.check(dpfed.compress.register("honest")(Honest)())
    assert found.passed, str(found)
    assert {one.subject for one in found.findings} == {
        "bits", "inverse", "reading", "batch", "seed", "edges", "unbiased",
    }  # fmt: skip


@pytest.mark.parametrize("liar", sorted(LIARS))
def test_a_liar_is_found(liar):
    subject, words, scheme = LIARS[liar]
    with fresh_names():
        found = dpfed.compress.check(dpfed.compress.register("liar")(scheme)())
    assert not found.passed
    (finding,) = [one for one in found.failed if one.subject == subject]
    assert words in finding.detail
    assert "FAILED" in str(found)


def test_a_small_bias_is_found_and_a_large_one_is_not_claimed():
    """A scheme whose decoder shrinks by 2%: with sizes that the finding states."""

    class Shrunk(Honest):
        unbiased = True

        def decode(self, sent):
            return 0.98 * super().decode(sent)

    with fresh_names():
        scheme = dpfed.compress.register("shrunk")(Shrunk)()
        (finding,) = dpfed.compress.check(scheme).failed
        assert finding.subject == "unbiased"
        assert "misses x by 0.02 of ||x||" in finding.detail
        Shrunk.unbiased = False
        assert dpfed.compress.check(scheme).passed


@pytest.mark.slow
def test_the_false_alarm_rate_is_the_stated_one(monkeypatch):
    """At a stated rate of 5%, 100 tests of an unbiased scheme alarm at most 15 times but with probability 4e-5."""
    monkeypatch.setattr(conformance, "FALSE_ALARM", 0.05)
    monkeypatch.setattr(conformance, "_ROUNDING", 0.0)
    scheme, alarms = dpfed.compress.get("randk", keep=0.1), 0
    for seed in range(100):
        monkeypatch.setattr(conformance, "_ODD", 0x9E3779B97F4A7C15 + 2 * seed)
        rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(seed))
        try:
            conformance._test_unbiased(scheme, rows)
        except conformance._ClaimBroken:
            alarms += 1
    assert alarms <= 15


def test_without_statistics_nothing_is_drawn_often():
    found = dpfed.compress.check(dpfed.compress.get("qsgd"), statistics=False)
    assert found.passed
    assert "unbiased" not in {one.subject for one in found.findings}


def test_updates_of_another_form_are_refused():
    with pytest.raises(ConfigError, match=r"must be \[5, d\]"):
        dpfed.compress.check(dpfed.compress.get("qsgd"), updates=torch.ones(3, 4))


def test_the_outcome_is_json():
    record = dpfed.compress.check(dpfed.compress.get("topk")).to_dict()
    assert record["passed"] is True
    assert record["findings"][0].keys() == {"subject", "passed", "detail"}
    assert dataclasses.is_dataclass(conformance.Finding)
