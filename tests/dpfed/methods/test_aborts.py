"""Whether a round ends without a result is published: it must tell nothing of who took part."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import binom

from accounting import Aborted, Ledger
from accounting.compose.twins import overflow
from accounting.errors import AccountingError
from accounting.mechanisms import sampling_of
from accounting.mechanisms.samplings.independent import default_cap, rarely_exceeded
from accounting.mechanisms.samplings.planned import sampling_of_keys
from dpfed.audit.evidence.promise import promise_of
from dpfed.errors import ConfigError
from dpfed.methods import choices
from dpfed.methods.choices import tolerated_fraction
from dpfed.randomness import Simulated
from dpfed.round import NO_RESULT, Method, draw_round_cohort
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import Book, random_updates, watched_round, with_updates
from ..conftest import config_with

pytestmark = pytest.mark.slow_but_one_in(3)

NOISE = {
    "gaussian": (),
    "gaussian-shares": ("privacy.placement=clients",),
    "discrete": ("privacy.noise=discrete-gaussian",),
    "discrete-shares": ("privacy.noise=discrete-gaussian", "privacy.placement=clients"),
    "skellam": ("privacy.noise=skellam",),
    "skellam-shares": ("privacy.noise=skellam", "privacy.placement=clients"),
    "coins": ("method.name=fedpm", "mask.edge=0.1"),
}
ADJACENCIES = ("unset", "add-remove", "zero-out", "replace-one")
COMBINATIONS = list(
    itertools.product(
        ("poisson", "fixed", "all"),
        ADJACENCIES,
        ("plain", "masked", "protocol"),
        NOISE,
        (None, 0.5),
        ("sum", "uploads"),
        (2, 12, 60),  # of 60: so few and so many that slots, shares and clients come together
    )
)


def configured(sampling, adjacency, kind, noise, tolerance, release, cohort):
    settings = [
        f"federation.sampling={sampling}", f"aggregation.kind={kind}", *NOISE[noise], f"federation.cohort={cohort}",
        f"privacy.release={release}", "aggregation.dropout=0.1", "privacy.delta=1e-3",
    ]  # fmt: skip
    settings += [] if adjacency == "unset" else [f"privacy.adjacency={adjacency}"]
    settings += [] if tolerance is None else [f"aggregation.tolerance={tolerance}"]
    if noise != "coins":
        return config_with("privacy.accountant=rdp", *settings)
    return config_with("privacy.clip_norm=0.5", *settings, without=["privacy"])


def accepted(combination):
    """Configuration and promise, or None where the combination is refused."""
    try:
        config = configured(*combination)
        return config, promise_of(config, 40)
    except (ConfigError, AccountingError):
        return None


def participants(config, promise, clients):
    """How many clients are asked in each of some rounds, in a world of so many."""
    federation_ = config.federation
    cohort = min(federation_.cohort, clients)
    randomness = Simulated(seeds=Seeds(root=clients))
    keys = {"cohort": cohort, "cohort_cap": config.cohort_cap}
    method = SimpleNamespace(
        sampler=sampling_of_keys(federation_.sampling, keys).cohorts(clients),
        randomness=randomness,
        fill=promise.fill,
        dropouts=None,
        canaries=None,
    )
    asked = set()
    for round in range(25):
        state = SimpleNamespace(round=round)
        asked.add(len(Method.task(method, state, draw_round_cohort(method, round)).participants))
    return asked


def tells_of_the_cohort(config, promise):
    """Whether a round may end, and the number of its participants is not one and the same in both worlds.

    Dropouts are drawn for a number of participants; with one number for all cohorts, of both worlds, their law, and so
    that of ending and of every count of arrivals, is the same.
    """
    if config.privacy.release == "uploads" or not choices.may_abort_round(config, tolerated_fraction(config)):
        return False
    add_remove = promise.privacy_target.mechanism.adjacency.value == "add-remove"
    worlds = (config.federation.clients, config.federation.clients - add_remove)
    return len(set.union(*(participants(config, promise, clients) for clients in worlds))) > 1


@pytest.mark.slow
def test_no_accepted_combination_tells_of_the_cohort_by_ending():
    found = {one: kept for one in COMBINATIONS if (kept := accepted(one)) is not None}
    assert len(found) > 150
    may_end = [one for one, (config, _) in found.items() if choices.may_abort_round(config, tolerated_fraction(config))]
    assert {one[0] for one in may_end} == {"poisson", "fixed", "all"}
    assert {one[2] for one in may_end} == {"plain", "masked", "protocol"}
    assert {one[3] for one in may_end} == set(NOISE)
    assert [one for one, kept in found.items() if tells_of_the_cohort(*kept)] == []


def test_without_the_refusals_some_would(monkeypatch):
    """The planted fault."""
    monkeypatch.setattr(choices, "check_aborts", lambda *_, **__: None)
    chosen = [one for one in COMBINATIONS if one[-1] == 12 and one[3] in ("gaussian", "coins") and one[-2] == "sum"]
    found = {one: kept for one in chosen if (kept := accepted(one)) is not None}
    telling = {one[:5] for one, kept in found.items() if tells_of_the_cohort(*kept)}
    assert ("poisson", "add-remove", "plain", "gaussian", 0.5) in telling
    assert ("poisson", "zero-out", "plain", "gaussian", 0.5) in telling
    assert ("all", "add-remove", "masked", "gaussian", None) in telling
    assert ("poisson", "zero-out", "plain", "coins", 0.5) in telling


REFUSED = {
    ("poisson", "add-remove", "plain", "gaussian", 0.5, "sum", 12): "Remove aggregation.tolerance",
    ("poisson", "zero-out", "plain", "coins", 0.5, "sum", 12): "Remove aggregation.tolerance",
    ("fixed", "unset", "plain", "gaussian", 0.5, "sum", 12): "Remove aggregation.tolerance",
    ("all", "add-remove", "masked", "gaussian", None, "sum", 12): "removing a client removes a participant",
    ("poisson", "add-remove", "protocol", "discrete", None, "sum", 60): "removing a client removes a participant",
    ("all", "add-remove", "plain", "discrete-shares", 0.5, "sum", 12): "in 30 shares",
    ("poisson", "zero-out", "plain", "gaussian-shares", None, "sum", 12): "secret cohort size",
    ("poisson", "unset", "plain", "gaussian", 0.5, "uploads", 12): "every upload is",
}


@pytest.mark.parametrize(("combination", "words"), REFUSED.items(), ids=lambda one: "-".join(map(str, one)))
def test_what_would_tell_is_refused_with_what_to_change(combination, words):
    refused((ConfigError, AccountingError), words, lambda: promise_of(configured(*combination), 40))


def test_two_clients_with_one_share_of_noise_are_refused_under_add_remove():
    """One share is no reason that the mechanism would refuse for; the number of participants is."""
    config = config_with(
        "federation.sampling=all", "federation.clients=2", "federation.cohort=2", "privacy.adjacency=add-remove",
        "privacy.noise=discrete-gaussian", "privacy.placement=clients", "aggregation.tolerance=0.5",
        "privacy.delta=0.1",
    )  # fmt: skip
    refused(ConfigError, "share of noise", promise_of, config, 40)


def test_secure_sums_of_all_clients_are_zero_out_by_default():
    """The same sensitivity, so the same epsilon, as the add-remove of a plain sum."""
    plain = accepted(("all", "unset", "plain", "gaussian", None, "sum", 12))[1].privacy_target.mechanism
    masked = accepted(("all", "unset", "masked", "gaussian", None, "sum", 12))[1].privacy_target.mechanism
    assert (plain.adjacency.value, masked.adjacency.value) == ("add-remove", "zero-out")
    assert masked.adjacency.sensitivity_in_clips == plain.adjacency.sensitivity_in_clips


# Rounds that run


def one_round(experiment, cohort, number=0):
    book = Book()
    state = replace(experiment.start, round=number)
    after, observed = watched_round(
        state, experiment.method, seeds=experiment.seeds, ledger=book, cohort=np.array(cohort, dtype=int)
    )
    return after, observed, book.releases


NEVER_END = {
    "gaussian": (),
    "gaussian-fixed": ("federation.sampling=fixed",),
    "gaussian-all": ("federation.sampling=all",),
    "adaptive": ("privacy.adaptive.quantile=0.5",),
    "discrete": ("privacy.noise=discrete-gaussian",),
    "coins": ("method.name=fedpm", "mask.edge=0.1"),
    "randk": ("method.name=fed-smp-randk", "method.keep=0.2"),
    "qsgd-decoded": ("method.name=qsgd",),
}


@pytest.mark.slow_but_one_in(13)
@pytest.mark.parametrize("name", NEVER_END)
@pytest.mark.parametrize("cohort", [0, 1, 12, 60])
@pytest.mark.parametrize("dropout", [0.0, 0.999999])
def test_a_plain_sum_is_released_and_charged_alike_whoever_came(name, cohort, dropout):
    """Where nobody is drawn or nobody arrives, too: noise alone; and what is published does not differ."""
    without = ["privacy"] if name == "coins" else []
    clip = ("privacy.clip_norm=0.5",) if name == "coins" else ()
    lost = (f"aggregation.dropout={dropout}", "aggregation.dropout_at=upload") if dropout else ()
    experiment = build(config_with(*NEVER_END[name], *clip, *lost, "privacy.delta=1e-3", without=without))
    cohort = min(cohort, experiment.config.cohort_cap or 60)
    after, observed, entries = one_round(experiment, range(cohort))
    _, _, others = one_round(experiment, range(10))
    assert observed.aborted is None
    assert observed.arrived == (0 if dropout else cohort)
    assert not torch.equal(after.broadcast, experiment.start.broadcast)
    assert [one.to_dict() for one in entries] == [one.to_dict() for one in others]


SECURE = {
    "gaussian": ("aggregation.kind=masked",),
    "discrete": ("aggregation.kind=masked", "privacy.noise=discrete-gaussian"),
    "shares": ("privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out"),
    "masked-shares": (
        "aggregation.kind=masked", "privacy.noise=skellam", "privacy.placement=clients", "privacy.adjacency=zero-out",
    ),
}  # fmt: skip


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("name", SECURE)
def test_a_sum_that_may_end_says_the_same_of_every_cohort(name):
    """All cohorts from no client to as many as the cap: the same number asked, one ledger line for each outcome.
    Dropouts are independent values of the participants, so the probability of each outcome follows from the
    number asked: tests/dpfed/aggregation/test_dropouts.py."""
    lost = (
        "aggregation.dropout=0.3",
        "aggregation.tolerance=0.25" if "shares" in name else "aggregation.threshold=0.7",
    )
    experiment = build(config_with(*SECURE[name], *lost))
    experiment = replace(experiment, method=with_updates(experiment, random_updates(experiment)))
    seen = {}
    for round in range(6):
        for cohort in ([], [3], list(range(12)), list(range(experiment.config.cohort_cap))):
            _, observed, entries = one_round(experiment, cohort, round)
            said = (observed.participants, *(str(replace(one, round=0).to_dict()) for one in entries))
            seen.setdefault(observed.aborted is None, set()).add(said)
    assert [len(said) for said in seen.values()] == [1, 1]  # some end, some do not


def test_counts_stay_in_the_diagnostics(tmp_path):
    """Ledger, metrics and summary of a run whose rounds end now and then, but for what is charged by what arrives."""
    config = config_with(
        "aggregation.kind=masked", "aggregation.dropout=0.35", "federation.rounds=12", "aggregation.threshold=0.7",
        "privacy.accountant=rdp",
    )  # fmt: skip
    outcome = federation.run(build(config), tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    ended = [entry for entry in ledger.entries if isinstance(entry, Aborted)]
    assert 0 < len(ended) < 12
    assert {entry.reason for entry in ended} == {line["aborted"] for line in outcome.metrics if "aborted" in line}
    assert {entry.reason for entry in ended} == {NO_RESULT}
    assert not any(character.isdigit() for character in NO_RESULT)
    assert len({str(replace(one, round=0)) for one in ledger.releases}) == 1
    diagnostics = (tmp_path / "run" / "diagnostics.jsonl").read_text()
    assert "clients answered" in diagnostics


@pytest.mark.slow
def test_only_charges_by_what_arrived_say_how_many_did():
    shares = ("federation.sampling=fixed", "privacy.placement=clients", "aggregation.tolerance=0.5")
    for noise, key in (("gaussian", "shares"), ("discrete-gaussian", "uploads")):
        for charged in ("sized", "charged"):
            settings = (f"privacy.noise={noise}", f"privacy.missing_shares={charged}", "aggregation.lost.upload=2")
            _, observed, entries = one_round(build(config_with(*shares, *settings)), range(12))
            assert observed.arrived == 10
            said = entries[0].detail.get(key)
            assert said == (10 if charged == "charged" else {"shares": 6}.get(key))


# Overfull secure sums


@pytest.mark.parametrize("noise", ["gaussian", "discrete", "discrete-shares"])
@pytest.mark.parametrize("kind", ["masked", "protocol"])
def test_a_secure_sum_under_poisson_sampling_is_charged_with_its_cap(noise, kind):
    config, promise = accepted(("poisson", "zero-out", kind, noise, None, "sum", 12))
    cap = config.cohort_cap
    assert sampling_of(promise.privacy_target.mechanism).to_dict() == {
        "name": "capped-poisson", "probability": 0.2, "cap": cap, "clients": 60,
    }  # fmt: skip
    assert cap / 60 * binom.sf(cap, 60, 12 / 60) <= 1e-4 * 1e-3
    assert cap == promise.fill < 60
    assert overflow(promise.privacy_target.mechanism) == 0
    release = promise.release(clip_norm=1.0, number=0, uploads=promise.fill)
    assert release.mechanism == promise.privacy_target.mechanism


def test_a_plain_sum_has_no_cap():
    config, promise = accepted(("poisson", "unset", "plain", "gaussian", None, "sum", 12))
    assert config.cohort_cap is promise.fill is None
    assert overflow(promise.privacy_target.mechanism) == 0
    assert "overflow" not in promise.privacy_target.mechanism.to_dict()["mechanism"]


def test_default_caps_are_the_smallest_that_delta_allows():
    for clients, cohort in ((60, 12), (6000, 100), (10, 1)):
        cap = default_cap(cohort, clients, delta=1e-3)
        lost = [k / clients * binom.sf(k, clients, cohort / clients) for k in (cap, cap - 1)]
        assert lost[0] <= 1e-7 < lost[1]
        most = rarely_exceeded(cohort, clients, delta=1e-3)
        assert binom.sf(most, clients, cohort / clients) <= 1e-8 < binom.sf(most - 1, clients, cohort / clients)
