"""`dpfed audit upload`: verdicts, the JSON contract, and the harness against plain arithmetic and exact laws."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from accounting.bernoulli.exact import channel_epsilon
from accounting.mechanisms import Gaussian
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.round import round_checks, whole_round
from dpfed.audit.round.bernoulli_ratios import BernoulliBias, BernoulliRatio
from dpfed.audit.round.claims import claim_of
from dpfed.audit.round.method_setting import audit_upload, audited_configuration, audited_methods, round_of
from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.audit.round.round_audit import NEEDED_GAP, claim_of_round, pair_tests, pairs_for_claim, shares_of_trials
from dpfed.audit.round.two_worlds import TwoWorlds
from dpfed.audit.trials import TrialShare
from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import METHODS
from dpfed.runs.experiment import build

from .broken_rounds import no_clip_after_the_scale

SMALL = "model.hidden=[2]"
QUICK = {"draws": 10_000}


def prepared(name, *settings, z=1.0):
    experiment = build(audited_configuration(name, [SMALL, *settings], None if name == "fedpm" else z))
    return round_of(experiment), experiment.model.layout


@pytest.mark.slow_but_one_in(14)
@pytest.mark.parametrize("name", audited_methods())
def test_no_private_method_is_refuted_and_a_pair_reaches_the_claim(name):
    """Seeded; a sound method fails with probability at most 5%. So few trials are never a pass."""
    done = audit_upload(name, settings=[SMALL], trials=40, **QUICK)
    assert done.verdict == "inconclusive", [check for check in done.checks if not check.passed]
    assert done.score_gap == pytest.approx(1.0, abs=1e-3)  # rows are no longer than claimed, and as long
    assert done.to_dict()["lower_bound"] <= done.claim.epsilon


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


@pytest.mark.slow_but_one_in(16)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way).replace("privacy.", ""))
def test_other_ways_to_be_private_are_not_refuted_either(way):
    name, *settings = way
    done = audit_upload(name, settings=[SMALL, *settings], trials=40, **QUICK)
    assert done.verdict == "inconclusive", [check for check in done.checks if not check.passed]
    assert done.score_gap >= NEEDED_GAP


@pytest.mark.slow
def test_exactly_as_many_trials_as_were_asked_for():
    for trials in (2, 5, 23, 61):
        done = audit_upload("dp-fedavg", settings=[SMALL], trials=trials, draws=1_000)
        assert (done.trials, sum(one.trials for one in done.tests)) == (trials, trials)
        assert all(one.test.trials0 + one.test.trials1 == one.trials for one in done.tests)
        assert len(done.tests) + len(done.not_tried) == 6
        assert done.to_dict()["trials"] == trials


@pytest.mark.slow
def test_what_would_have_been_found_does_not_depend_on_what_was_seen():
    """Two seeds, nearly one power: only the claim and the numbers of trials go into it, which in each world are by fair
    coins."""
    first, second = (
        audit_upload("dp-fedavg", settings=[SMALL], trials=300, seed=seed, draws=1_000).power for seed in (1, 2)
    )
    assert first.noise_short == pytest.approx(second.noise_short, abs=0.03)
    assert first.too_far == pytest.approx(second.too_far, abs=0.1)


@pytest.mark.slow
def test_too_few_trials_are_inconclusive_whatever_they_show(capsys):
    assert status(["audit", "upload", "dp-fedavg", "--trials", "5", "--set", SMALL, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["verdict"], record["trials"]) == ("inconclusive", 5)
    assert record["power"] == {"probability": 0.9, "noise_short": None, "too_far": None, "enough": False}


@pytest.mark.slow
def test_enough_trials_pass_and_say_what_they_would_have_found():
    done = audit_upload("dp-fedavg", settings=[SMALL], trials=6_000, draws=1_000)
    assert done.verdict == "pass"
    assert 0.1 < done.power.too_far <= done.power.noise_short <= 0.2  # whole scores see how far a client moves the sum


class Opened:
    """A source that keeps the round whose rows it adds."""

    def __init__(self, source):
        self._source = source

    def take_part(self, opened):
        self._source.take_part(opened)
        self.round = opened


def test_a_new_state_that_is_not_post_processing_is_refuted(monkeypatch):
    """A tenth of what the clients sent, added to the state after the server's rule: in the round itself."""
    sound = whole_round.run_round

    def leaky(state, method, source, **more):
        done = sound(state, method, source := Opened(source), **more)
        leaked = done.state.broadcast + 0.1 * source.round.total.close().total / 4
        return replace(done, state=replace(done.state, broadcast=leaked))

    monkeypatch.setattr(whole_round, "run_round", leaky)
    done = audit_upload("dp-fedavg", settings=[SMALL], trials=12, draws=1_000)
    assert {check.name for check in done.checks if not check.passed} >= {"norm", "state"}


def test_charges_that_depend_on_data_are_refuted(monkeypatch):
    sound = whole_round.run_round

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
    done = audit_upload("dp-fedavg", settings=[SMALL], trials=60, draws=1_000)
    assert "ledger" in {check.name for check in done.checks if not check.passed}


@pytest.mark.slow
def test_scores_of_a_gaussian_claim_have_the_claimed_law():
    """N(0, 1) and N(mu, 1): means and spreads within six standard errors."""
    one, layout = prepared("fed-smp-randk")
    claim = claim_of_round(one, 1e-5)
    pair = pairs_for_claim(one, claim, layout)[0]
    world = TwoWorlds.prepare(one.with_randomness(RandomnessByCallOrder(3)), claim, pair)
    n = 800
    for scores, mean in zip(world.trials((n, n)).scores["filter"], (0.0, claim.mu), strict=True):
        assert scores.mean() == pytest.approx(mean, abs=6 / n**0.5)
        assert scores.std() == pytest.approx(1.0, abs=6 / (2 * n) ** 0.5)


def test_no_pair_may_be_farther_apart_without_noise_than_is_claimed():
    """Planted: rand-k is clipped before its scale. No trial is needed; pairs of uneven entries are measured as well."""
    found = []
    for made in no_clip_after_the_scale():
        claim = claim_of_round(made.one_round, 1e-5)
        one = made.drawing_from(RandomnessByCallOrder(3))
        worlds = [TwoWorlds.prepare(one, claim, pair) for pair in pairs_for_claim(made.one_round, claim, made.layout)]
        assert sum(world.pair.needs_pilot for world in worlds) == 6
        found.append(round_checks.distance_check(one, claim, worlds).passed)
        tried = {share.pair.pair.name for share in shares_of_trials(worlds, trials=1_000, alpha=0.05, seed=1)}
        assert len(tried) == len(worlds) - 6 or not found[-1]
    assert found == [True, False]


@pytest.mark.slow
def test_whole_scores_find_a_client_that_moves_too_far_before_the_profile_does():
    """Planted: rand-k is clipped before its scale, so that one entry moves the sum 2.5 times too far; 160 trials."""
    found = []
    for made in no_clip_after_the_scale():
        claim = claim_of_round(made.one_round, 1e-5)
        (pair,) = [one for one in pairs_for_claim(made.one_round, claim, made.layout) if one.name == "one entry"]
        world = TwoWorlds.prepare(made.drawing_from(RandomnessByCallOrder(3)), claim, pair)
        found += pair_tests(TrialShare(pair=world, trials=160, alpha=0.05, best=True, seed=1))[0]
    sound, broken = found
    assert not sound.rejected
    assert sound.moved.factor < 1
    assert broken.too_far
    assert 1 < broken.moved.factor < 2.5
    assert broken.moved.epsilon > 2.98


@pytest.mark.slow
def test_lower_bounds_come_near_the_truth_and_a_better_claim_is_refuted():
    """mu = 1. 8,000 trials show 0.85 and not more than the truth (seeded), and that 0.8 would be wrong as a claim."""
    one, layout = prepared("dp-fedavg")
    claim = claim_of_round(one, 1e-5)
    world = TwoWorlds.prepare(
        one.with_randomness(RandomnessByCallOrder(4)), claim, pairs_for_claim(one, claim, layout)[0]
    )
    (test,), _ = pair_tests(TrialShare(pair=world, trials=8_000, alpha=0.05))
    assert 0.85 < test.mu <= 1.0
    assert 1.5 < test.lower_bound < test.lower_bound_gdp <= claim.epsilon
    assert not test.test.rejected
    release = one.method.release(replace(one.announcement, uploads=one.clients))
    better = replace(release, mechanism=Gaussian(noise_multiplier=1.25, adjacency=Adjacency.ADD_REMOVE))
    wrong = replace(world, claim=claim_of(better, delta=1e-5))
    (refuted,), _ = pair_tests(TrialShare(pair=wrong, trials=8_000, alpha=0.05))
    assert refuted.test.rejected


def test_coin_ratios_are_those_of_the_binomial_law():
    """Three others at the same probability: the sum's law by scipy. One upload: coordinate by coordinate."""
    from scipy.stats import binom

    coins = BernoulliBias(edge=0.1)
    one, other, rest = torch.tensor([0.3]), torch.tensor([0.6]), torch.tensor([0.6])
    ratio = BernoulliRatio.from_probabilities(coins, one, other, rest, 3)
    counts = torch.arange(5.0)[:, None]
    beside = binom.pmf(np.arange(5), 3, 0.6)
    shifted = np.concatenate([[0.0], beside[:-1]])
    exact = np.log((0.7 * beside + 0.3 * shifted) / binom.pmf(np.arange(5), 4, 0.6))
    np.testing.assert_allclose(ratio.scores(counts), exact, rtol=1e-6)
    alone = BernoulliRatio.from_probabilities(coins, torch.tensor([0.3, 0.02]), torch.tensor([0.6, 0.5]), rest, 0)
    drawn = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    expected = [math.log(0.3 / 0.6 * 0.9 / 0.5), math.log(0.7 / 0.4 * 0.1 / 0.5)]
    np.testing.assert_allclose(alone.scores(drawn), expected, rtol=1e-6)


def test_the_mean_of_a_noisy_coin_outside_the_box():
    """E clip(theta + N, c, 1-c) by simulation, for probabilities that the accountant's formula does not take."""
    coins = BernoulliBias(edge=0.2, noise_std=0.3)
    drawn = np.random.default_rng(0).normal(size=400_000)
    for theta in (-0.2, 0.2, 0.5, 1.1):
        ratio = BernoulliRatio.from_probabilities(
            coins, torch.tensor([theta]), torch.tensor([0.5]), torch.tensor([0.5]), 0
        )
        mean = np.clip(theta + 0.3 * drawn, 0.2, 0.8).mean()
        assert math.exp(ratio.log_one[0, 1]) == pytest.approx(mean, abs=0.002)


@pytest.mark.slow
def test_epsilon_of_single_coins_is_at_most_the_claim():
    """The exact law of the worst pair, without trials: below the claim of the channel."""
    one, layout = prepared("fedpm", "privacy.release=uploads", *OF_THE_MASK)
    claim = claim_of_round(one, 1e-5)
    pair = next(pair for pair in pairs_for_claim(one, claim, layout) if pair.name == "all up from the edge")
    world = TwoWorlds.prepare(one.with_randomness(RandomnessByCallOrder(0)), claim, pair)
    p, q = (np.exp(log[:, 1]) for log in (world.ratio.log_one, world.ratio.log_other))
    assert 0.3 < channel_epsilon(1e-5, p=p, q=q) / claim.epsilon <= 1.0


@pytest.mark.slow
def test_a_pair_that_cannot_reach_the_claim_is_inconclusive():
    """FedMRN's uploads are shorter than this clip norm: nothing is refuted, and nothing would have been."""
    done = audit_upload("fedmrn", settings=[SMALL, "privacy.clip_norm=4.0"], trials=200, **QUICK)
    assert done.score_gap < 0.5
    assert done.verdict == "inconclusive"


@pytest.mark.slow
def test_a_failed_check_is_a_failed_audit():
    done = audit_upload("dp-fedavg", settings=[SMALL], trials=200, **QUICK)
    broken = replace(done, checks=(*done.checks, round_checks.Check(name="planted", passed=False, detail="")))
    assert (done.verdict, broken.verdict) == ("inconclusive", "fail")


@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if not one.private_with])
def test_methods_without_a_claim_are_refused_with_the_nearest_one(name, capsys):
    assert status(["audit", "upload", name]) == 2
    assert "nearest private method is" in capsys.readouterr().err


def test_padded_coins_are_refused():
    with pytest.raises(ConfigError, match="sampling='poisson'"):
        audited_configuration("fedpm", ["federation.sampling=poisson"])


CONTRACT = {
    "claimed_epsilon", "delta", "lower_bound", "confidence", "method", "trials", "score_gap", "checks", "verdict",
    "power", "not_tested", "not_tried",
}  # fmt: skip


@pytest.mark.slow
def test_the_command_prints_the_contract_and_leaves_a_report(capsys, tmp_path):
    arguments = ["audit", "upload", "dp-fedavg", "--trials", "400", "--set", SMALL, "--out", str(tmp_path)]
    assert status([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) >= CONTRACT
    assert record["verdict"] in ("pass", "fail", "inconclusive")
    assert all(set(check) == {"name", "passed", "detail"} for check in record["checks"])
    assert record == json.loads((tmp_path / "audit.json").read_text())
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert f"{record['claimed_epsilon']:.4f}" in page
    assert "What this does not show" in page


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit():
    first, again = (
        audit_upload("fed-smp-randk", settings=[SMALL], trials=200, seed=3, **QUICK).to_dict() for _ in range(2)
    )
    assert {**first, "seconds": 0} == {**again, "seconds": 0}


@pytest.mark.slow
def test_a_failed_audit_is_status_1(capsys, monkeypatch):
    from dpfed.audit.round import round_audit

    wrong = round_checks.Check(name="norm", passed=False, detail="planted")
    monkeypatch.setattr(round_audit, "norm_check", lambda *arguments: wrong)
    assert status(["audit", "upload", "dp-fedavg", "--trials", "200", "--set", SMALL]) == 1
    assert "fail: Checks that failed: norm." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name one method"),
        (["dp-fedavg", "--all"], "name one method"),
        (["--all", "--noise-multiplier", "1"], "--noise-multiplier with --all"),
        (["dp-fedavgg"], "Did you mean"),
        (["dp-fedavg", "--confidence", "1"], "confidence"),
        (["dp-fedavg", "--trials", "0"], "trials"),
        (["dp-fedavg", "--trials", "1"], "trials"),
        (["fedpm", "--noise-multiplier", "1"], "privacy.noise_multiplier with privacy.noise='coins'"),
        (["dp-fedavg", "--set", "privacy.clip=1"], "clip_norm"),
    ],
)
def test_wrong_usage_is_one_message_and_status_2(capsys, arguments, words):
    assert status(["audit", "upload", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
