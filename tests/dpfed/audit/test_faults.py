"""Every planted fault is caught by the layers that are said to catch it, and its sound twin is not flagged.

One seed each here; experiments/audit-faults measures power and false alarms over many.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from accounting.mechanisms import schedule_of
from dpfed.audit.round.method_setting import _checks_of_several_rounds, audited_configuration, round_of
from dpfed.audit.round.noise_checks import correlated_check
from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.audit.round.round_audit import audit_round
from dpfed.mechanisms.correlated import Correlated
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.randomness import Secure
from dpfed.runs.experiment import build

from ...rounds import with_after
from .broken_parts import RemembersTheSum, with_part
from .fault_layers import case
from .faults import FAULTS
from .later_faults import LATER_FAULTS, audited_round

CASES = [(fault, layer) for fault in FAULTS for layer in fault.layers]


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(("fault", "layer"), CASES, ids=lambda one: one.name)
def test_a_planted_fault_is_caught(fault, layer):
    assert layer.alarm(fault.make()[1], 1, layer.trials)


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(("fault", "layer"), CASES, ids=lambda one: one.name)
def test_its_twin_is_not_flagged(fault, layer):
    """A check fails by chance with probability at most 1e-6."""
    few = 20_000 if layer.unit == "draws" else 200
    assert not layer.alarm(fault.make()[0], 1, min(layer.trials, few))


@pytest.mark.slow
def test_faults_cost_more_than_is_claimed():
    for fault in FAULTS:
        claimed, true = fault.epsilons()
        assert true > claimed


def test_randomness_that_cannot_be_replaced_is_refused():
    """Or all trials would have the same noise, and any claim would be refuted."""

    class DrawsByItself(RemembersTheSum):
        randomness = Secure()

    drawing = case("dp-fedavg").changing(lambda stages: with_after(stages, GaussianNoise, DrawsByItself()))
    with pytest.raises(TypeError, match="DrawsByItself: draws from a source of randomness that cannot be replaced"):
        drawing.one_round.with_randomness(RandomnessByCallOrder(0))


FOUND_BY = {
    "last ten coordinates without noise": {"noise", "tails"},
    "one coordinate without noise": {"noise"},
    "noise 1% short": {"noise"},
    "noise of odd rounds is that of the round before, negative": {"seeds"},
    "noise has correlation -0.5 with the round before": {"seeds"},
    "no noise in round 7": {"single rounds"},
    "neighbouring coordinates share half of their noise": {"coordinates"},
    "every hundredth draw of noise is zero": {"tails"},
    "half of the noise where the sum is long": {"single rounds"},
    "noise seeded by the number of rows inside the clip": {"single rounds"},
    "rows centred by a running mean": {"norm", "linear", "distance"},
    "error feedback kept by place": {"norm", "linear", "distance"},
    "rows with NaN are kept": {"norm"},
    "no clip in round 7": {"single rounds"},
    "rows above 5,000 clip norms are not clipped": {"norm", "distance"},
    "clipped to half the mean norm of the group": {"norm", "linear", "distance"},
}
DRAWS = {
    "noise 1% short": 300_000,
    "every hundredth draw of noise is zero": 100_000,
    "neighbouring coordinates share half of their noise": 100_000,
}


def failed_rows(planted, draws=20_000):
    done = audit_round(audited_round(planted), planted.layout, method="planted", draws=draws)
    return {one.name for one in done.checks if one.passed is False}


@pytest.mark.slow_but_one_in(10)
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_later_fault_is_found_by_its_row(name):
    assert failed_rows(LATER_FAULTS[name]()[1], DRAWS.get(name, 20_000)) >= FOUND_BY[name]


def test_every_later_fault_has_its_row():
    assert FOUND_BY.keys() == LATER_FAULTS.keys()


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("method", ["dp-fedavg", "fed-smp-randk", "qsgd"])
def test_sound_rounds_fail_no_row(method):
    """A row fails a sound round with probability 1e-6; each says what it would have found."""
    sound = case(method, "model.hidden=[8]")
    done = audit_round(sound.one_round, sound.layout, method=method, draws=20_000)
    assert done.verdict == "pass"
    assert all(one.would_find for one in done.checks)
    assert {one.name for one in done.checks} >= {"state", "ledger"}
    assert "Distance reached: 1.000 of the bound" in done.as_text()


ORDER = ("model.hidden=[2]", "federation.cohort=2", "federation.rounds=6", "federation.sampling=cyclic")
BUFFERS, BANDS = (*ORDER, "privacy.buffers=2"), (*ORDER, "privacy.bands=2")
LANES = (*BANDS, "federation.sampling=balls-and-bins", "federation.lanes=2", "privacy.adjacency=zero-out")


@pytest.mark.parametrize("settings", [BANDS, LANES], ids=["cyclic", "lanes"])
def test_bands_are_tested_over_rounds(monkeypatch, settings):
    """Planted: from the second round on, noise of a third."""
    experiment = build(audited_configuration("dp-fedavg", settings, 0.7))
    drawn = Correlated._next_noise
    for part in (1.0, 0.3):
        monkeypatch.setattr(
            Correlated, "_next_noise", lambda self, fresh, past, part=part: part * drawn(self, fresh, past)
        )
        schedule, noise = _checks_of_several_rounds(experiment, seed=0)
        assert schedule.passed is True
        assert noise.passed is (part == 1.0)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_noise_correlated_over_rounds_has_the_charged_matrix(part):
    """C w is fresh noise of the charged size. Planted: half of the noise; and w in place of C w."""
    one = round_of(build(audited_configuration("dp-fedavg", BUFFERS, 0.7)))
    release = one.method.release(replace(one.announcement, uploads=one.clients))
    drawn = replace(one, method=replace(one.method, stages=one.method.stages.replace_stage(
        GaussianNoise, lambda noise: replace(noise, noise=with_part(noise.noise, part)))))  # fmt: skip
    law = schedule_of(release.mechanism)
    assert correlated_check(drawn, law, release.noise_std, 6).passed is (part == 1.0)
