"""docs/experiments.md: one seed, one result."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import configured, stopped_run

DISCRETE = ("privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out")
METHODS = {
    "loop": ("local.strategy=loop", "privacy.adaptive.quantile=0.5", "audit.canaries=4"),
    "discrete": ("local.strategy=loop", *DISCRETE, "aggregation.kind=masked", "aggregation.dropout=0.1"),
    "fedpm": ("local.strategy=loop", "method.name=fedpm", "mask.edge=0.1", "server.rule=posterior"),
    "vmap": ("local.strategy=vmap", "server.momentum=0.9"),
}
CONTENT = ("ledger.jsonl", "metrics.jsonl", "canaries.jsonl", "model.safetensors")


def built(method, *settings):
    privacy = {"noise_multiplier": None} if method == "fedpm" else {}
    return build(configured(*METHODS[method], *settings, privacy=privacy))


def told(folder):
    """Files of a run as bytes, and what the operator saw, but for the clock."""
    files = {name: (folder / name).read_bytes() for name in CONTENT if (folder / name).exists()}
    lines = (folder / "diagnostics.jsonl").read_text().splitlines()
    return files, [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


def ran(experiment, folder, **how):
    federation.run(experiment, folder, **how)
    return told(folder)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("method", METHODS)
def test_one_seed_is_one_result_whatever_the_number_of_threads(tmp_path, threads, method):
    first = ran(built(method), tmp_path / "1")
    for number in (2, 3):
        threads(number)
        assert ran(built(method), tmp_path / str(number)) == first
    assert ran(built(method, "run.seed=1"), tmp_path / "other") != first


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("method", ["discrete", "fedpm"])
def test_sums_of_integers_do_not_depend_on_the_size_of_groups(tmp_path, method):
    """Exactly, where clients are trained one after the other; counts and maxima neither."""
    experiment = built(method)
    first = ran(experiment, tmp_path / "first")
    for size in (1, 3):
        regrouped = replace(experiment, method=replace(experiment.method, group=size))
        assert ran(regrouped, tmp_path / str(size)) == first


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_sums_of_floats_do_up_to_rounding_and_noise_and_cohorts_do_not(tmp_path, method):
    experiment = built(method)
    first, seen = ran(experiment, tmp_path / "first")
    state = federation.Run.open(experiment, tmp_path / "first", resume=True).state
    regrouped = replace(experiment, method=replace(experiment.method, group=3))
    other, also_seen = ran(regrouped, tmp_path / "3")
    again = federation.Run.open(experiment, tmp_path / "3", resume=True).state
    torch.testing.assert_close(again.broadcast, state.broadcast, atol=1e-6, rtol=1e-5)
    assert (
        json.loads(first["ledger.jsonl"].splitlines()[1])["mechanism"]
        == (json.loads(other["ledger.jsonl"].splitlines()[1])["mechanism"])
    )
    for name in ("cohort", "participants", "arrived", "noise"):
        assert [line[name] for line in seen] == [line[name] for line in also_seen]


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_is_the_whole_one(tmp_path, method):
    whole = ran(built(method), tmp_path / "whole")
    stopped_run(built(method), tmp_path / "run", after=1)
    assert ran(built(method), tmp_path / "run", resume=True) == whole


OTHER_PROCESS = """
import sys
from pathlib import Path
import torch
from dpfed.config.tables import parse
from dpfed.runs import loop
from dpfed.runs.experiment import build
import json
torch.set_num_threads(2)
for name, tables in json.loads(sys.argv[2]).items():
    loop.run(build(parse(tables, source="test")), Path(sys.argv[1]) / name)
"""


@pytest.mark.slow
def test_another_process_with_another_hash_seed_gives_the_same(tmp_path):
    here = {method: built(method) for method in ("loop", "discrete")}
    tables = {method: experiment.config.to_dict() for method, experiment in here.items()}
    subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "there"), json.dumps(tables)],
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"},
    )
    for method, experiment in here.items():
        assert ran(experiment, tmp_path / "here" / method) == told(tmp_path / "there" / method)


def test_secure_randomness_repeats_nothing(tmp_path):
    settings = ("run.randomness=secure",)
    seen = [ran(built("discrete", *settings), tmp_path / name) for name in "ab"]
    noise = [line["noise"]["digest"] for _, lines in seen for line in lines]
    assert len(set(noise)) == len(noise) == 4
    assert seen[0][0]["model.safetensors"] != seen[1][0]["model.safetensors"]
