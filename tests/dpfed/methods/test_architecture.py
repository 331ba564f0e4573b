"""The chains and files that docs/architecture.md names are those of the package; a family of methods is one file."""

import re
from pathlib import Path

import pytest

from dpfed.methods.catalogue import METHODS
from dpfed.methods.privacy_target import privacy_target_of
from dpfed.runs.experiment import build
from dpfed.stages.project import PublicTopMask

from ...rounds import preset

pytestmark = pytest.mark.slow_but_one_in(3)

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CHAINS = re.findall(r"^\| (`[^|]*-digits`[^|]*) \| ([^|]*) \|$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize(("run", "chain"), CHAINS, ids=[run.replace("`", "") for run, _ in CHAINS])
@pytest.mark.slow_but_one_in(3)
def test_chains_are_as_the_page_says(run, chain):
    assert repr(build(preset(*re.findall(r"`([^`]*)`", run))).method.stages) == chain


def test_the_page_has_chains():
    assert len(CHAINS) == 9


def test_folders_and_files_exist():
    named = {one.partition(":")[0] for one in re.findall(r"`((?:dpfed|accounting|tests)/[^`\s]*)`", PAGE)}
    assert len(named) > 60
    assert [one for one in named if not (ROOT / one).exists()] == []


PRIVATE = {
    **dict.fromkeys(("dp-fedavg", "fed-smp-randk", "fed-smp-topk", "fedpm-private"), ()),
    "qsgd": ("privacy.clip_norm=1", "privacy.noise_multiplier=1"),
}
SHARES = ("federation.sampling=fixed", "privacy.placement=clients", "privacy.adjacency=zero-out")
SETTINGS = [
    (),
    ("privacy.noise=skellam",),
    SHARES,
    (*SHARES, "privacy.missing_shares=charged", "aggregation.dropout=.1"),
]
CASES = [(name, settings) for name in PRIVATE for settings in SETTINGS if name.startswith("fed-smp") or not settings]


@pytest.mark.slow_but_one_in(12)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_the_budget_plans_what_the_stage_charges(name, settings):
    """Goals are planned from the configuration, charges come from stages: both are one mechanism."""
    config = preset(f"{name}-digits", *PRIVATE[name], *settings)
    experiment = build(config)
    stages = experiment.method.stages
    planned = privacy_target_of(config, experiment.specification, stages.project.sent)
    assert planned.mechanism == stages.private.mechanism(planned.least_uploads) == experiment.privacy_target.mechanism


@pytest.mark.parametrize("name", [name for name, specification in METHODS.items() if specification.scheme is not None])
def test_the_table_of_methods_says_what_stages_say_of_themselves(name):
    """Unbiased and linear are those of the scheme; a mask that public data choose is biased by itself."""
    experiment = build(preset(f"{name}-digits"))
    scheme, choice = experiment.method.stages.wire.scheme, experiment.method.stages.project.choice
    assert experiment.specification.linear == scheme.linear
    assert experiment.specification.unbiased == (scheme.unbiased and not isinstance(choice, PublicTopMask))
