"""`dpfed audit upload`: verdicts, the JSON contract, and the harness against plain arithmetic and exact laws."""

import json
from dataclasses import replace

import pytest

from dpfed.audit.round import neighbours, round_checks, whole_round
from dpfed.audit.round.bound_checks import floor_check
from dpfed.audit.round.method_setting import audit_upload, audited_configuration, audited_methods, round_of
from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.audit.round.round_audit import NEEDED_GAP, claim_of_round, pairs_for_claim
from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import METHODS
from dpfed.runs.experiment import build

from .broken_rounds import no_clip_after_the_scale
from .fault_layers import few_cohorts

SMALL = "model.hidden=[2]"
QUICK = {"draws": 10_000}


@pytest.mark.slow_but_one_in(28)
@pytest.mark.parametrize("name", audited_methods())
@few_cohorts
def test_no_private_method_is_refuted_and_a_pair_reaches_the_claim(name):
    done = audit_upload(name, settings=[SMALL], **QUICK)
    assert done.verdict == "pass", [check for check in done.checks if not check.passed]
    assert done.score_gap == pytest.approx(1.0, abs=1e-3)  # rows are no longer than claimed, and as long


# Coins of the mask's probabilities, not of how far they move.
OF_THE_MASK = ("mask.bound=", "mask.edge=0.2", "privacy.edge=", "privacy.clip_metric=fisher", "privacy.linf_clip=0.4")
COINS = ("privacy.clip_norm=0.3", "privacy.epsilon=100.0")  # a clip norm as it is: calibrating one takes seconds
EUCLIDEAN = "privacy.clip_metric=euclidean"
ADAPTIVE = ("privacy.adaptive.quantile=0.5", "privacy.adaptive.rate=0.2", "privacy.adaptive.count_noise_std=2.0")
SEEN_IN_ORDER = ("privacy.release=uploads", "federation.sampling=cyclic", "privacy.adjacency=zero-out")
WAYS = [
    ("dp-fedavg", "privacy.placement=clients", "aggregation.tolerance=0.25"),
    ("dp-fedavg", "privacy.noise=skellam", "privacy.placement=clients", "aggregation.kind=masked"),
    ("fed-smp-randk", "privacy.noise=discrete-gaussian", "privacy.adjacency=replace-one"),
    ("dp-fedavg", "privacy.release=uploads", "privacy.adjacency=zero-out"),
    ("signsgd", "privacy.release=uploads", "privacy.adjacency=zero-out"),
    ("fedscalar", "method.shared=true"),
    ("fedpm", "privacy.release=uploads", "privacy.noise_std=0.5", EUCLIDEAN, *COINS),
    ("fedpm", "privacy.noise_std=0.3", "privacy.adjacency=replace-one", EUCLIDEAN, *COINS),
    ("stochastic-sign", "privacy.noise=coins", "method.options.bound=0.1", *COINS),
    (
        "stochastic-sign", "privacy.noise=coins", "method.options.bound=0.1", "privacy.linf_clip=0.1", *SEEN_IN_ORDER,
        *COINS,
    ),
    ("fedpm", *SEEN_IN_ORDER, *COINS),
    ("fedpm", *OF_THE_MASK, *COINS),
    ("fedpm", "privacy.release=uploads", *OF_THE_MASK, *COINS),
    ("fedpm", "mask.bound=0.2", "privacy.count_bits=8", *COINS),
    ("stochastic-sign", "privacy.noise=coins", "method.options.bound=0.1", "method.keep=0.5", *COINS),
    ("dp-fedavg", "federation.sampling=fixed"),
    ("dp-fedavg", "federation.sampling=fixed", "privacy.adjacency=zero-out"),
    ("dp-fedavg", "federation.sampling=poisson"),
    ("fedpm", "federation.sampling=fixed", "privacy.adjacency=replace-one", *COINS),
    ("dp-fedavg", *ADAPTIVE),
    ("dp-fedavg", *ADAPTIVE, "privacy.adjacency=replace-one"),
    ("fed-smp-randk", "aggregation.kind=masked", "federation.sampling=fixed"),
    ("dp-fedavg", *SEEN_IN_ORDER),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way).replace("privacy.", ""))
def test_other_ways_to_be_private_are_not_refuted_either(way):
    name, *settings = way
    done = audit_upload(name, settings=[SMALL, *settings], **QUICK)
    assert done.verdict == "pass", [check for check in done.checks if not check.passed]
    assert done.score_gap >= NEEDED_GAP


class Opened:
    """A source that keeps the round whose rows it adds."""

    def __init__(self, source):
        self._source = source

    def take_part(self, opened):
        self._source.take_part(opened)
        self.round = opened


def gaps_of_dp_fedavg():
    """The pairs of neighbours of its round, as its audit judges them."""
    experiment = build(audited_configuration("dp-fedavg", [SMALL]))
    one = round_of(experiment)
    claim, fresh = claim_of_round(one, 1e-5), one.with_randomness(RandomnessByCallOrder(0))
    return [neighbours.gap_of_pair(fresh, claim, pair) for pair in pairs_for_claim(one, claim, experiment.model.layout)]


def test_a_new_state_that_is_not_post_processing_is_refuted(monkeypatch):
    """A tenth of what the clients sent, added to the state after the server's rule: in the round itself."""
    sound = whole_round.run_round
    assert round_checks.state_check(gaps_of_dp_fedavg()).passed

    def leaky(state, method, source, **more):
        done = sound(state, method, source := Opened(source), **more)
        leaked = done.state.broadcast + 0.1 * source.round.total.close().total / 4
        return replace(done, state=replace(done.state, broadcast=leaked))

    monkeypatch.setattr(whole_round, "run_round", leaky)
    assert not round_checks.state_check(gaps_of_dp_fedavg()).passed


def test_charges_that_depend_on_data_are_refuted(monkeypatch):
    sound = whole_round.run_round
    assert round_checks.ledger_check(gaps_of_dp_fedavg()).passed

    class Loud:
        def __init__(self, ledger, source):
            self._ledger, self._source = ledger, source

        def record(self, entry):
            tally = self._source.round.now.tally
            self._ledger.record(replace(entry, clip_norm=1.5) if tally.inside < tally.counted else entry)

    def leaky(state, method, source, *, ledger, **more):
        source = Opened(source)
        return sound(state, method, source, ledger=None if ledger is None else Loud(ledger, source), **more)

    monkeypatch.setattr(whole_round, "run_round", leaky)
    assert not round_checks.ledger_check(gaps_of_dp_fedavg()).passed


def test_no_pair_may_be_farther_apart_without_noise_than_is_claimed():
    """Planted: rand-k is clipped before its scale."""
    found = []
    for made in no_clip_after_the_scale():
        claim = claim_of_round(made.one_round, 1e-5)
        one = made.drawing_from(RandomnessByCallOrder(3))
        pairs = [
            neighbours.gap_of_pair(one, claim, pair) for pair in pairs_for_claim(made.one_round, claim, made.layout)
        ]
        found.append(round_checks.distance_check(one, claim, pairs).passed)
    assert found == [True, False]


@pytest.mark.slow
def test_a_pair_that_cannot_reach_the_claim_is_inconclusive():
    """FedMRN's uploads are shorter than this clip norm: nothing is refuted, and nothing would have been."""
    done = audit_upload("fedmrn", settings=[SMALL, "privacy.clip_norm=4.0"], **QUICK)
    assert done.score_gap < 0.5
    assert done.verdict == "inconclusive"


@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if not one.private_with])
def test_methods_without_a_claim_are_refused_with_the_nearest_one(name, capsys):
    assert status(["audit", "upload", name]) == 2
    assert "nearest private method is" in capsys.readouterr().err


def test_padded_coins_are_refused():
    with pytest.raises(ConfigError, match="sampling='poisson'"):
        audited_configuration("fedpm", ["federation.sampling=poisson"])


CONTRACT = {
    "claimed_epsilon", "delta", "distance_reached", "method", "score_gap", "checks", "verdict", "not_tested",
}  # fmt: skip


@pytest.mark.drawn
@pytest.mark.slow
def test_the_command_prints_the_contract_and_leaves_a_report(capsys, tmp_path):
    arguments = ["audit", "upload", "dp-fedavg", "--set", SMALL, "--out", str(tmp_path)]
    assert status([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) >= CONTRACT
    assert record["verdict"] in ("pass", "fail", "inconclusive")
    assert all(
        set(check) == {"name", "passed", "detail", "would_find"} and check["would_find"] for check in record["checks"]
    )
    assert record == json.loads((tmp_path / "audit.json").read_text())
    page = (tmp_path / "audit.html").read_text()
    assert f"{record['claimed_epsilon']:.4f}" in page
    assert "What this does not show" in page


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit():
    first, again = (audit_upload("fed-smp-randk", settings=[SMALL], seed=3, **QUICK).to_dict() for _ in range(2))
    assert {**first, "seconds": 0} == {**again, "seconds": 0}


@pytest.mark.slow
def test_a_failed_audit_is_status_1(capsys, monkeypatch):
    from dpfed.audit.round import round_audit

    wrong = round_checks.Check(name="norm", passed=False, detail="planted")
    monkeypatch.setattr(round_audit, "norm_check", lambda *arguments: wrong)
    assert status(["audit", "upload", "dp-fedavg", "--set", SMALL]) == 1
    assert "fail. Checks that failed: norm." in capsys.readouterr().out


@pytest.mark.parametrize("of_the_mask", [True, False])
def test_the_floor_is_checked_where_public_probabilities_reach_it(of_the_mask):
    """Signs have the public probability 1/2, at which the check would pass for any floor."""
    config = audited_configuration("fedpm", [SMALL, *COINS, *(OF_THE_MASK if of_the_mask else ())])
    one = round_of(build(config))
    assert (floor_check(one, claim_of_round(one, 1e-5)) is not None) is of_the_mask
