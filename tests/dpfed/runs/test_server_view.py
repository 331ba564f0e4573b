"""What whoever knows the cohorts may learn: the rounds of one client, without their sampling."""

import numpy as np
import pytest
from refusals import refused
from scipy.stats import binom

from accounting.compose import accountant
from accounting.errors import LedgerError
from accounting.gaussian import privacy_profile, smallest_epsilon
from accounting.mechanisms import Composed
from dpfed.audit.run import audit_run
from dpfed.participation.sampling import fill_cohort
from dpfed.runs import loop as federation
from dpfed.runs.book import LedgerBook
from dpfed.runs.experiment import build
from dpfed.runs.protection import epsilon_against_hostile_clients, epsilon_against_server

SHARES = ("privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out")
MASKED = ("aggregation.kind=masked",)
KEPT = "privacy.adjacency=zero-out"


def test_it_is_that_of_the_unsampled_rounds(tiny_config):
    """Discrete noise is nearly the continuous one: the closed form of the accounted shares, within 1%."""
    experiment = build(tiny_config(*SHARES, *MASKED, "aggregation.dropout=0.1"))
    view = epsilon_against_server(experiment.config, experiment.privacy_target, 3)
    assert view.rounds == 3
    inside = experiment.privacy_target.mechanism.mechanism
    mu = inside.l2_bound / (inside.share_variance * inside.shares) ** 0.5
    assert view.epsilon == pytest.approx(smallest_epsilon(experiment.privacy_target.delta, mu=mu * 3**0.5), rel=1e-2)
    assert view.epsilon > accountant.epsilon(experiment.privacy_target.mechanism, delta=experiment.privacy_target.delta)


def test_hardly_ever_is_a_client_drawn_more_often(tiny_config):
    """300 simulated runs: more than the bound in at most 3 expected; 12 or more would be chance 1e-4."""
    experiment = build(tiny_config(*SHARES, *MASKED, "federation.rounds=100", "privacy.delta=0.011"))
    most = epsilon_against_server(experiment.config, experiment.privacy_target, 100).rounds
    drawn = np.random.default_rng(3).random((300, 100, 60)) < 0.2
    assert np.count_nonzero(drawn.sum(axis=1).max(axis=1) > most) < 12
    assert np.count_nonzero(drawn.sum(axis=1).max(axis=1) > most - 4) > 12  # and it is no idle bound


def test_the_client_that_is_drawn_more_often_is_paid_for_by_delta(tiny_config):
    """The whole law, over all numbers of rounds that a client may be drawn in: its delta is within the run's."""
    rounds = 100
    hostile = ((*MASKED, KEPT), epsilon_against_hostile_clients)
    for settings, view_of in (((*SHARES, *MASKED), epsilon_against_server), hostile):
        experiment = build(tiny_config(*settings, f"federation.rounds={rounds}"))
        view = view_of(experiment.config, experiment.privacy_target, rounds)
        delta = experiment.privacy_target.delta
        inside = experiment.privacy_target.mechanism.mechanism
        mu = inside.l2_bound / (inside.share_variance * inside.shares) ** 0.5
        drawn = np.arange(1, rounds + 1)
        each = [float(privacy_profile(view.epsilon, mu=mu * times**0.5)) for times in drawn]
        assert float(binom.pmf(drawn, rounds, 0.2) @ each) <= delta
        more = float(binom.sf(view.rounds, rounds, 0.2))
        assert 0 < more <= delta / 50
        assert view.charged == pytest.approx(more, rel=1e-6)
        assert float(binom.sf(view.rounds - 1, rounds, 0.2)) > delta / 50  # and it is no idle bound


@pytest.mark.parametrize("present", [True, False])
def test_the_other_uploads_of_a_filled_up_sum_show_an_added_client(tiny_config, present):
    """Their number alone reveals the client, so no epsilon is stated against hostile clients under add-remove."""
    method, clients = build(tiny_config(*MASKED)).method, 60 if present else 59
    filled = (fill_cohort(np.arange(3), method.fill, clients, method.randomness, number) for number in range(40))
    assert any(np.count_nonzero(ids != 59) < method.fill for ids in filled) is present


@pytest.mark.slow
def test_clients_that_show_who_took_part_cost_the_amplification_and_no_more(tiny_config):
    """All others send residues from which the model shows the cohort: then delta is the mean over the rounds that a
    client was drawn in. At the sampled epsilon it is above what is claimed, at the hostile clients' below."""
    experiment = build(tiny_config(*MASKED, "federation.sampling=fixed", "federation.rounds=30"))
    privacy_target, inside = experiment.privacy_target, experiment.privacy_target.mechanism.mechanism
    mu = 2 * inside.l2_bound / inside.variance**0.5  # replace-one

    def shown(epsilon):
        drawn = np.arange(1, 31)
        return float(binom.pmf(drawn, 30, 0.2) @ [float(privacy_profile(epsilon, mu=mu * t**0.5)) for t in drawn])

    view = epsilon_against_hostile_clients(experiment.config, experiment.privacy_target, 30)
    assert shown(view.epsilon) <= privacy_target.delta
    sampled = accountant.epsilon(Composed(parts=((privacy_target.mechanism, 30),)), delta=privacy_target.delta)
    assert shown(sampled) > 1.5 * privacy_target.delta


@pytest.mark.parametrize("spare", [0, 2])
def test_server_and_hostile_clients_have_the_same_epsilon_under_sampling_all(tiny_config, tmp_path, spare):
    settings = (*MASKED, "federation.sampling=all", f"run.spare_rounds={spare}")
    summary = federation.run(build(tiny_config(*settings)), tmp_path / "run").summary
    assert summary["hostile_clients_epsilon"] == pytest.approx(summary["epsilon"], rel=1e-9)
    assert summary["hostile_clients_epsilon_rounds"] == 3 + spare


@pytest.mark.parametrize(("noise", "key"), [(SHARES, "server_epsilon"), ((), "hostile_clients_epsilon")])
def test_a_prolonged_run_states_nothing_that_its_budget_does_not_bound(tiny_config, tmp_path, noise, key):
    """It stated the releases so far, less than its epsilon, which is the budget: its length may depend on results."""
    settings = (*noise, *MASKED, KEPT, "privacy.epsilon=20", "privacy.noise_multiplier=3")
    first = federation.run(build(tiny_config(*settings, "federation.rounds=1")), tmp_path / "run").summary
    longer = build(tiny_config(*settings, "federation.rounds=2"))
    then = federation.run(longer, tmp_path / "run", resume=True).summary
    assert first[key] > first["epsilon"]
    assert (then["epsilon"], then[key], then[f"{key}_rounds"]) == (20.0, None, None)


def test_a_sum_that_is_opened_and_not_charged_counts_against_the_server(tiny_config, tmp_path, monkeypatch):
    """The disk is full when round 2 is charged: the server has seen its sum, and sees that of the repeated round."""
    settings, record = (*SHARES, *MASKED, "run.randomness=secure", "federation.sampling=all"), LedgerBook.record

    def full(self, entry):
        if entry.round == 1:
            raise LedgerError("No space left on device")
        record(self, entry)

    with monkeypatch.context() as disk:
        disk.setattr(LedgerBook, "record", full)
        refused(LedgerError, "No space", federation.run, build(tiny_config(*settings)), tmp_path / "run")
    experiment = build(tiny_config(*settings))
    summary = federation.run(experiment, tmp_path / "run", resume=True).summary
    assert summary["server_epsilon_rounds"] == 4
    four = Composed(parts=((experiment.privacy_target.mechanism, 4),))
    assert summary["server_epsilon"] == accountant.epsilon(four, delta=summary["delta"]) > summary["epsilon"]
    assert not [one for one in audit_run(tmp_path / "run", confidence=1 - 1e-6).checks if one.passed is False]


def test_everybody_takes_part_in_every_round_under_sampling_all(tiny_config):
    experiment = build(tiny_config(*SHARES, *MASKED, "federation.sampling=all"))
    assert epsilon_against_server(experiment.config, experiment.privacy_target, 7).rounds == 7


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    "settings",
    [SHARES, (*MASKED, KEPT), (*MASKED, KEPT, "privacy.noise=skellam"), MASKED, ("method.name=dp-fedavg",)],
    ids=["trusted-sum", "discrete-gaussian-of-the-server", "skellam-of-the-server", "add-remove", "plain"],
)
def test_nothing_is_stated_where_the_server_sees_more(tiny_config, tmp_path, settings):
    summary = federation.run(build(tiny_config(*settings)), tmp_path / "run").summary
    assert summary["server_epsilon"] is None
    assert (summary["hostile_clients_epsilon"] is None) == (not {*MASKED, KEPT} <= {*settings})
    experiment = build(tiny_config(*SHARES, *MASKED))
    assert epsilon_against_server(experiment.config, experiment.privacy_target, 0) is None
    assert epsilon_against_hostile_clients(experiment.config, experiment.privacy_target, 3) is None
