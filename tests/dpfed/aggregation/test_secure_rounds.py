"""Rounds through secure sums: the integers of a trusted sum, lost clients, rounds that end without a result."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

from accounting import Aborted, Ledger
from dpfed.aggregation.sums import PlainSums
from dpfed.errors import ConfigError
from dpfed.round import NO_RESULT, draw_round_cohort
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import Book, killed_run, random_updates, watched_round, with_updates

pytestmark = pytest.mark.slow_but_one_in(3)

PRIVATE = ("privacy.clip_norm=1.0", "privacy.noise_multiplier=0.5")
BOUNDED = ("aggregation.clip_norm=5.0",)
COINS = ("privacy.clip_norm=1.0", "mask.edge=0.1", "privacy.adjacency=zero-out")
LINEAR = {
    "dp-fedavg": ("method.name=dp-fedavg", *PRIVATE),
    "dp-fedavg-fixed": ("method.name=dp-fedavg", "federation.sampling=fixed", *PRIVATE),
    "fed-smp-randk": ("method.name=fed-smp-randk", "method.keep=0.2", *PRIVATE),
    "fed-smp-topk": ("method.name=fed-smp-topk", "method.keep=0.1", "data.public=100", *PRIVATE),
    "fedscalar": ("method.name=fedscalar", "method.shared=true", "method.options.projections=7", *PRIVATE),
    "fedpm-private": ("method.name=fedpm", *COINS),
    "fedavg": ("method.name=fedavg", *BOUNDED),
    "fedavg-unrotated": ("method.name=fedavg", "aggregation.rotation=false", *BOUNDED),
    "fedpm": ("method.name=fedpm",),
    "fedmask": ("method.name=fedmask",),
    "fedmrn": ("method.name=fedmrn", "method.shared=true"),
    "fedmrns": ("method.name=fedmrns", "method.shared=true"),
    "stochastic-sign": ("method.name=stochastic-sign", "method.options.bound=0.5"),
    "signs-by-coins": (
        "method.name=stochastic-sign", "method.options.bound=0.5", "privacy.noise=coins", "privacy.clip_norm=1.0",
        "privacy.adjacency=zero-out",
    ),
}  # fmt: skip
NOT_PRIVATE = ("fedavg", "fedavg-unrotated", "fedpm", "fedmask", "fedmrn", "fedmrns", "stochastic-sign")
LOST = [
    (),
    ("aggregation.lost.upload=3",),
    ("aggregation.lost.unmask=3",),
    ("aggregation.lost.late=2", "aggregation.lost.share=1", "aggregation.lost.advertise=1"),
    ("aggregation.dropout=0.2",),
]


@pytest.fixture
def secure_config(tiny_config):
    def config(name, *settings, kind="masked"):
        without = ["privacy"] if name in NOT_PRIVATE or name in ("fedpm-private", "signs-by-coins") else []
        return tiny_config(f"aggregation.kind={kind}", *LINEAR[name], *settings, without=without)

    return config


def after_one_round(experiment, sums=None):
    method = experiment.method if sums is None else replace(experiment.method, aggregation=sums)
    state, observed = watched_round(experiment.start, method, seeds=experiment.seeds, ledger=Book())
    return state.broadcast, observed


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize("lost", LOST, ids=lambda one: "+".join(s.split(".")[-1] for s in one) or "nobody")
@pytest.mark.parametrize("name", LINEAR)
def test_a_masked_sum_is_the_trusted_sum_of_the_same_integers(secure_config, name, lost):
    experiment = build(secure_config(name, *lost))
    trusted = PlainSums()
    masked, observed = after_one_round(experiment)
    plain, expected = after_one_round(experiment, trusted)
    assert observed.aborted is None
    if observed.probes is not None and observed.probes.bits is not None:  # a masked sum is known modulo 2^bits
        modulus = 1 << observed.probes.bits
        one, other = (replace(each.probes, summed=each.probes.summed % modulus) for each in (observed, expected))
        observed, expected = replace(observed, probes=one), replace(expected, probes=other)
    assert observed == expected
    assert torch.equal(masked, plain)
    assert not torch.equal(masked, experiment.start.broadcast)


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize("name", LINEAR)
def test_the_whole_protocol_gives_the_same_round_as_masks(secure_config, name):
    lost = ("aggregation.lost.upload=1", "aggregation.lost.unmask=1", "aggregation.lost.late=1")
    rounds = [after_one_round(build(secure_config(name, *lost, kind=kind))) for kind in ("masked", "protocol")]
    assert torch.equal(rounds[0][0], rounds[1][0])
    assert rounds[0][1] == rounds[1][1]


@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp-randk", "fedavg", "fedscalar"])
def test_rounded_sums_are_near_the_sums_of_numbers(secure_config, tiny_config, name):
    """Without noise and at fine steps, integers lose what `steps` lets them: 2^-20 of the clip norm an entry."""
    quiet = ("privacy.noise_multiplier=1e-5",) if name != "fedavg" else ()
    fine = build(secure_config(name, *quiet, "aggregation.steps=1000000"))
    without = ["privacy"] if name == "fedavg" else []
    floats = build(tiny_config(*[s for s in LINEAR[name] if not s.startswith("aggregation")], *quiet, without=without))
    updates = random_updates(fine, scale=0.01)
    ways = [with_updates(one, updates) for one in (fine, floats)]
    moved = [
        watched_round(one.start, parts, seeds=one.seeds, ledger=Book())[0].broadcast - one.start.broadcast
        for one, parts in zip((fine, floats), ways, strict=True)
    ]
    scale = float(moved[1].abs().max())
    torch.testing.assert_close(moved[0], moved[1], atol=1e-3 * scale, rtol=0)


def test_a_lost_clients_update_is_not_in_the_sum_and_one_lost_at_the_end_is(secure_config):
    quiet = ("privacy.noise_multiplier=1e-3", "federation.sampling=all", "federation.cohort=60")
    for step, included in (("upload", False), ("late", False), ("share", False), ("unmask", True)):
        experiment = build(secure_config("dp-fedavg", *quiet, f"aggregation.lost.{step}=1"))
        (loser,) = experiment.method.dropouts.draw(np.arange(60), 0)
        updates = torch.zeros(60, experiment.model.size)
        updates[loser, 0] = 1.0
        state, _ = watched_round(
            experiment.start, with_updates(experiment, updates), seeds=experiment.seeds, ledger=Book()
        )
        moved = 60 * float((state.broadcast - experiment.start.broadcast)[0])
        assert moved == pytest.approx(float(included), abs=0.05)


def test_a_round_below_the_threshold_leaves_the_state_and_is_not_charged(secure_config, tmp_path):
    config = secure_config("dp-fedavg", "aggregation.lost.upload=8", "federation.sampling=fixed")
    experiment = build(config)
    book = Book()
    state, observed = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=book)
    assert torch.equal(state.broadcast, experiment.start.broadcast)
    assert state.round == 1
    assert "4 of 12" in observed.aborted
    (entry,) = book.releases
    assert entry == Aborted(round=0, reason=NO_RESULT)
    assert not any(letter.isdigit() for letter in entry.reason)


@pytest.mark.slow
def test_a_run_with_aborted_rounds_states_the_epsilon_of_those_released(secure_config, tmp_path):
    settings = (
        "aggregation.dropout=0.35",
        "federation.rounds=12",
        "federation.sampling=fixed",
        "aggregation.threshold=0.7",
    )
    experiment = build(secure_config("dp-fedavg", *settings))
    outcome = federation.run(experiment, tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    aborted = [line["round"] for line in outcome.metrics if "aborted" in line]
    assert 0 < len(aborted) < 12
    assert [entry.round + 1 for entry in ledger.entries if isinstance(entry, Aborted)] == aborted
    assert len(ledger.releases) == 12 - len(aborted)
    assert outcome.summary["aborted_rounds"] == len(aborted)
    assert outcome.summary["epsilon"] == ledger.guarantee(outcome.summary["delta"]).epsilon
    epsilons = [line["epsilon"] for line in outcome.metrics]
    assert epsilons[-1] == pytest.approx(outcome.summary["epsilon"], rel=1e-3)
    for before, after in zip(outcome.metrics, outcome.metrics[1:], strict=False):
        assert (after["epsilon"] == before["epsilon"]) == ("aborted" in after)


@pytest.mark.slow
def test_an_interrupted_run_with_aborted_rounds_resumes_to_the_same_end(secure_config, tmp_path):
    settings = (
        "aggregation.dropout=0.35",
        "federation.rounds=8",
        "federation.sampling=fixed",
        "aggregation.threshold=0.7",
    )
    whole = federation.run(build(secure_config("dp-fedavg", *settings)), tmp_path / "whole")

    killed_run(secure_config("dp-fedavg", *settings), tmp_path / "part", after=5)
    resumed = federation.run(build(secure_config("dp-fedavg", *settings)), tmp_path / "part", resume=True)
    assert resumed.summary | {"seconds": 0} == whole.summary | {"seconds": 0}
    assert (tmp_path / "part" / "ledger.jsonl").read_bytes() == (tmp_path / "whole" / "ledger.jsonl").read_bytes()


def test_a_private_sum_under_poisson_sampling_has_as_many_uploads_whatever_was_drawn(secure_config):
    experiment = build(secure_config("dp-fedavg"))
    asked = set()
    for round in range(12):
        state = replace(experiment.start, round=round)
        cohort = draw_round_cohort(experiment.method, round)
        _, observed = watched_round(state, experiment.method, seeds=experiment.seeds, ledger=Book(), cohort=cohort)
        asked.add(observed.participants)
        assert observed.cohort == len(cohort) < observed.participants
    assert asked == {experiment.method.fill}


REFUSED = {
    ("method.name=qsgd", *PRIVATE): "cannot be decoded from their sum",
    ("method.name=dp-fedavg", *PRIVATE, "privacy.noise=gaussian"): "wrapped around hides nothing.*discrete-gaussian",
    (
        "method.name=dp-fedavg",
        *PRIVATE,
        "privacy.noise=gaussian",
        "privacy.placement=clients",
        "federation.sampling=fixed",
    ): "Use 'discrete-gaussian'",
    ("method.name=dp-fedavg", *PRIVATE, "privacy.linf_clip=0.1"): "privacy.linf_clip",
    ("method.name=dp-fedavg", *PRIVATE, "privacy.release=uploads"): "is for gaussian, coins",
    ("method.name=dp-fedavg", *PRIVATE, "privacy.adaptive.quantile=0.5"): "is for gaussian",
    ("method.name=dp-fedavg", *PRIVATE, "aggregation.steps=2000000000"): "at most 32 can be summed",
    ("method.name=dp-fedavg", *PRIVATE, "aggregation.threshold=0.5"): "greater than 0.5",
    ("method.name=dp-fedavg", *PRIVATE, "aggregation.dropout=0.1", "aggregation.lost.upload=1"): "both set which",
    ("method.name=dp-fedavg", *PRIVATE, "aggregation.neighbours=5"): "aggregation.neighbours=5: must be an even number",
    ("method.name=dp-fedavg", *PRIVATE, "aggregation.neighbours=2"): "aggregation.neighbours=2 of .* below log2",
    ("method.name=dp-fedavg", *PRIVATE, "aggregation.lost.lunch=1"): "'advertise', 'share', 'upload', 'unmask' or",
}


@pytest.mark.parametrize(
    ("settings", "complaint"), REFUSED.items(), ids=lambda one: one if isinstance(one, str) else ""
)
def test_what_cannot_work_is_refused_with_the_reason(tiny_config, settings, complaint):
    refused(ConfigError, complaint, lambda: build(tiny_config("aggregation.kind=masked", *settings)))


@pytest.mark.parametrize("name", ["qsgd", "signsgd", "drive", "fedmrn", "fedavg-topk"])
def test_uploads_that_do_not_add_up_are_refused_without_privacy_too(tiny_config, name):
    sparse = ("method.keep=0.1",) if name == "fedavg-topk" else ()
    with pytest.raises(ConfigError, match="sum of its uploads cannot be decoded"):
        build(tiny_config("aggregation.kind=masked", f"method.name={name}", *sparse, without=["privacy"]))
    with pytest.raises(ConfigError, match="integers have a bounded range"):
        build(tiny_config("aggregation.kind=masked", "method.name=fedavg", without=["privacy"]))
