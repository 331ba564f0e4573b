"""Moves of coins clipped in the Fisher metric, and coins all near the public ones: bounds hold, faults show."""

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from refusals import refused

from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.step_evidence import rows_are_bounded
from dpfed.audit.round.bound_checks import norm_check, window_check
from dpfed.audit.round.method_setting import audited_configuration, round_of
from dpfed.audit.round.round_audit import claim_of_round
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.runs import loop
from dpfed.runs.experiment import build
from dpfed.stages.chain import Stages
from dpfed.stages.clip import ClipMoves

from ..announced import a_round

CLIPS = ("privacy.clip_norm=0.6", "privacy.linf_clip=0.05")
FISHER = ("privacy.clip_norm=0.6", "privacy.linf_clip=0.1", "privacy.clip_metric=fisher")


@cache
def made(*settings):
    """A round of private FedPM on a small network."""
    return round_of(build(audited_configuration("fedpm", ["model.hidden=[2]", "privacy.epsilon=100.0", *settings])))


@pytest.mark.parametrize("seed", range(20))
def test_both_bounds_hold_in_rational_arithmetic(seed):
    generator = torch.Generator().manual_seed(seed)
    reference = torch.rand(9, generator=generator)
    rows = torch.randn(6, 9, generator=generator) * 10.0 ** torch.randint(-3, 4, (6, 1), generator=generator)
    edge, linf, norm = 0.1, 0.05 + 0.05 * seed, 0.7
    clip = ClipMoves(linf=linf, metric="fisher", edge=edge)
    clipped = clip.client(rows.clone(), np.arange(6), a_round(reference, clip_norm=norm))
    theta = [min(max(Fraction(float(one)), Fraction(edge)), 1 - Fraction(edge)) for one in reference]
    for row in clipped:
        squares = [Fraction(float(x)) ** 2 / (t * (1 - t)) for x, t in zip(row, theta, strict=True)]
        assert max(squares) <= Fraction(linf) ** 2
        assert sum(squares) <= Fraction(norm) ** 2
    assert float((clipped / clip.units(reference)).norm(dim=1).max()) > 0.9 * min(norm, 3 * linf)


def test_rows_within_both_bounds_keep_their_moves():
    clip = ClipMoves(linf=0.2, metric="fisher", edge=0.1)
    rows = torch.tensor([[0.01, -0.02, 0.005]])
    kept = clip.client(rows.clone(), np.arange(1), a_round(torch.tensor([0.5, 0.3, 0.05]), clip_norm=1.0))
    torch.testing.assert_close(kept, rows)


def test_a_clip_in_another_metric_than_is_charged_is_refused():
    stages = made(*FISHER).method.stages
    with pytest.raises(ConfigError, match=r"metric 'euclidean'.*must be equal"):
        Stages(*(replace(one, metric="euclidean") if isinstance(one, ClipMoves) else one for one in stages))


def test_the_audit_measures_in_the_metric_and_sees_one_that_is_too_wide(monkeypatch):
    one = made(*FISHER)
    claim = claim_of_round(one, 1e-5)
    assert norm_check(one, claim).passed
    sound = ClipMoves.units
    monkeypatch.setattr(ClipMoves, "units", lambda self, reference: 1.1 * sound(self, reference))
    assert not norm_check(one, claim).passed


@pytest.mark.slow
def test_the_window_is_checked_on_rows_and_on_what_fills_up():
    one = made(*CLIPS)
    claim = claim_of_round(one, 1e-5)
    assert claim.coins.others == "near-reference"
    assert window_check(one, claim).passed
    without = replace(one, method=replace(one.method, stages=one.method.stages.without(ClipMoves)))
    assert not window_check(without, claim).passed


@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_coins_that_fill_up_from_elsewhere_are_seen(shift, monkeypatch):
    """The default edge would bring them back into the window."""
    one = made(*CLIPS, "privacy.edge=0.1")
    claim = claim_of_round(one, 1e-5)
    sound = PrivateCoins._draw_samples

    def elsewhere(self, reference, row, *path):
        return sound(self, reference + shift if row is None else reference, row, *path)

    monkeypatch.setattr(PrivateCoins, "_draw_samples", elsewhere)
    assert not window_check(one, claim).passed


@pytest.mark.slow
def test_who_is_relied_on_follows_the_sum_and_can_be_said():
    plain, secure = made(*CLIPS), made(*CLIPS, "aggregation.kind=masked")
    assert claim_of_round(plain, 1e-5).coins.others == "near-reference"
    assert claim_of_round(secure, 1e-5).coins.others == "anywhere"
    assert window_check(secure, claim_of_round(secure, 1e-5)) is None
    said = made(*CLIPS, "aggregation.kind=masked", "privacy.others=near-reference")
    assert claim_of_round(said, 1e-5).coins.others == "near-reference"


@pytest.mark.slow
def test_signs_are_charged_for_coins_that_move_from_one_half():
    settings = ["model.hidden=[2]", "privacy.noise=coins", "privacy.edge=0.2", "privacy.epsilon=90.0", *CLIPS]
    one = round_of(build(audited_configuration("stochastic-sign", [*settings, "method.options.bound=0.01"])))
    assert claim_of_round(one, 1e-5).coins.reference == 0.5
    stage = one.method.stages.find(PrivateCoins)
    with pytest.raises(ConfigError, match=r"public probabilities other than 0\.5"):
        stage.client(torch.zeros(1, 3), np.arange(1), a_round(torch.tensor([0.5, 0.5, 0.4])))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("privacy.clip_metric=fisher", "privacy.noise_std=0.1"), "is not built"),
        (("privacy.others=anywhere", "privacy.release=uploads", "privacy.adjacency=zero-out"), "of Bernoulli"),
    ],
)
def test_what_does_not_fit_is_refused(settings, words):
    refused(ConfigError, words, made, *settings)


def ran(folder, *settings):
    """A run of one round, and what an audit of its files says of its rows."""
    tables = audited_configuration(
        "fedpm", ["model.hidden=[2]", "privacy.epsilon=100.0", "federation.rounds=1", *settings]
    )
    outcome = loop.run(build(tables), folder)
    return rows_are_bounded(RunFiles(outcome.folder))


@pytest.mark.slow
def test_an_audit_of_a_run_sees_moves_beyond_either_bound(tmp_path, monkeypatch):
    """Planted: each coordinate may move a tenth too far; the L2 norm may be a tenth too large."""
    sound = ClipMoves.clip_to_bounds

    def wider(self, rows, norm):
        return sound(replace(self, linf=1.1 * self.linf), rows, norm)

    def longer(self, rows, norm):
        return sound(self, rows, 1.1 * norm)

    for fault, clip_norm in ((wider, 2.0), (longer, 0.3)):
        settings = (*FISHER[1:], f"privacy.clip_norm={clip_norm}", "local.learning_rate=100.0")
        monkeypatch.setattr(ClipMoves, "clip_to_bounds", sound)
        assert ran(tmp_path / f"sound {clip_norm}", *settings)[0]
        monkeypatch.setattr(ClipMoves, "clip_to_bounds", fault)
        passed, words = ran(tmp_path / f"faulty {clip_norm}", *settings)
        assert passed is False
        assert "times the clip norm" in words
