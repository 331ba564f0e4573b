"""Sums of integers without noise: by default they end where the plain sum does, and say how large rounding is."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfed.cli import status
from dpfed.mechanisms.integers import Integers
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import preset

CLIP = 10.0
SMALL = ("federation.clients=60", "federation.cohort=12", "federation.rounds=3", "run.seed=3")


def trained(folder, *settings):
    """Weights [d] of FedAvg on the digits, and the folder."""
    federation.run(build(preset("fedavg-digits", *SMALL, *settings)), folder)
    return torch.cat([one.flatten() for one in load_file(folder / "model.safetensors").values()]).double()


def lines(folder):
    return [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("kind", ["masked", "protocol"])
@pytest.mark.parametrize("rotation", ["true", "false"])
def test_fedavg_ends_where_the_plain_sum_does(tmp_path, kind, rotation):
    secure = (f"aggregation.kind={kind}", f"aggregation.clip_norm={CLIP}", f"aggregation.rotation={rotation}")
    plain = trained(tmp_path / "plain")
    default = trained(tmp_path / "default", *secure)
    coarse = trained(tmp_path / "coarse", *secure, "aggregation.steps=2263")
    assert float((default - plain).norm()) < 1e-3
    assert float((coarse - plain).norm()) > 0.01  # a difference would be seen
    fine, rough = (lines(tmp_path / name)[0]["rounding"] for name in ("default", "coarse"))
    assert fine < 1e-4 < 1e-3 < rough
    assert "rounding" not in lines(tmp_path / "plain")[0]


@pytest.mark.parametrize("rotation", ["true", "false"])
def test_the_stated_error_bounds_that_of_rows(rotation):
    """Root mean square over 64 rows, beside the bound: entries are rounded by a variance of at most 1/4, in the mean
    1/6 for fractions that are equally likely."""
    settings = (f"aggregation.clip_norm={CLIP}", "aggregation.kind=masked", "aggregation.steps=3000")
    method = build(preset("fedavg-digits", *SMALL, *settings, f"aggregation.rotation={rotation}")).method
    code = method.stages.find(Integers)
    rows = torch.randn(64, method.clients.course.size, generator=torch.Generator().manual_seed(1))
    rows *= CLIP / rows.norm(dim=1, keepdim=True)
    names, where = np.arange(64), {"rotation_seed": 5}
    made = code.fixed_point.encode(
        rows, clip_norm=CLIP, randomness=method.randomness, names=names, path=(0,), **where
    ).integers
    error = torch.stack([code.fixed_point.decode(one, **where) for one in made]) - rows
    measured = float(error.double().square().sum(dim=1).mean().sqrt()) / CLIP
    assert code.rounding / 2 < measured <= code.rounding


def test_private_sums_keep_their_steps_and_bits(tmp_path):
    private = (*SMALL, "aggregation.kind=masked", "privacy.accountant=rdp")
    method = build(preset("dp-fedavg-digits", *private)).method
    assert method.stages.bits < 24
    folder = tmp_path / "run"
    words = [word for one in private for word in ("--set", one)]
    assert status(["run", "dp-fedavg-digits", *words, "--out", str(folder)]) == 0
    assert all("rounding" not in line for line in lines(folder))
    assert "Rounding" not in (folder / "report.html").read_text()
    records = (
        "aggregation.kind=masked",
        "aggregation.clip_norm=10",
        "local.record.clip_norm=1",
        "local.record.epsilon=9",
        "local.record.accountant=rdp",
    )
    method = build(preset("fedavg-digits", *SMALL, *records)).method
    assert method.stages.bits < 24


def test_page_and_diagnosis_say_how_large_rounding_is(tmp_path, capsys):
    folder = tmp_path / "run"
    settings = (*SMALL, "aggregation.kind=masked", f"aggregation.clip_norm={CLIP}", "aggregation.steps=3000")
    words = [word for one in settings for word in ("--set", one)]
    assert status(["run", "fedavg-digits", *words, "--out", str(folder)]) == 0
    assert "<dt>Rounding</dt><dd>an error of at most 0.0" in (folder / "report.html").read_text()
    capsys.readouterr()
    assert status(["diagnose", str(folder), "--json"]) == 0
    median = np.median([line["rounding"] for line in lines(folder)])
    assert json.loads(capsys.readouterr().out)["evidence"]["rounding"] == pytest.approx(median)
    assert status(["diagnose", str(folder)]) == 0
    assert "rounding to integers, over a typical update" in capsys.readouterr().out
