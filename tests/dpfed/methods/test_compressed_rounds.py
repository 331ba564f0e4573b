"""Compressed uploads inside rounds: the bytes that are counted, the bound behind the decoder, noise before the code."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

from accounting import Ledger, budget, guarantee
from accounting.budget import Plan
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Gaussian
from dpfed import compress
from dpfed.aggregation.messages import ProtocolStep
from dpfed.compress.payload import most_bytes
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import METHODS
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.server.rules import Averaging
from dpfed.stages.chain import Stages

from ...rounds import DIGITS, configured, killed_run, random_updates, watched_round, with_updates
from ..announced import a_round, announced, arrive

pytestmark = pytest.mark.slow_but_one_in(3)

COMPRESSED = sorted(name for name, method in METHODS.items() if method.privacy == "optional" and not method.sends_masks)
SIZE = 64 * 8 + 8 + 80 + 10
PRIVATE = {"clip_norm": 0.5, "noise_multiplier": 2.0}


def config(method, *settings, privacy=None):
    kept = ["method.keep=0.1"] if method == "fedavg-topk" and "method.keep" not in str(settings) else []
    return configured(*kept, *settings, start=DIGITS | {"privacy": {}}, method={"name": method}, privacy=privacy)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("method", COMPRESSED)
def test_every_method_runs_and_reports_the_bytes_that_travelled(tmp_path, method):
    outcome = federation.run(build(config(method)), tmp_path / "run")
    observed = [json.loads(line) for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert outcome.summary["epsilon"] is None
    assert outcome.summary["uplink_megabytes_total"] * 1e6 == pytest.approx(sum(f["uplink_bytes"] for f in observed))
    assert outcome.summary["uplink_bytes_per_client_round"] < 4 * SIZE


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("method", COMPRESSED)
def test_in_a_private_sum_sizes_tell_nothing_and_epsilon_is_the_gaussians(tmp_path, method):
    experiment = build(config(method, privacy=PRIVATE))
    outcome = federation.run(experiment, tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    expected = budget.epsilon(Plan(clients=60, cohort=12), noise_multiplier=2.0, rounds=3)
    assert outcome.summary["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert book.releases[0].noise_std == 1.0
    assert any("must be trusted" in note for note in outcome.summary["not_protected"])
    assert outcome.summary["uplink_bytes_per_client_round"] == experiment.uplink_bits / 8
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    sizes = {json.loads(line)["uplink_megabytes"] / json.loads(line)["round"] for line in lines}
    assert max(sizes) - min(sizes) < 1e-12


@pytest.mark.parametrize("method", COMPRESSED)
def test_one_client_moves_a_private_sum_by_at_most_the_clip(method):
    """The real path of a round, noise taken out: the sums with the client and without it differ by C at most."""
    experiment = build(config(method, privacy={"clip_norm": 0.5, "noise_multiplier": 1e-9}))
    distance = float((_sum(experiment, range(5)) - _sum(experiment, range(4))).double().norm())
    assert 0 < distance <= 0.5 * (1 + 1e-4)


def _sum(experiment, cohort):
    updates = random_updates(experiment, seed=4)
    updates[4] *= 1e6
    method = replace(with_updates(experiment, updates), server=Averaging())
    start = experiment.start
    state, _ = watched_round(start, method, seeds=experiment.seeds, ledger=None, cohort=np.array(cohort))
    return (state.broadcast - start.broadcast) * 12


def test_clipping_before_a_compressor_would_not_bound_the_sum():
    """The planted fault: with the bound in front of signs scaled by linf, what is summed is far longer than C."""
    experiment = build(config("stochastic-sign", privacy={"clip_norm": 0.5, "noise_multiplier": 1e-9}))
    project, encode, clip, noise = experiment.method.stages
    faulty = replace(experiment, method=replace(experiment.method, stages=Stages(project, clip, noise, encode)))
    distance = float((_sum(faulty, range(5)) - _sum(faulty, range(4))).norm())
    assert distance > 0.6


@pytest.mark.parametrize("method", ["dp-fedavg", "fed-smp-randk", "terngrad", "qsgd", "signsgd"])
def test_noised_uploads_are_charged_in_full_every_round(tmp_path, method):
    privacy = {"clip_norm": 0.5, "noise_multiplier": 5.0, "release": "uploads"}
    chosen = config(method, *(["method.k=100"] if "smp" in method else []), privacy=privacy)
    outcome = federation.run(build(chosen), tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert all(release.mechanism == Gaussian(noise_multiplier=5.0, adjacency="zero-out") for release in book.releases)
    assert {release.noise_placement for release in book.releases} == {"uploads"}
    assert outcome.summary["epsilon"] == guarantee(book.mechanism(), delta=1e-4).epsilon


def test_the_noise_of_uploads_is_on_every_row_before_the_code():
    """Variance of what a client sends, clip and all: (z C)^2 in every coordinate. Chi-square, false alarm 1e-6."""
    from scipy.stats import chi2

    privacy = {"clip_norm": 0.5, "noise_multiplier": 3.0, "release": "uploads"}
    experiment = build(config("dp-fedavg", privacy=privacy))
    rows, noise = torch.zeros(40, SIZE), experiment.method.stages.private
    noised = noise.client(rows, np.arange(40), announced(experiment))
    total = float((noised.double() ** 2).sum()) / 1.5**2
    assert chi2.ppf(5e-7, 40 * SIZE) < total < chi2.isf(5e-7, 40 * SIZE)
    assert not chi2.ppf(5e-7, 40 * SIZE) < total * 0.97**2 < chi2.isf(5e-7, 40 * SIZE)
    assert not torch.equal(noised[0], noised[1])


@pytest.mark.parametrize("method", ["dp-fedavg", "fedscalar", "qsgd", "terngrad", "drive"])
def test_the_counted_size_is_never_exceeded(method):
    experiment = build(config(method, privacy=PRIVATE))
    scheme = experiment.method.stages.wire.scheme
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 1e20):
        rows = scale * torch.randn(5, SIZE, generator=generator)
        longest = max(len(payload.to_bytes()) for payload in scheme.encode(rows, seed=3))
        assert longest <= experiment.uplink_bits / 8 == most_bytes(scheme, SIZE)


def test_a_seed_in_the_header_is_within_the_counted_size():
    """Nodes pad uploads to that size: longer ones would tell by their length how well a mask was coded."""
    experiment = build(config("fedmrns", "method.shared=true", privacy=PRIVATE))
    rows = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(0))
    for number in range(4):
        sent = experiment.method.stages.wire.messages(rows, np.arange(3), announced(experiment, number=number))
        assert max(map(len, sent)) <= experiment.uplink_bits / 8


def test_one_seed_a_round_is_the_same_for_all_and_another_next_round():
    """FedMRNS sends signs of noise: its magnitudes tell whose noise it was."""
    experiment = build(config("fedmrns", "method.shared=true"))
    stages, clients = experiment.method.stages, np.array([3, 9])
    rows = 1e-3 * torch.randn(1, SIZE, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    first, later = (arrive(stages, rows, clients, a_round(rows[0], number=t))[0].abs() for t in (0, 1))
    assert torch.equal(first[0], first[1])
    assert not torch.allclose(first[0], later[0])
    own = arrive(build(config("fedmrns")).method.stages, rows, clients, a_round(rows[0]))[0].abs()
    assert not torch.allclose(own[0], own[1])


def test_error_feedback_sends_everything_in_the_end(tmp_path):
    """Sum of what arrived + what is remembered = sum of what was to be sent; and it survives a resume."""
    experiment = build(config("signsgd", "method.error_feedback=true"))
    encode, memory = experiment.method.stages.wire, {}
    generator = torch.Generator().manual_seed(0)
    sent, arrived = torch.zeros(2, SIZE), torch.zeros(2, SIZE)
    for number in range(5):
        rows = torch.randn(2, SIZE, generator=generator)
        sent += rows
        now = replace(a_round(rows[0], number=number), memory=memory)
        arrived += encode.client(rows, np.array([7, 30]), now)
    torch.testing.assert_close(sent, arrived + memory["errors"][[7, 30]], atol=1e-4, rtol=1e-4)

    rows = torch.full((2, SIZE), float("nan"))
    rows[1] = 0.0
    before = memory["errors"].clone()  # no payload is sent, so that nothing is taken from the errors
    assert not encode.client(rows, np.array([7, 30]), replace(a_round(rows[1], number=5), memory=memory)).any()
    assert torch.equal(memory["errors"], before)

    whole = federation.run(build(config("signsgd", "method.error_feedback=true")), tmp_path / "whole")

    killed_run(config("signsgd", "method.error_feedback=true"), tmp_path / "cut", after=2)
    resumed = federation.run(build(config("signsgd", "method.error_feedback=true")), tmp_path / "cut", resume=True)
    assert resumed.metrics == whole.metrics


def test_errors_that_grow_without_end_end_no_round():
    """The error of a projection is longer than the update: after some rounds it was beyond what is sent."""
    encode, memory = build(config("fedscalar", "method.error_feedback=true")).method.stages.wire, {}
    generator = torch.Generator().manual_seed(0)
    for number in range(60):
        rows = torch.randn(2, SIZE, generator=generator)
        now = replace(a_round(rows[0], number=number), memory=memory)
        assert encode.client(rows, np.array([7, 30]), now).isfinite().all()
    assert memory["errors"].isfinite().all()


@pytest.mark.parametrize(
    ("method", "settings", "privacy", "complaint"),
    [
        ("qsgd", ["method.options.levels=0"], None, "method.options of 'qsgd'"),
        ("qsgd", ["method.options.level=4"], None, "level=4"),
        ("terngrad", ["method.shared=true"], None, "is for fedmrn, fedmrns, fedscalar"),
        ("fedsparsify", ["method.shared=true"], None, "is for fedmrn, fedmrns, fedscalar"),
        ("fedmrn", ["method.options.shared_seed=4"], None, "set method.shared = true instead"),
        ("fedavg-topk", ["method.keep=0.1", "method.options.k=4"], None, "set method.k instead"),
        ("fedsparsify", ["method.options.sparse=0.9"], None, r"sparse=0.9 of fedsparsify: not one of its options"),
        ("fedsparsify", ["method.error_feedback=true"], None, "does not take it"),
        ("fedavg", ["method.error_feedback=true", "aggregation.kind=masked"], None, "is not built"),
        ("dp-fedavg", ["method.options.width=16", "aggregation.kind=masked"], PRIVATE, "width=16 of dense"),
        ("stochastic-sign", ["method.options.majority=true"], {"noise": "coins", "clip_norm": 1.0}, "no such option"),
        ("signsgd", ["federation.sampling=fixed", "privacy.placement=clients"], PRIVATE, "do not add up"),
        ("dp-fedavg", ["privacy.release=uploads", "privacy.adjacency=add-remove"], PRIVATE, "senders are visible"),
        ("fedmask", ["method.options.bits=1"], None, "does not take it"),
        ("signsgd", ["method.options.majority=true"], None, "no effect in a run"),
        ("fedsparsify", ["method.purge=clients"], PRIVATE, "majority vote"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(method, settings, privacy, complaint):
    refused(ConfigError, complaint, lambda: build(config(method, *settings, privacy=privacy)))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"adjacency": "replace-one", "accountant": "rdp"}, "'rdp' with Poisson sampling and replace-one"),
        ({"noise": "skellam", "adjacency": "replace-one"}, "no Renyi bound is implemented. Use adjacency"),
    ],
)
def test_an_epsilon_that_could_not_be_stated_is_refused_before_anything_is_written(settings, complaint):
    refused(UnsupportedMechanism, complaint, build, config("dp-fedavg", privacy={**PRIVATE, "delta": 0.01, **settings}))


def test_names_of_schemes_are_those_of_the_registry():
    assert {method.scheme for method in METHODS.values() if method.scheme} <= set(compress.names())
    assert all(math.isfinite(method.nominal_bits_per_parameter) for method in METHODS.values())


COINS = {"clip_norm": 0.5, "noise": "coins", "edge": 0.2, "slots": 30}
BY_COINS = {
    "stochastic-sign": ["method.options.bound=0.05"],
    "fedmrns": ["method.shared=true", "method.options.noise=bernoulli", "method.options.alpha=0.05"],
}


@pytest.mark.parametrize("method", sorted(BY_COINS))
def test_signs_are_private_by_their_own_coins(tmp_path, method):
    """The ledger charges a sum of 30 coins an entry; nothing is added to the sum."""
    experiment = build(config(method, *BY_COINS[method], privacy=COINS))
    outcome = federation.run(experiment, tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    coins = book.releases[0].mechanism.mechanism
    assert (coins.cohort, coins.dimension, coins.floor, coins.l2_clip) == (30, SIZE, 0.2, 0.5)
    assert book.releases[0].noise_placement == "coins"
    assert outcome.summary["epsilon"] == guarantee(book.mechanism(), delta=1e-4).epsilon
    assert experiment.uplink_bits == 5 * SIZE


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(BY_COINS))
def test_the_sum_of_sign_coins_is_unbiased_inside_the_bound(method):
    """Mean release of 300 rounds against the sum of updates that no edge clips. False alarm 1e-6 in all."""
    from scipy.stats import norm

    experiment = build(config(method, *BY_COINS[method], privacy={**COINS, "clip_norm": 50.0}))
    updates = 0.02 * torch.randn(SIZE, generator=torch.Generator().manual_seed(1)).sign().repeat(12, 1)

    method = with_updates(experiment, updates)
    total, rounds = torch.zeros(SIZE, dtype=torch.float64), 300
    for round in range(rounds):
        start = replace(experiment.start, round=round)
        state, _ = watched_round(start, method, seeds=experiment.seeds, ledger=None, cohort=np.arange(12))
        total += (state.broadcast - start.broadcast).double() * 12
    std = 0.1 * math.sqrt(30 * 0.25)  # a coin read as ±.05 spans .1
    limit = norm.isf(1e-6 / 2 / SIZE) * std / math.sqrt(rounds)
    error = (total / rounds - updates.sum(dim=0)).abs().max()
    assert float(error) < limit
    assert float((total / rounds - 1.5 * updates.sum(dim=0)).abs().max()) > limit  # a wrong scale is seen


@pytest.mark.parametrize(
    ("method", "settings", "complaint"),
    [
        ("stochastic-sign", [], "public number"),
        ("fedmrns", ["method.shared=true"], "the same noise of one size"),
        ("qsgd", [], "have Bernoulli samples"),
        ("stochastic-sign", ["method.options.bound=0.05", "privacy.noise_multiplier=1.0"], "'coins': is for gaussian"),
    ],
)
def test_signs_whose_coins_would_not_be_private_are_refused(method, settings, complaint):
    privacy = {key: value for key, value in COINS.items() if key != "slots" or "uploads" not in str(settings)}
    refused(ConfigError, complaint, lambda: build(config(method, *settings, privacy=privacy)))


def test_shared_directions_put_the_bound_and_the_noise_on_the_numbers_that_are_sent(tmp_path):
    settings = ("method.shared=true", "method.options.projections=6")
    experiment = build(config("fedscalar", *settings, privacy=PRIVATE))
    outcome = federation.run(experiment, tmp_path / "run")
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").releases[0].detail["dimension"] == 6
    assert not experiment.method.stages.decodes_before_the_clip
    assert outcome.summary["uplink_bytes_per_client_round"] == most_bytes(compress.get("dense"), 6)
    quiet = build(config("fedscalar", *settings, privacy={"clip_norm": 0.5, "noise_multiplier": 1e-9}))
    chosen = quiet.method.stages.project.choice.for_round(quiet.start.broadcast, 0, quiet.seeds)
    moved = _sum(quiet, range(5)) - _sum(quiet, range(4))
    numbers = chosen.forward(moved[None], np.zeros(1))[0]  # v v^T / p is the identity only up to the other directions
    assert float(moved.norm()) <= 0.5 * math.sqrt(SIZE / 6) * 1.5
    assert numbers.shape == (6,)


def test_forward_and_adjoint_of_shared_directions_are_a_pair():
    """<forward(x), r> = p <x, adjoint(r)>, and a row that is not finite stays one for the bound to find."""
    chosen = build(
        config("fedscalar", "method.shared=true", "method.options.projections=5")
    ).method.stages.project.choice
    from dpfed.seeds import Seeds

    chosen = chosen.for_round(torch.zeros(SIZE), 3, Seeds(root=1))
    generator = torch.Generator().manual_seed(0)
    x, r = torch.randn(2, SIZE, generator=generator), torch.randn(5, generator=generator)
    forward = chosen.forward(x, np.arange(2))
    assert float(forward[1] @ r) == pytest.approx(5 * float(x[1] @ chosen.adjoint(r)), rel=1e-4)
    x[0, 3] = float("inf")
    assert chosen.forward(x, np.arange(2))[0].isnan().all()


def test_local_purges_merge_by_majority():
    """Models that hold an entry, of four: none, one, two, four; below half it becomes zero in the mean model."""
    encode = build(config("fedsparsify", "method.purge=clients", "method.options.sparsity=0.0")).method.stages.wire
    origin = torch.full((SIZE,), 0.5)
    models = torch.zeros(4, SIZE)
    models[:1, 1], models[:2, 2], models[:, 3] = 1.0, 1.0, 1.0
    encode, now = (
        replace(encode, dense=None, scheme_of=lambda number: compress.get("dense")),
        a_round(origin, uploads=4),
    )
    total = sum(encode.client(models[rows] - origin, np.arange(2), now).sum(dim=0) for rows in ([0, 1], [2, 3]))
    merged = origin + encode.server(total, now) / 4
    torch.testing.assert_close(merged[:4], torch.tensor([0.0, 0.0, 0.5, 1.0]))
    unvoted = origin + total / 4
    assert float(unvoted[1]) == 0.25


def test_clients_whose_models_come_too_late_have_no_vote():
    encode = build(config("fedsparsify", "method.purge=clients", "method.options.sparsity=0.0")).method.stages.wire
    now = announced(build(config("fedavg")))
    now = replace(now, task=replace(now.task, dropouts={1: ProtocolStep.LATE, 2: ProtocolStep.UNMASK}))
    models = torch.ones(3, SIZE)
    models[0, 5] = 0.0
    encode.client(models - now.reference, np.arange(3), now)
    assert now.votes[0][4:6].tolist() == [2, 1]


def test_floats_of_16_bits_are_clipped_after_their_rounding():
    """A clipped row grows by up to 2^-11 when rounded to float16; in front of the code the clip would not hold."""
    row = torch.full((1, SIZE), 0.5 / SIZE**0.5)
    scheme = compress.get("dense", bits=16)
    rows = torch.linspace(0.9, 1.0, 200)[:, None] * row
    growth = scheme.decode(scheme.encode(rows, seed=0)).norm(dim=1) / rows.norm(dim=1)
    assert float(growth.max()) > 1 + 1e-4  # the fault is real
    quiet = {"clip_norm": 0.5, "noise_multiplier": 1e-9}
    experiment = build(config("dp-fedavg", "method.options.bits=16", privacy=quiet))
    assert experiment.method.stages.decodes_before_the_clip
    assert float((_sum(experiment, range(5)) - _sum(experiment, range(4))).double().norm()) <= 0.5 * (1 + 1e-4)
    settings = ("method.options.bits=16", "federation.sampling=fixed", "privacy.placement=clients")
    refused(ConfigError, "do not add up", lambda: build(config("dp-fedavg", *settings, privacy=PRIVATE)))
