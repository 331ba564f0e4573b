"""The fewest clients of a secure sum: worked out from the configuration, checked by clients in process, too."""

import pytest

from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

TABLES = {
    "data": {"name": "digits", "train_samples": 200, "test_samples": 20},
    "model": {"name": "mlp", "hidden": [2]},
    "federation": {"clients": 100, "cohort": 20, "rounds": 1, "sampling": "fixed"},
    "local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10},
    "method": {"name": "dp-fedavg"},
    "aggregation": {"kind": "protocol"},
}
SHARES = (
    "privacy.clip_norm=1.0", "privacy.noise_multiplier=2.0", "privacy.accountant=rdp",
    "privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out",
)  # fmt: skip
OPEN = ("method.name=fedavg", "aggregation.clip_norm=1.0")


def built(*settings):
    return build(parse(override({name: dict(table) for name, table in TABLES.items()}, list(settings)), source="test"))


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        (SHARES, 20),  # no share may be missing
        ((*SHARES, "aggregation.tolerance=0.1"), 18),
        ((*SHARES, "aggregation.tolerance=0.6"), 12),  # the threshold asks for more
        ((*SHARES, "aggregation.tolerance=0.1", "federation.sampling=all"), 90),
        ((*SHARES, "aggregation.tolerance=0.1", "aggregation.least_participants=19"), 19),
        ((*SHARES, "privacy.missing_shares=charged", "aggregation.tolerance=0.25"), 15),
        ((*SHARES, "privacy.placement=server"), 12),
        (OPEN, 12),
        ((*OPEN, "aggregation.least_participants=2"), 2),
        ((*OPEN, "federation.sampling=poisson"), 2),
        ((*OPEN, "federation.sampling=poisson", "aggregation.least_participants=7"), 7),
    ],
)
def test_the_least_that_a_node_accepts(settings, least):
    assert built(*settings).method.aggregation.least_participants == least


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ((*SHARES, "aggregation.least_participants=19"), "from 20 .shares of noise are sized for 20 uploads. to 20"),
        ((*SHARES, "aggregation.tolerance=0.1", "aggregation.least_participants=21"), "must be from 18 .* to 20"),
        ((*OPEN, "aggregation.least_participants=21"), "must be from 2 .fewer hide no client. to 20"),
        ((*OPEN, "aggregation.least_participants=1"), "least_participants"),
        (("method.name=fedavg", "aggregation.kind=plain", "aggregation.least_participants=3"), "is for masked"),
    ],
)
def test_a_minimum_that_cannot_be_is_one_error(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        built(*settings)


@pytest.mark.parametrize("kind", ["masked", "protocol"])
def test_in_process_a_round_of_fewer_ends_without_a_result(tmp_path, kind):
    """Poisson cohorts of 3 or so of 100, at least 90 asked for: nothing is released, and the run goes on."""
    settings = (*OPEN, "federation.sampling=poisson", "federation.cohort=3", "aggregation.least_participants=90")
    outcome = federation.run(built(*settings, f"aggregation.kind={kind}"), tmp_path)
    assert outcome.summary["aborted_rounds"] == 1


@pytest.mark.parametrize("kind", ["plain", "protocol"])
def test_a_cap_above_the_clients_is_refused_by_what_needs_them(kind):
    """The advice for shares in a plain sum was: use kind 'plain'."""
    settings = (*SHARES, "federation.sampling=poisson", "federation.cohort_cap=120", f"aggregation.kind={kind}")
    with pytest.raises(ConfigError, match=f"kind='{kind}' and .*'clients': .*with privacy.placement='server'"):
        built(*settings)
    assert built(*settings, "aggregation.kind=plain", "privacy.placement=server").privacy_target.slots is None
