"""Canaries in a run: in their round if the coin says so, found in the noisy sum, and no burden on anybody's privacy."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from accounting import Ledger
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.participation.sampling import LOUD, Canaries
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import killed_run, watched_round, with_after, with_before
from ..announced import Recorder

WAYS = {
    "server": ("method.name=dp-fedavg",),
    "masked": ("method.name=dp-fedavg", "aggregation.kind=masked", "aggregation.dropout=0.1"),
    "shares": (
        "method.name=fed-smp-randk", "method.keep=0.5", "privacy.noise=discrete-gaussian", "privacy.placement=clients",
        "privacy.adjacency=zero-out", "privacy.slots=40",
    ),
    "coins": ("method.name=fedpm", "privacy.slots=30", "mask.edge=0.1", "privacy.adjacency=zero-out"),
}  # fmt: skip


def run(tiny_config, folder, *settings):
    return federation.run(build(tiny_config(*settings)), folder)


def scores(folder):
    return [json.loads(line) for line in (folder / "canaries.jsonl").read_text().splitlines()]


def test_every_canary_has_one_round_and_a_fair_coin():
    canaries = Canaries(count=4000, first_id=100, rounds=7, size=5, seeds=Seeds(root=1))
    rounds = [canaries.canaries_of_round(t) for t in range(7)]
    present, absent = (np.concatenate([one[side] for one in rounds]) for side in (0, 1))
    assert sorted([*present, *absent]) == list(range(100, 4100))
    assert abs(len(present) - 2000) < 6 * np.sqrt(1000)
    assert max(len(a) + len(b) for a, b in rounds) <= -(-4000 // 7)


def test_directions_are_of_one_length_and_each_canarys_own():
    canaries = Canaries(count=3, first_id=0, rounds=1, size=1000, seeds=Seeds(root=1))
    rows = canaries.updates(np.array([0, 1, 2]), torch.device("cpu"))
    torch.testing.assert_close(rows.norm(dim=1), torch.full((3,), LOUD))
    assert torch.equal(canaries.updates(np.array([1]), torch.device("cpu"))[0], rows[1])
    assert float((rows @ rows.T).fill_diagonal_(0).abs().max()) < 0.2 * LOUD**2


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("way", WAYS)
def test_canaries_are_found_and_the_ledger_is_that_of_a_run_without_them(tiny_config, tmp_path, way):
    private = () if way == "coins" else ("privacy.noise_multiplier=0.3",)
    common = (*WAYS[way], *private, "federation.rounds=6")
    run(tiny_config if way != "coins" else without_noise(tiny_config), tmp_path / "with", *common, "audit.canaries=48")
    run(tiny_config if way != "coins" else without_noise(tiny_config), tmp_path / "without", *common)
    ledgers = [Ledger.read(tmp_path / name / "ledger.jsonl") for name in ("with", "without")]
    assert [one.mechanism for one in ledgers[0].releases] == [one.mechanism for one in ledgers[1].releases]
    found = scores(tmp_path / "with")
    assert len({line["canary"] for line in found}) == 48
    present = np.array([line["score"] for line in found if line["present"]])
    absent = np.array([line["score"] for line in found if not line["present"]])
    error = np.sqrt(present.var() / len(present) + absent.var() / len(absent))
    assert present.mean() - absent.mean() > 2.5 * error  # chance 0.6% if canaries left no trace; seeded
    assert min(line["canary"] for line in found) == 60


@pytest.mark.parametrize("drawn", [0, 5, 30])
def test_coins_are_padded_to_the_slots_and_the_canaries(tiny_config, drawn):
    """S holds K + m coins a coordinate whatever was drawn: the accounted K, and the m canaries on top."""
    experiment = build(without_noise(tiny_config)(*WAYS["coins"], "audit.canaries=9", "federation.rounds=1"))
    present = experiment.method.canaries.present_count(0)
    before, after, start = Recorder(), Recorder(), experiment.start.broadcast
    stages = with_after(with_before(experiment.method.stages, PrivateCoins, before), PrivateCoins, after)
    cohort = np.concatenate([np.arange(drawn), experiment.method.canaries.canaries_of_round(0)[0]])
    method = replace(experiment.method, stages=stages)
    _, observed = watched_round(experiment.start, method, seeds=experiment.seeds, ledger=None, cohort=cohort)
    padding = before.totals[0] + (30 + present) * start.clamp(0.1, 0.9) - after.totals[0]
    assert observed.arrived == drawn + present
    assert float(padding.max()) <= 30 - drawn + 1e-3
    expected = (30 - drawn) * start.clamp(0.1, 0.9).mean()
    assert float(padding.mean()) == pytest.approx(float(expected), abs=6 * np.sqrt(30 / 4 / len(padding)) + 1e-6)


def without_noise(tiny_config):
    return lambda *settings: tiny_config("privacy.clip_norm=2.0", *settings, without=["privacy"])


def test_a_resumed_run_scores_its_canaries_once(tiny_config, tmp_path):
    settings = ("audit.canaries=30", "federation.rounds=5")
    run(tiny_config, tmp_path / "whole", *settings)

    killed_run(tiny_config(*settings), tmp_path / "part", after=3)
    federation.run(build(tiny_config(*settings)), tmp_path / "part", resume=True)
    assert scores(tmp_path / "part") == scores(tmp_path / "whole")


@pytest.mark.parametrize("settings", [("privacy.release=uploads",), ()])
def test_canaries_need_a_private_sum(tiny_config, settings):
    without = [] if settings else ["privacy"]
    method = () if settings else ("method.name=fedavg",)
    with pytest.raises(ConfigError, match="in a private sum"):
        build(tiny_config("audit.canaries=10", *settings, *method, without=without))
