"""Faults planted in the package's own code, present while the audit runs: charges, divisors, counts, padding, maps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tomli_w
from refusals import refused

from accounting.errors import LedgerError
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import PoissonSampling, sampling_of, subsample, unsampled
from dpfed.api.audit import audits
from dpfed.audit.round import noise_checks
from dpfed.audit.round.bound_checks import floor_check, samples_check, window_check
from dpfed.audit.round.method_setting import _sampler_checks, audit_upload, audited_configuration
from dpfed.audit.round.neighbours import gap_of_pair
from dpfed.audit.round.noise_checks import count_check, single_rounds_check
from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.audit.round.round_audit import claim_of_round, pairs_for_claim
from dpfed.audit.run import audit_run
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.round import Method, OpenRound
from dpfed.runs.experiment import build
from dpfed.runs.loop import run
from dpfed.server.rules import AdaptiveRule, Averaging
from dpfed.stages import clip
from dpfed.stages.clip import AdaptiveClip, Clip
from dpfed.stages.project import Project

from ...rounds import configured
from . import run_folders
from .fault_layers import case, few_cohorts
from .run_faults import STEP

ADAPTIVE = ("privacy.adaptive.quantile=0.5", "privacy.adaptive.rate=0.2", "privacy.adaptive.count_noise_std=2.0")
COINS = ("privacy.clip_norm=0.3", "privacy.epsilon=100.0")  # a clip norm as it is: calibrating one takes seconds
DRAWN = GaussianNoise._release_with


def with_half_the_sampling(self, part):
    charged = DRAWN(self, part)
    return subsample(unsampled(charged), PoissonSampling(probability=sampling_of(charged).probability / 2))


def test_a_round_divided_by_its_uploads_shows_their_number(monkeypatch):
    one = case("dp-fedavg").one_round
    claim, layout = claim_of_round(one, 1e-5), case("dp-fedavg").layout
    pair = pairs_for_claim(one, claim, layout)[0]
    assert gap_of_pair(one, claim, pair).follows_rule
    monkeypatch.setattr(Method, "sum_divisor", lambda self, counted: float(len(counted) or 1))
    assert not gap_of_pair(one, claim, pair).follows_rule


@pytest.mark.parametrize("planted", [False, True])
@few_cohorts
def test_a_charge_for_another_sampling_is_found(monkeypatch, planted):
    if planted:
        monkeypatch.setattr(GaussianNoise, "_release_with", with_half_the_sampling)
    experiment = build(audited_configuration("dp-fedavg", ["federation.sampling=poisson"]))
    assert _sampler_checks("dp-fedavg", experiment, 0).passed is not planted


SOUND_CLIP = clip.clip_rows


def counts_zeros(rows, norm):
    clipped = SOUND_CLIP(rows, norm)
    return replace(clipped, inside=clipped.inside | (clipped.lengths == 0))


def counts_twice(self, state, now):
    return replace(
        state, clip_norm=self.adaptive.next_norm(now.clip_norm, now.tally.inside - now.tally.outside, now.number)
    )


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_a_client_that_moves_the_count_too_far_is_found(monkeypatch, adjacency):
    monkeypatch.setattr(noise_checks, "_COUNTS", 30)  # rounds for the noise of the count, which is sound
    one = case("dp-fedavg", *ADAPTIVE, f"privacy.adjacency={adjacency}").one_round
    claim = claim_of_round(one, 1e-5)
    fresh = one.with_randomness(RandomnessByCallOrder(0))
    assert count_check(fresh, claim).passed
    with monkeypatch.context() as planted:
        planted.setattr(Clip, "next_state", counts_twice)
        assert not count_check(fresh, claim).passed
    monkeypatch.setattr(clip, "clip_rows", counts_zeros)
    assert count_check(fresh, claim).passed is (adjacency != "zero-out")


FRESH = GaussianNoise._fresh_noise


def test_noise_that_depends_on_the_number_of_uploads_is_found(monkeypatch):
    one = case("dp-fedavg").one_round
    claim = claim_of_round(one, 1e-5)
    assert single_rounds_check(one, claim, (0,)).passed
    monkeypatch.setattr(
        GaussianNoise, "_fresh_noise", lambda self, like, number, now: FRESH(self, like, number, now) * now.uploads / 4
    )
    assert not single_rounds_check(one, claim, (0,)).passed


def follows(one):
    claim = claim_of_round(one, 1e-5)
    pair = pairs_for_claim(one, claim, case("dp-fedavg").layout)[0]
    return gap_of_pair(one.with_randomness(RandomnessByCallOrder(0)), claim, pair).follows_rule


@pytest.mark.parametrize(
    ("method", "settings", "stage", "rule"),
    [("dp-fedavg", ["server.rule=adam"], GaussianNoise, AdaptiveRule), ("fedpm", COINS, PrivateCoins, Averaging)],
)
def test_a_sum_that_goes_past_the_noise_into_a_rule_or_a_decoding_is_found(monkeypatch, method, settings, stage, rule):
    one = case(method, *settings).one_round
    assert follows(one)
    kept, client, server, step = [0.0], stage.client, stage.server, rule.step

    def remembers(self, rows, ids, now):
        kept[0] = rows.sum(dim=0)
        return client(self, rows, ids, now)

    monkeypatch.setattr(stage, "client", remembers)
    with monkeypatch.context() as decoding:
        decoding.setattr(stage, "server", lambda self, total, now: server(self, total, now) + 0.1 * kept[0])
        assert follows(one) is (method == "dp-fedavg")  # other rows of the audit find that one
    monkeypatch.setattr(
        rule, "step", lambda self, state, move, *, count: step(self, state, move + kept[0], count=count)
    )
    assert not follows(one)


def test_a_clip_norm_that_follows_the_rows_without_a_charge_is_found(monkeypatch):
    inside = "next_state", lambda self, state, now: replace(state, clip_norm=3.0 + now.tally.inside)
    monkeypatch.setattr(Clip, *inside)
    assert not follows(case("dp-fedavg").one_round)


DRAWS = PrivateCoins._draw_samples


def test_bernoulli_uploads_that_move_too_far_or_are_not_padded(monkeypatch):
    one = case("fedpm", *COINS, "model.hidden=[8]").one_round
    claim = claim_of_round(one, 1e-5)
    fresh = one.with_randomness(RandomnessByCallOrder(0))
    assert floor_check(fresh, claim) is None  # probabilities of 1/2 come nowhere near it
    assert samples_check(fresh, claim).passed
    assert window_check(fresh, claim).passed
    monkeypatch.setattr(
        PrivateCoins,
        "_draw_samples",
        lambda self, reference, row, *of: DRAWS(self, reference, None if row is None else 1.25 * row, *of),
    )
    assert not samples_check(fresh, claim).passed
    monkeypatch.setattr(PrivateCoins, "server", lambda self, total, now: total - now.uploads * now.reference)
    assert not window_check(fresh, claim).passed


@pytest.mark.slow
def test_a_round_that_loses_uploads_is_audited_with_the_fewest():
    settings = ["aggregation.kind=masked", "aggregation.dropout=0.1", "aggregation.tolerance=0.4"]
    settings += ["privacy.noise=skellam", "privacy.placement=clients"]
    assert audit_upload("dp-fedavg", settings=settings, draws=2_000).verdict == "pass"


def failed(folder):
    return {one.name for one in audit_run(folder).checks if one.passed is False}


ADD, SERVER, NOISE = OpenRound.add_updates, Project.server, GaussianNoise.server


def adds_the_first_twice(self, rows, ids, **of):
    again = rows[:1].clone()
    ADD(self, rows, ids, **of)
    ADD(self, again, ids[:1], **of)


def test_a_client_that_is_added_twice_is_found_in_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(OpenRound, "add_updates", adds_the_first_twice)
    assert failed(run_folders.run(tmp_path)) == {"uploads are as accounted"}


def test_a_map_that_adds_a_part_of_the_noiseless_sum_is_found_in_a_run(tmp_path, monkeypatch):
    kept = []

    def remembers(self, total, now):
        kept[:] = [total.clone()]
        return NOISE(self, total, now)

    monkeypatch.setattr(GaussianNoise, "server", remembers)
    monkeypatch.setattr(Project, "server", lambda self, total, now: SERVER(self, total, now) + 0.05 * kept[0])
    assert failed(run_folders.run(tmp_path)) == {STEP}


def test_a_charge_for_another_sampling_is_found_in_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(GaussianNoise, "_release_with", with_half_the_sampling)
    assert failed(run_folders.run(tmp_path)) == {"ledger follows the configuration"}


def test_a_ledger_takes_no_charge_that_forgets_the_count(tmp_path, monkeypatch):
    monkeypatch.setattr(AdaptiveClip, "update_noise_multiplier", lambda self, z: z)
    monkeypatch.setattr(GaussianNoise, "_release_with", lambda self, part: subsample(self.noise, self.sampler.law))
    refused(
        LedgerError,
        "noise_std=2.0 and a count with noise, together",
        lambda: run_folders.run(tmp_path, *ADAPTIVE),
    )


@few_cohorts
def test_the_audit_of_a_configuration_keeps_its_options_and_names_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(noise_checks, "_COUNTS", 30)
    config = configured("privacy.adaptive.quantile=0.5", "federation.sampling=fixed", "model.hidden=[2]")
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config.to_dict()))
    (found,) = audits(tmp_path / "config.toml", ["draws=2000"], kinds=("upload",))
    assert "count" in {one.name for one in found.checks}
    (lacking,) = [one for one in found.not_tested if "lacks" in one]
    assert "federation.sampling" in lacking
    assert "privacy.adaptive" not in lacking


def test_another_epsilon_of_the_project_is_found(tmp_path):
    project = tmp_path / "project.jsonl"
    ProjectLedger.create(project, clients=24, epsilon=50.0, delta=1e-3)
    run(build(configured("federation.rounds=1")), tmp_path / "run", project=ProjectLedger.open(project))
    assert "project_epsilon" not in audit_run(tmp_path / "run", project=project).not_checked
    for number, edit in enumerate(({"project_epsilon": 5.0}, {"project_delta": 1e-6})):
        folder = run_folders.copied(tmp_path / "run", tmp_path / str(number))
        run_folders.change_summary(folder, **edit)
        found = audit_run(folder, project=project)
        assert {one.name for one in found.checks if one.passed is False} == {"project was charged alike"}
