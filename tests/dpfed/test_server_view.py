"""What a server that knows the cohorts may learn: the rounds of one client, without their sampling."""

import numpy as np
import pytest

from accounting import accountant
from accounting.gaussian import smallest_epsilon
from dpfed import federation
from dpfed.build import build
from dpfed.server_view import server_view

SHARES = ("privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out")
MASKED = ("aggregation.kind=masked",)


def test_it_is_that_of_the_unsampled_rounds(tiny_config):
    """Discrete noise is nearly the continuous one: the closed form of the accounted shares, within 1%."""
    experiment = build(tiny_config(*SHARES, *MASKED, "aggregation.dropout=0.1"))
    view = server_view(experiment.config, experiment.goal, 3)
    assert view.rounds == 3
    inside = experiment.goal.mechanism.mechanism
    mu = inside.l2_bound / (inside.share_variance * inside.shares) ** 0.5
    assert view.epsilon == pytest.approx(smallest_epsilon(experiment.goal.delta, mu=mu * 3**0.5), rel=1e-2)
    assert view.epsilon > accountant.epsilon(experiment.goal.mechanism, delta=experiment.goal.delta)


def test_hardly_ever_is_a_client_drawn_more_often(tiny_config):
    """300 simulated runs: more than the bound in at most 3 expected; 12 or more would be chance 1e-4."""
    experiment = build(tiny_config(*SHARES, *MASKED, "federation.rounds=100"))
    most = server_view(experiment.config, experiment.goal, 100).rounds
    drawn = np.random.default_rng(3).random((300, 100, 60)) < 0.2
    assert np.count_nonzero(drawn.sum(axis=1).max(axis=1) > most) < 12
    assert np.count_nonzero(drawn.sum(axis=1).max(axis=1) > most - 4) > 12  # and it is no idle bound


def test_everybody_takes_part_in_every_round_under_sampling_all(tiny_config):
    experiment = build(tiny_config(*SHARES, *MASKED, "federation.sampling=all"))
    assert server_view(experiment.config, experiment.goal, 7).rounds == 7


@pytest.mark.parametrize(
    "settings",
    [SHARES, MASKED, (*MASKED, "privacy.noise=skellam"), ("method.name=dp-fedavg",)],
    ids=["trusted-sum", "gaussian-of-the-server", "skellam-of-the-server", "plain"],
)
def test_nothing_is_stated_where_the_server_sees_more(tiny_config, tmp_path, settings):
    summary = federation.run(build(tiny_config(*settings)), tmp_path / "run").summary
    assert summary["server_epsilon"] is None
    experiment = build(tiny_config(*SHARES, *MASKED))
    assert server_view(experiment.config, experiment.goal, 0) is None
