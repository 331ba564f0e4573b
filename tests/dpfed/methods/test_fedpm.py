"""FedPM as a whole: real bytes, the three private ways and their ledgers, the bound, the padding, the saved mask."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import entropy

from accounting import Ledger, budget, guarantee
from accounting.budget import Plan
from accounting.mechanisms import Subsampled
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.models.frozen import load_mask
from dpfed.records.summary import Summary
from dpfed.runs import loop as federation
from dpfed.runs.evaluate import evaluate
from dpfed.runs.experiment import build
from dpfed.stages.wires import MaskWire, entropy_of_ones

from ...rounds import DIGITS, configured, killed_run, tables, watched_round, with_after
from ..announced import Recorder, bound

TABLES = tables(
    DIGITS | {"privacy": {"clip_norm": 0.8, "slots": 30}},
    local={"learning_rate": 1.0},
    method={"name": "fedpm"},
    mask={"edge": 0.2, "spread": 0.0, "readout": "mean"},
    server={"rule": "step"},
)
SIZE = 64 * 8 + 8 + 8 * 10 + 10


def config(*settings, without=()):
    return configured(*settings, start=TABLES, **dict.fromkeys(without))


def plain(*settings):
    masks = ("server.rule=posterior", "mask.edge=0.01", "mask.spread=1", "mask.readout=sample")
    return config(*masks, *settings, without=["privacy"])


@pytest.mark.parametrize("more", ["method.keep=0.1", "aggregation.dropout=0.2", "federation.sampling=balls-and-bins"])
def test_probabilities_that_are_no_counts_of_a_cohort_are_received_as_floats(more):
    experiment = build(plain("federation.clients=10", "federation.cohort=5", "federation.sampling=fixed", more))
    assert experiment.downlink_bits >= 32 * SIZE


def test_a_mask_costs_less_than_a_bit_and_the_file_is_the_model(tmp_path):
    experiment = build(plain("federation.clients=5", "federation.cohort=5", "federation.sampling=all"))
    outcome = federation.run(experiment, tmp_path / "run")
    assert outcome.summary["epsilon"] is None
    assert 0.3 < outcome.summary["uplink_bits_per_parameter"] < 1
    assert outcome.summary["downlink_bytes_per_client_round"] == math.ceil(SIZE * 3 / 8)  # whole fifths: 3 bits
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["uplink_megabytes"] * 1e6 / 15 == pytest.approx(outcome.summary["uplink_bytes_per_client_round"], abs=1)
    model, weights = load_mask(tmp_path / "run" / "model.mask.safetensors")
    data = experiment.dataset
    again = evaluate(model, weights, torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_labels))
    assert again.accuracy == outcome.summary["test_accuracy"]  # to the bit


def test_two_measures_of_a_masks_bits_stand_beside_each_other(tmp_path):
    """FedPM's own (Section 3.1), recomputed from the masks that were sent, and the bytes; over a resumed run."""
    sent, settings = [], ("federation.clients=5", "federation.cohort=5", "federation.sampling=all", "run.seed=3")
    real = MaskWire.client

    def seen(self, rows, ids, now):
        sent.extend(rows.numpy().copy())
        return real(self, rows, ids, now)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MaskWire, "client", seen)
        killed_run(plain(*settings), tmp_path / "run", after=1)
        outcome = federation.run(build(plain(*settings)), tmp_path / "run", resume=True)
    shares = [mask.mean(dtype=float) for mask in sent]
    expected = np.mean([entropy([share, 1 - share], base=2) for share in shares])
    summary = outcome.summary
    assert len(sent) == 15
    assert summary["mask_entropy_bits_per_parameter"] == pytest.approx(expected, abs=0.51 / SIZE)
    assert summary["uplink_bits_per_parameter"] < 0.9 * summary["mask_entropy_bits_per_parameter"] < 0.9
    assert "mask_entropy_bits_per_parameter" not in Summary.of_folder(masked_run(tmp_path)).to_dict()


def masked_run(tmp_path):
    """The folder of a run whose masks are seen as a sum only."""
    return federation.run(build(plain("aggregation.kind=masked")), tmp_path / "masked").folder


@pytest.mark.parametrize(("ones", "size"), [(0, 40), (40, 40), (1, 40), (17, 40), (20, 40)])
def test_the_entropy_of_ones_is_that_of_their_share(ones, size):
    mask = torch.zeros(size).index_fill_(0, torch.arange(ones), 1.0)
    assert entropy_of_ones(mask) == round(size * entropy([ones / size, 1 - ones / size], base=2))


def test_the_posterior_of_one_round_is_the_mean_of_the_masks_that_were_sent():
    experiment = build(plain())
    state, observed = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
    counts = state.broadcast * observed.cohort
    torch.testing.assert_close(counts, counts.round(), atol=1e-4, rtol=0)
    assert observed.uplink_bytes is not None


def test_fedmask_sends_thresholds():
    experiment = build(plain("method.name=fedmask"))
    one, _ = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
    two, _ = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
    assert torch.equal(one.broadcast, two.broadcast)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ([], "bernoulli-aggregate"),
        (["privacy.noise_std=0.3"], "bernoulli-aggregate"),
        (["privacy.linf_clip=0.1"], "bernoulli-aggregate"),
        (["federation.sampling=fixed", "privacy.adjacency=replace-one"], "bernoulli-aggregate"),
        (["privacy.release=uploads", "privacy.noise_std=0.3"], "bernoulli-channel"),
        (["privacy.release=uploads", "privacy.noise_std=0.3", "privacy.correction=invert"], "bernoulli-channel"),
    ],
    ids=str,
)
def test_each_private_way_has_its_ledger_event(tmp_path, settings, kind):
    """(b) sums, (c) noise and sums, (a) noised uploads; epsilon is that of the plan that was computed apart."""
    slots = settings and ("fixed" in settings[0] or "uploads" in settings[0])
    privacy = {"clip_norm": 0.8} if slots else TABLES["privacy"]
    chosen = parse(override({**TABLES, "privacy": privacy}, settings), source="test")
    outcome = federation.run(build(chosen), tmp_path / "run")
    book = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [release.round for release in book.releases] == [0, 1, 2]
    coins = book.releases[0].mechanism
    coins = coins.mechanism if isinstance(coins, Subsampled) else coins
    assert coins.to_dict()["kind"] == kind
    assert coins.dimension == SIZE
    assert coins.floor == 0.2
    assert coins.noise_std == (0.3 if "privacy.noise_std=0.3" in settings else 0.0)
    assert outcome.summary["epsilon"] == guarantee(book.mechanism(), delta=1e-4).epsilon
    plan = Plan(
        clients=60,
        cohort=60 if kind.endswith("channel") else 12,
        dimension=SIZE,
        edge=0.2,
        mechanism=kind,
        sampling="all" if kind.endswith("channel") else chosen.federation.sampling,
        adjacency=chosen.privacy.adjacency,
        clip_norm=0.8,
        linf_clip=chosen.privacy.linf_clip,
        noise_std=coins.noise_std,
        slots=chosen.cohort_cap,
        others=coins.others if kind.endswith("aggregate") else "anywhere",
    )
    assert outcome.summary["epsilon"] == pytest.approx(budget.epsilon(plan, rounds=3), rel=1e-9)
    assert outcome.summary["noise_multiplier"] is None
    assert outcome.summary["unit"] == "client"


def test_the_bound_holds_in_both_norms_for_what_the_coins_get():
    experiment = build(config("privacy.linf_clip=0.05", "local.learning_rate=100.0"))
    norm = experiment.start.clip_norm
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, SIZE, generator=generator)
    rows[3] *= 1e30
    rows[4, 7] = float("nan")
    rows[5, 2] = float("inf")
    rows[6] *= 1e-3
    kept = rows[6].clone()
    bounded = bound(experiment, rows, norm)
    assert float(bounded.abs().max()) <= 0.05
    assert float(torch.linalg.vector_norm(bounded.double(), dim=1).max()) <= 0.8
    assert not bounded[4].any()
    assert not bounded[5].any()
    assert torch.equal(bounded[6], kept)


@pytest.mark.parametrize("clip", [0.05, 0.1, 0.3, 1e-3])
def test_the_largest_move_stays_at_or_below_the_clip_where_the_norm_does_not_bind(clip):
    """float32(0.05) is above 0.05: clamping to it would leave a move that the account does not know."""
    assert float(torch.tensor(0.05)) > 0.05
    bounded = bound(build(config(f"privacy.linf_clip={clip}")), torch.full((2, SIZE), 9.0), 1e6)
    assert clip * (1 - 2e-6) < float(bounded.abs().max()) <= clip


@pytest.mark.parametrize("drawn", [0, 5, 30])
def test_the_sum_holds_exactly_the_accounted_number_of_coins(drawn):
    """Any cohort up to the cap: S has K coins a coordinate; its variance does not tell the size."""
    experiment = build(config("local.learning_rate=0.0001", "server.learning_rate=0.1"))  # no edge is reached
    seen = Recorder()
    method = replace(experiment.method, stages=with_after(experiment.method.stages, PrivateCoins, seen))
    state, observed = watched_round(
        experiment.start, method, seeds=experiment.seeds, ledger=None, cohort=np.arange(drawn)
    )
    assert len(seen.rows) == observed.arrived == drawn
    sums = (state.broadcast - experiment.start.broadcast) * 120 + 30 * 0.5
    torch.testing.assert_close(sums, sums.round(), atol=1e-3, rtol=0)
    deviation = float(sums.std())
    assert abs(deviation - math.sqrt(30 * 0.25)) < 5 * deviation / math.sqrt(2 * SIZE)  # false alarm 6e-7


def test_only_selected_coordinates_send_coins_and_the_others_keep_the_broadcast_value():
    experiment = build(config("method.k=40", "data.public=137"))
    assert isinstance(experiment.privacy_target.mechanism, Subsampled)
    assert experiment.privacy_target.mechanism.mechanism.dimension == 40
    state, _ = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=None)
    moved = state.broadcast != experiment.start.broadcast
    assert 30 < int(moved.sum()) <= 40
    assert experiment.uplink_bits == 40 * 5  # sums up to 30


@pytest.mark.slow
def test_an_epsilon_alone_calibrates_the_clip():
    chosen = parse(override({**TABLES, "privacy": {"epsilon": 2.0, "slots": 30}}, []), source="test")
    experiment = build(chosen)
    coins = experiment.privacy_target.mechanism.mechanism
    assert isinstance(coins, BernoulliAggregate)
    spent = guarantee(experiment.privacy_target.mechanism, delta=1e-4).epsilon
    assert 0 < spent < 2.0
    plan = Plan(
        mechanism="bernoulli-aggregate",
        clients=60,
        cohort=12,
        dimension=SIZE,
        edge=0.2,
        clip_norm=coins.l2_clip,
        slots=30,
    )
    assert 1.9 < budget.epsilon(plan, rounds=3) <= 2.0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["privacy.noise_multiplier=1.0"], "with privacy.noise='coins': is for gaussian"),
        (["privacy.placement=clients"], "placement with privacy.noise='coins': is for gaussian"),
        (["privacy.adjacency=add-remove"], "zero-out"),
        (["privacy.adjacency=replace-one"], "pads"),
        (["privacy.release=uploads"], "federation.cohort_cap=30 with privacy.release='uploads'"),
        (["method.name=fedmask"], "never private"),
        (["method.name=dp-fedavg", "privacy.slots=", "privacy.noise_multiplier=1.0"], "is for fedpm, fedmask"),
    ],
)
def test_settings_that_would_not_be_private_as_stated_are_refused(settings, complaint):
    refused((ConfigError, ValueError), complaint, lambda: build(config(*settings)))


def test_masks_tables_without_masks_are_refused():
    tables = {**TABLES, "method": {"name": "dp-fedavg"}, "privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0}}
    refused(ConfigError, r"\[mask\]", lambda: build(parse(tables, source="test")))
    del tables["mask"]
    with pytest.raises(ConfigError, match="is for coins"):
        build(parse(override(tables, ["privacy.linf_clip=0.1"]), source="test"))


def test_a_channel_is_charged_to_everybody_in_every_round():
    experiment = build(
        parse(override({**TABLES, "privacy": {"clip_norm": 0.8, "release": "uploads"}}, []), source="test")
    )
    assert isinstance(experiment.privacy_target.mechanism, BernoulliChannel)
    assert experiment.uplink_bits is None
