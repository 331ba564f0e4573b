"""Integer noise in a round: the noise that is in the sum is the noise that is charged, whoever is lost."""

import math
from dataclasses import replace

import pytest
import torch
from refusals import refused

from accounting import Ledger, Subsampled
from dpfed.aggregation.sums import least_uploads
from dpfed.errors import ConfigError
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.methods.choices import tolerated_fraction
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import Book, configured, random_updates, watched_round, with_after, with_updates
from ..announced import Recorder, announced

pytestmark = pytest.mark.slow_but_one_in(3)

SHARES = ("privacy.placement=clients", "privacy.adjacency=zero-out")
FIXED = ("federation.sampling=fixed", *SHARES)


def released(experiment, updates=None, rounds=1):
    """What the rounds' sums were, in integer steps before they are scaled back, and what the ledger was told."""
    book, state = Book(), experiment.start
    method, seen = experiment.method if updates is None else with_updates(experiment, updates), Recorder()
    kind = GaussianNoise if method.stages.find(Integers) is None else Integers
    method = replace(method, stages=with_after(method.stages, kind, seen))
    for _ in range(rounds):
        state, _ = watched_round(state, method, seeds=experiment.seeds, ledger=book)
    return seen.totals, book.releases


class ThreeQuarters:
    """Shares of 9/12 of their variance."""

    def __init__(self, stage):
        noise = replace(stage.noise, share_variance=float(int(stage.noise.share_variance) * 9 // 12))
        self._short = replace(stage, noise=noise)

    def client(self, rows, ids, now):
        return self._short.client(rows, ids, now)

    def server(self, total, now):
        return total


def nothing(experiment):
    return torch.zeros(experiment.config.federation.clients, experiment.model.size)


def inside(release):
    return release.mechanism.mechanism if isinstance(release.mechanism, Subsampled) else release.mechanism


def variance_is_off(sums, variances, bound=6.0):
    """Whether the integers' variance is `bound` standard errors away from what it should be; 2e-9 if it is right."""
    squares = sum(float((s.double() ** 2).sum()) / v for s, v in zip(sums, variances, strict=True))
    count = sum(len(s) for s in sums)
    return abs(squares / count - 1) > bound * math.sqrt(2 / count)


@pytest.mark.parametrize("law", ["discrete-gaussian", "skellam"])
@pytest.mark.parametrize("lost", [(), ("aggregation.lost.upload=2", "aggregation.lost.unmask=1")])
def test_shares_sized_for_losses_leave_at_least_the_noise_that_is_charged(tiny_config, law, lost):
    experiment = build(tiny_config(f"privacy.noise={law}", *FIXED, *lost))
    sums, releases = released(experiment, nothing(experiment), rounds=8)
    arrived = 10 if lost else 12
    charged = [inside(one) for one in releases]
    assert {one.shares for one in charged} == {9 if lost else 12}  # all three losses might have been before the upload
    drawn = [arrived * one.share_variance for one in charged]
    assert not variance_is_off(sums, drawn)
    assert all(one.variance <= have for one, have in zip(charged, drawn, strict=True))


@pytest.mark.parametrize(("lost", "clients"), [(1, 49), (15, 22), (3, 12)])
def test_as_many_uploads_may_be_missing_as_drop_out(lost, clients):
    """1/49 of 49 is below 1 in floating point: no round of a run that loses one upload had a result."""
    cohort = {"clients": clients, "cohort": clients, "sampling": "all"}
    config = configured(f"aggregation.lost.upload={lost}", federation=cohort, privacy={"placement": "clients"})
    assert least_uploads(clients, tolerated_fraction(config)) == clients - lost


def test_noise_that_is_too_small_is_seen(tiny_config):
    """The planted fault of the test above: shares of 1/(number who should come) where fewer come."""
    experiment = build(tiny_config("privacy.noise=discrete-gaussian", *FIXED, "aggregation.lost.upload=3"))
    stages = experiment.method.stages.replace_stage(IntegerNoise, ThreeQuarters)
    faulty = replace(experiment, method=replace(experiment.method, stages=stages))
    sums, _ = released(faulty, nothing(experiment), rounds=8)
    charged = inside(experiment.method.stages.private.release(announced(experiment, uploads=9)))
    assert variance_is_off(sums, [charged.variance] * 8)


def test_what_arrived_is_charged(tiny_config):
    settings = (
        "privacy.missing_shares=charged",
        "aggregation.dropout=0.3",
        "federation.rounds=6",
        "aggregation.tolerance=0.6",
    )
    experiment = build(tiny_config("privacy.noise=skellam", *FIXED, *settings))
    sums, releases = released(experiment, nothing(experiment), rounds=6)
    shares = [inside(one).shares for one in releases]
    assert len(set(shares)) > 1
    assert not variance_is_off(sums, [inside(one).variance for one in releases])
    whole = 12 * inside(releases[0]).share_variance
    assert experiment.privacy_target.noise_multiplier == pytest.approx(
        math.sqrt(whole) / experiment.privacy_target.integer_rows.scale, rel=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("law", ["gaussian", "discrete-gaussian"])
def test_a_run_that_charges_what_arrived_stays_within_its_budget(tiny_config, tmp_path, law):
    settings = (
        f"privacy.noise={law}", "privacy.missing_shares=charged", "aggregation.dropout=0.2", "federation.rounds=8",
        "privacy.epsilon=8.0", "federation.sampling=fixed", "privacy.placement=clients",
    )  # fmt: skip
    outcome = federation.run(build(tiny_config(*settings)), tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert len({one.mechanism for one in ledger.releases}) > 1
    assert outcome.summary["epsilon"] <= 8.0
    assert outcome.summary["epsilon"] == ledger.guarantee(outcome.summary["delta"]).epsilon
    running = [line["epsilon"] for line in outcome.metrics]
    assert running == sorted(running)
    assert running[-1] == pytest.approx(outcome.summary["epsilon"], rel=1e-3)


@pytest.mark.parametrize("law", ["gaussian", "discrete-gaussian"])
def test_a_sum_with_less_noise_than_is_charged_is_not_released(tiny_config, law):
    experiment = build(
        tiny_config(f"privacy.noise={law}", *FIXED, "aggregation.tolerance=0.1", "aggregation.lost.upload=2")
    )
    _, observed = watched_round(experiment.start, experiment.method, seeds=experiment.seeds, ledger=Book())
    assert "10 of 12" in observed.aborted


def test_gaussian_shares_sized_for_losses(tiny_config):
    """As with integers, in real numbers: 9 of 12 shares are the whole noise."""
    experiment = build(tiny_config(*FIXED, "aggregation.lost.upload=3"))
    sums, releases = released(experiment, nothing(experiment), rounds=8)
    assert not variance_is_off(sums, [one.noise_std**2 for one in releases])
    assert {inside(one).noise_multiplier for one in releases} == {2.0}


def test_poisson_cohorts_leave_the_number_of_shares_alone(tiny_config):
    experiment = build(tiny_config("privacy.noise=discrete-gaussian", *SHARES, "privacy.slots=30"))
    sums, releases = released(experiment, nothing(experiment), rounds=8)
    assert {inside(one).shares for one in releases} == {30}
    assert not variance_is_off(sums, [inside(one).variance for one in releases])
    assert {one.mechanism.sampling.cap for one in releases} == {30}


@pytest.mark.parametrize("rotation", ["true", "false"])
@pytest.mark.parametrize(
    "method", [("dp-fedavg",), ("fed-smp-randk", "method.keep=0.3"), ("fedscalar", "method.shared=true")]
)
def test_one_client_moves_the_sum_of_integers_by_at_most_the_bound_that_is_charged(tiny_config, method, rotation):
    """Finite swaps over the real path, noise off: zero-out within l2_bound, replacement within twice that."""
    name, *settings = method
    experiment = build(
        tiny_config(
            "privacy.noise=discrete-gaussian",
            *FIXED,
            f"method.name={name}",
            *settings,
            f"aggregation.rotation={rotation}",
            "aggregation.steps=50",
        )
    )
    quiet = replace(
        experiment, method=replace(experiment.method, stages=experiment.method.stages.without(IntegerNoise))
    )
    _, releases = released(experiment)
    bound = inside(releases[0]).l2_bound
    client = int(experiment.method.sampler.sample(experiment.method.randomness, 0)[0])
    updates = random_updates(experiment, seed=1)
    worlds = {}
    for world, scale in (("nothing", 0.0), ("loud", 1e3), ("opposite", -1e3)):
        rows = updates.clone()
        rows[client] = scale * random_updates(experiment, seed=2)[0]
        worlds[world] = released(quiet, rows)[0][0].double()
    assert float((worlds["loud"] - worlds["nothing"]).norm()) <= bound
    assert float((worlds["loud"] - worlds["opposite"]).norm()) <= 2 * bound
    assert float((worlds["loud"] - worlds["opposite"]).norm()) > 0.8 * bound  # the clip binds: the test has power


def test_the_servers_noise_on_a_secure_sum_is_charged_with_the_bound_of_rounded_updates(tiny_config):
    """At few steps a rounded row may be much longer than the clip norm: the noise is as asked for, epsilon larger."""
    experiment = build(
        tiny_config(
            "aggregation.kind=masked",
            "aggregation.steps=10",
            "federation.sampling=all",
            "privacy.adjacency=zero-out",
            "federation.cohort=60",
        )
    )
    point = experiment.method.stages.find(Integers).fixed_point
    longest = math.sqrt(point.largest_squared_norm(1.0)) / point.steps_per_unit
    assert longest > 1.2
    book = Book()
    after, _ = watched_round(
        experiment.start, with_updates(experiment, nothing(experiment)), seeds=experiment.seeds, ledger=book
    )
    noise = 60 * (after.broadcast - experiment.start.broadcast).double()
    (release,) = book.releases
    assert release.noise_std == pytest.approx(2.0)
    assert 10 * longest <= inside(release).l2_bound < 10 * longest * 1.01  # room for floats in the clip norm
    assert inside(release).variance == (2.0 * 10) ** 2
    assert not variance_is_off([noise], [release.noise_std**2])


def test_secure_randomness_for_cohorts_rounding_and_noise(tiny_config, tmp_path):
    small = ("federation.clients=20", "federation.cohort=4", "federation.rounds=1")
    secure = ("run.randomness=secure", "aggregation.kind=protocol")
    config = tiny_config("privacy.noise=discrete-gaussian", *SHARES, *secure, *small)
    outcomes = [federation.run(build(config), tmp_path / name) for name in ("one", "two")]
    assert Ledger.read(tmp_path / "one" / "ledger.jsonl").header.randomness == "secure"
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] != weights[1]
    assert outcomes[0].summary["epsilon"] == outcomes[1].summary["epsilon"]
    assert outcomes[0].summary["randomness"] == "secure"


FIXED = ("privacy.placement=clients", "federation.sampling=fixed")
REFUSED = {
    (*FIXED, "federation.cohort=2", "aggregation.dropout=0.1"): "a round may have no noise",
    (*FIXED, "federation.cohort=10", "aggregation.dropout=0.7"): "a round may have no noise",
    (*FIXED, "privacy.noise=skellam", "federation.cohort=2", "aggregation.dropout=0.1"): "a round may have no noise",
    (
        "privacy.noise=skellam",
        "privacy.release=uploads",
    ): "'uploads' with privacy.noise='skellam': is for gaussian, coins",
    ("privacy.noise=skellam", "privacy.missing_shares=charged"): "is never missing",
    ("privacy.noise=skellam", "aggregation.tolerance=0.1"): "is never missing",
    ("privacy.missing_shares=charged",): "is never missing",
    ("privacy.noise=skellam", "privacy.placement=clients", "privacy.adjacency=add-remove"): "add-remove",
    ("privacy.placement=clients", "federation.sampling=all", "privacy.adjacency=add-remove"): "the noise by a share",
    ("privacy.noise=skellam", "privacy.adaptive.quantile=0.5"): "is for gaussian",
    ("privacy.noise=skellam", "method.name=qsgd"): "cannot be decoded from their sum",
    ("privacy.noise=skellam", "method.name=fedpm"): "Bernoulli samples",
    ("privacy.slots=20", "federation.sampling=fixed"): "federation.cohort_cap=20.*only 'poisson' draws",
    ("privacy.slots=20", "federation.cohort_cap=21"): "privacy.slots is the old name",
}


@pytest.mark.parametrize(
    ("settings", "complaint"), REFUSED.items(), ids=lambda one: one if isinstance(one, str) else ""
)
def test_what_has_no_account_is_refused(tiny_config, settings, complaint):
    refused((ConfigError, ValueError), complaint, lambda: build(tiny_config(*settings)))


LOSSES = (
    "aggregation.dropout=0.05",
    "aggregation.dropout=0.3",
    "aggregation.lost.upload=2",
    "aggregation.tolerance=0.98",
)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cohort", [2, 3, 10, 40])
@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
def test_the_fewest_uploads_of_a_released_sum_carry_the_charged_noise(tiny_config, noise, cohort, loss):
    """Or the setting is refused: in sums of 2 at dropout .05 all may be missing."""
    try:
        made = build(tiny_config(*FIXED, f"privacy.noise={noise}", f"federation.cohort={cohort}", loss))
    except ConfigError:
        assert cohort <= 3
        return
    private, tolerance = made.method.stages.private, made.method.aggregation.tolerance
    arrived = next(n for n in range(cohort + 1) if n and n >= cohort * (1 - tolerance) - 1e-9)
    shares = private._share_count if noise == "gaussian" else private.noise.shares
    assert shares <= arrived
