"""The chains and records that an audit of a round looks with: each against what the round itself does."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfed.audit.round import whole_round
from dpfed.audit.round.bound_checks import norm_check
from dpfed.audit.round.method_setting import audited_configuration, round_of
from dpfed.audit.round.one_round import ExactCount, RandomnessByCallOrder
from dpfed.audit.round.round_audit import claim_of_round
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.runs.experiment import build
from dpfed.stages.clip import Clip, ClipMoves

SMALL = "model.hidden=[2]"
ADAPTIVE = ("privacy.adaptive.quantile=0.5", "privacy.adaptive.count_noise_std=2.0")
CHAINS = {
    "dp-fedavg": (),
    "qsgd": (),
    "fed-smp-randk": ("privacy.noise=skellam", "privacy.placement=clients", "privacy.adjacency=zero-out"),
    "signsgd": ("privacy.release=uploads", "privacy.adjacency=zero-out"),
}


def made(name, *settings):
    return round_of(build(audited_configuration(name, [SMALL, *settings])))


@pytest.mark.parametrize("name", CHAINS)
def test_without_its_noise_a_chain_keeps_all_other_stages(name):
    one = made(name, *CHAINS[name])
    noise = one.method.stages.private
    quiet = one.without_noise.method.stages
    assert quiet.private is None
    assert [type(stage) for stage in quiet] == [type(stage) for stage in one.method.stages if stage is not noise]
    assert quiet.find(Clip) is not None


def test_coins_stay_since_without_them_there_is_no_mask():
    quiet = made("fedpm", "privacy.clip_norm=0.3", "privacy.epsilon=100.0").without_noise.method.stages
    assert quiet.find(PrivateCoins) is quiet.private
    assert quiet.find(ClipMoves) is not None


def test_every_stage_draws_from_the_new_source_the_count_of_an_adaptive_clip_too():
    one = made("dp-fedavg", *ADAPTIVE)
    fresh = one.with_randomness(source := RandomnessByCallOrder(0))
    stages = fresh.method.stages
    assert stages.find(Clip).adaptive.randomness is stages.private.randomness is fresh.method.randomness is source
    assert isinstance(one.without_noise.method.stages.find(Clip).adaptive, ExactCount)


def test_a_whole_round_shows_what_its_clients_sent_and_what_was_summed():
    one = made("dp-fedavg").without_noise
    moves = torch.randn(4, one.size, generator=torch.Generator().manual_seed(0))
    done = WholeRounds(one_round=one).run(moves, np.arange(4))
    assert sorted(done.uploads) == [0, 1, 2, 3]
    given, arrived = (torch.stack([done.uploads[k][end] for k in range(4)]) for end in (0, 1))
    uploaded = one.upload(moves, np.arange(4))
    assert torch.equal(given, uploaded.bounded)
    assert torch.equal(arrived, uploaded.arrived)
    torch.testing.assert_close(done.total, arrived.sum(dim=0))
    torch.testing.assert_close(done.sum_of_moves, done.total)
    assert done.follows_rule


def test_a_clip_norm_that_no_stage_came_to_is_seen(monkeypatch):
    """Without an adaptive clip, and changed after one that is."""
    sound = whole_round.run_round

    def moving(*given, **more):
        done = sound(*given, **more)
        return replace(done, state=replace(done.state, clip_norm=1.01 * done.state.clip_norm))

    rounds = [WholeRounds(one_round=made("dp-fedavg", *settings)) for settings in ((), ADAPTIVE)]
    zeros = torch.zeros(4, rounds[0].one_round.size)
    assert all(one.run(zeros, np.arange(4)).follows_rule for one in rounds)
    monkeypatch.setattr(whole_round, "run_round", moving)
    assert not any(one.run(zeros, np.arange(4)).follows_rule for one in rounds)


def test_a_chain_without_its_clip_is_refuted():
    one = made("dp-fedavg")
    bare = replace(one, method=replace(one.method, stages=one.method.stages.without(Clip)))
    assert norm_check(one, claim_of_round(one, 1e-5)).passed
    assert not norm_check(bare, claim_of_round(bare, 1e-5)).passed
