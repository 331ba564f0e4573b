"""Private FedPM whose coins say how far a probability moves; coins of fewer coordinates."""

import math

import numpy as np
import pytest
import torch

from accounting.mechanisms import unsampled
from dpfed.audit.run import audit_run
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.runs.experiment import build, check_configuration
from dpfed.runs.loop import run
from dpfed.seeds import Seeds
from dpfed.stages.chain import client_halves, server_halves
from dpfed.stages.project import SharedMask, SignedProbabilities

from ...rounds import DIGITS
from ...rounds import tables as changed
from ..announced import announced

BOUND, CLIENTS = 0.2, 40
TABLES = changed(
    DIGITS | {"privacy": {"clip_norm": 0.8, "slots": CLIENTS, "adjacency": "zero-out"}},
    federation={"rounds": 2},
    local={"learning_rate": 1.0},
    method={"name": "fedpm"},
    mask={"edge": 0.05, "spread": 0.0, "readout": "mean", "bound": BOUND},
)
SIGNS = ("method.name=stochastic-sign", "privacy.noise=coins", f"method.options.bound={BOUND}")
# Of the mean over entries, in standard deviations: a right one fails with probability 6e-7.
SURE = 5.0


def tables(*settings, without=()):
    return override({key: value for key, value in TABLES.items() if key not in without}, settings)


def built(*settings, without=()):
    return build(parse(tables(*settings, without=without), source="test"))


def decoded_of(experiment, move):
    """What a round reads of CLIENTS clients who all move every probability so far, over their number."""
    now = announced(experiment, clip_norm=1e6, uploads=CLIENTS)
    rows = torch.full((CLIENTS, experiment.model.size), move)
    arrived = client_halves(experiment.method.stages, rows, np.arange(CLIENTS), now)
    return server_halves(experiment.method.stages, arrived.sum(dim=0), now).double() / CLIENTS


def off(decoded, move):
    """How many standard deviations the mean is from the move: a coin is read as ±BOUND."""
    std = math.sqrt((BOUND**2 - move**2) / CLIENTS / len(decoded))
    return abs(float(decoded.mean()) - move) / std


@pytest.mark.parametrize("move", [-0.07, 0.0, 0.05])
def test_a_move_is_read_as_it_is_wherever_the_probability_stands(move):
    experiment = built()
    experiment.start.broadcast.copy_(torch.rand(experiment.model.size, generator=torch.Generator().manual_seed(1)))
    decoded = decoded_of(experiment, move)
    assert off(decoded, move) < SURE
    assert float(decoded.var()) == pytest.approx((BOUND**2 - move**2) / CLIENTS, rel=0.2)


def test_coins_read_with_another_bound_are_caught(monkeypatch):
    """Planted fault: the server reads half of the bound."""
    monkeypatch.setattr(SignedProbabilities, "adjoint", lambda self, total: self.inside.adjoint(total * self.bound))
    assert off(decoded_of(built(), 0.05), 0.05) > SURE


def test_they_are_charged_as_signs_of_updates_are():
    """The same coins about 1/2, whatever is trained."""
    assert unsampled(built().privacy_target.mechanism) == unsampled(
        built(*SIGNS, without=["mask"]).privacy_target.mechanism
    )
    assert unsampled(built().privacy_target.mechanism).reference == 0.5


def test_a_probability_may_stand_at_an_end_at_no_cost():
    """Where the mask may go, mask.edge, changes nothing in what is charged: coins have an edge of their own."""
    assert built("mask.edge=0.01").privacy_target.mechanism == built("mask.edge=0.3").privacy_target.mechanism


@pytest.mark.parametrize("method", [(), SIGNS])
def test_fewer_coordinates_are_those_of_public_data_or_of_the_round(method):
    keep = ("method.keep=0.1", *method)
    without = ["mask"] if method else []
    drawn, ranked = built(*keep, without=without), built(*keep, "data.public=137", without=without)
    sent = round(0.1 * drawn.model.size)
    for experiment in (drawn, ranked):
        assert experiment.method.stages.project.sent == sent
        assert unsampled(experiment.privacy_target.mechanism).dimension == sent
    maps = [
        [one.method.stages.project.choice.for_round(one.start.broadcast, number, Seeds(root=1)) for number in (0, 1)]
        for one in (drawn, ranked)
    ]
    assert all(isinstance(each.inside, SharedMask) for pair in maps for each in pair)
    assert not torch.equal(maps[0][0].inside.indices, maps[0][1].inside.indices)
    assert (maps[0][0].inside.scale, maps[0][0].description) == (1.0, None)  # what they are worth is public: no d / k
    assert maps[1][0].description is not None  # which samples ranked them


@pytest.mark.parametrize(
    ("settings", "without", "named"),
    [
        ((), ["privacy"], "mask.bound=0.2 has no effect"),
        (("method.name=fedmask",), ["privacy"], "mask.bound"),
        (("server.rule=posterior",), [], "posterior"),
        (("privacy.trials=4", "privacy.noise_std=0.1"), [], "noise_std"),
        (("method.name=stochastic-sign", "method.keep=0.1"), ["mask", "privacy"], "for private stochastic signs"),
    ],
)
def test_what_it_is_not_for_is_refused(settings, without, named):
    with pytest.raises(ConfigError, match=named):
        check_configuration(parse(tables(*settings, without=without), source="test"))


def test_an_edge_of_coins_is_refused_where_they_are_of_the_mask():
    masks = tables("privacy.edge=0.1")
    check_configuration(parse(masks, source="test"))
    del masks["mask"]["bound"]
    with pytest.raises(ConfigError, match=r"privacy.edge: .* fedpm without mask.bound has mask.edge"):
        check_configuration(parse(masks, source="test"))


@pytest.mark.parametrize("wider", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("more", "without"), [((), ()), pytest.param(SIGNS, ("mask",), marks=pytest.mark.slow)], ids=["moves", "signs"]
)
def test_a_secure_sum_of_coins_near_a_half_allows_the_clip_of_a_plain_one(more, without, wider):
    """Others are relied on there to keep to the edge, which is where a clip to linf_clip leaves their coins."""
    budget = ("privacy.epsilon=1", "privacy.clip_norm=", "privacy.linf_clip=0.15", "federation.rounds=1", *more)
    kinds = [tables(*budget, f"aggregation.kind={kind}", without=without) for kind in ("plain", "masked")]
    plain, masked = (build(parse(kind, source="test")).privacy_target for kind in kinds)
    assert (plain.mechanism.mechanism.others, masked.mechanism.mechanism.others) == ("near-reference", "anywhere")
    assert masked.clip_norm == pytest.approx(plain.clip_norm, rel=1e-4)
    if wider:
        wide = build(parse(override(kinds[1], ["privacy.edge=0.1"]), source="test")).privacy_target
        assert wide.clip_norm < 0.7 * masked.clip_norm


@pytest.mark.parametrize("move", [0.15, -0.15])
def test_the_edge_that_linf_clip_gives_changes_no_coin(move):
    seeds = {}
    for edge in ("", "0.1"):
        stage = built("privacy.linf_clip=0.15", f"privacy.edge={edge}").method.stages.private
        rows = torch.full((3, 4000), move)
        now = announced(built("privacy.linf_clip=0.15"), clip_norm=1e6, uploads=3)
        seeds[edge] = stage.edge, stage.client(rows[:, : len(now.reference)], np.arange(3), now)
    assert (seeds[""][0], seeds["0.1"][0]) == (pytest.approx(0.35), 0.1)
    assert torch.equal(seeds[""][1], seeds["0.1"][1])


@pytest.mark.parametrize(
    ("settings", "edge"),
    [
        (("privacy.linf_clip=0.45",), 0.1),
        ((), 0.1),
        (("privacy.linf_clip=0.2", "privacy.noise_std=0.1"), 0.1),
        (("privacy.linf_clip=0.2", "privacy.clip_metric=fisher"), 0.4),
        (("privacy.linf_clip=0.2", "privacy.edge=0.2"), 0.2),
    ],
)
def test_the_edge_is_as_narrow_as_moves_are_and_no_narrower(settings, edge):
    assert built(*settings).method.stages.private.edge == pytest.approx(edge)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("privacy.linf_clip=0.15",), "of probabilities in [0.35, 0.65]"),
        (("privacy.linf_clip=0.15", "privacy.edge=0.1"), "of probabilities in [0.1, 0.9]"),
        (("privacy.linf_clip=0.15", "privacy.others=near-reference"), "of probabilities within linf_clip"),
    ],
)
def test_a_secure_sum_of_coins_says_what_it_relies_on_of_others(settings, words):
    [said] = [one for one in built("aggregation.kind=masked", *settings).not_protected if "other clients" in one]
    assert words in said
    assert any(
        "must draw their Bernoulli samples" in one for one in built("aggregation.kind=masked", *settings).not_protected
    )
    assert not any("other clients" in one for one in built(*settings).not_protected)  # this process clips them all


WAYS = {
    "drawn": ("method.keep=0.3",),
    "ranked": ("method.keep=0.3", "data.public=137"),
    "trials": ("privacy.trials=4", "privacy.count_bits=7"),
    "seen": ("privacy.release=uploads", "federation.sampling=cyclic", "method.keep=0.3"),
    "signs": ("method.keep=0.3", "privacy.count_bits=5", *SIGNS),
    "masked": ("method.keep=0.3", "aggregation.kind=masked", "privacy.count_bits=5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_run_passes_its_audit(way, tmp_path):
    without = ["mask"] if way == "signs" else []
    chosen = tables(*WAYS[way], without=without)
    if way == "seen":
        del chosen["privacy"]["slots"]
    run(build(parse(chosen, source="test")), tmp_path / "run")
    found = audit_run(tmp_path / "run")
    assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
