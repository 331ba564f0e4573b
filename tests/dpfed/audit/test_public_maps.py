"""Coordinates that another processor has chosen are not called private; coordinates of private samples are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfed.audit.evidence import mask_evidence
from dpfed.audit.evidence.mask_evidence import _agreement, _FirstRound, coordinates_follow_public_data
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.run import audit_run
from dpfed.cli import status

SETTINGS = (
    "federation.rounds=1",
    "federation.clients=60",
    "federation.cohort=8",
    "federation.sampling=fixed",
    "method.public_epochs=3",
)
RUN = ("run", "fed-smp-topk-digits", *(word for one in SETTINGS for word in ("--set", one)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("topk") / "run"
    assert status([*RUN, "--out", str(out)]) == 0
    return out


def judged(folder, bits, device="cpu"):
    """Write other coordinates and another device into the run's files, and judge them again."""
    line = json.loads((folder / "diagnostics.jsonl").read_text().splitlines()[0])
    line["map"]["shown"] = np.packbits(bits).tobytes().hex()
    (folder / "diagnostics.jsonl").write_text(json.dumps(line) + "\n")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"device": device}))
    return coordinates_follow_public_data(RunFiles(folder))


def first_round(folder):
    files = RunFiles(folder)
    inputs, labels, _ = mask_evidence._public_samples(files.config)
    return _FirstRound(files, mask_evidence._first_model(files), inputs, labels)


@pytest.mark.parametrize("error", [2.0**-20, 2.0**-12])
def test_the_rounding_of_another_processor_is_allowed(folder, error):
    """Errors of a float32 kernel and of TF32, with other seeds than those of the tolerance."""
    bits = first_round(folder).chosen(error, seed=1_000)
    assert judged(folder, bits, "cpu" if error < 1e-5 else "cuda:0")[0] is True


def test_other_samples_are_found_on_any_processor(folder):
    """Planted: the labels of the public samples in another order choose the coordinates."""
    again = first_round(folder)
    mixed = torch.from_numpy(np.random.default_rng(0).permutation(len(again.labels)))
    other = _FirstRound(again.files, again.start, again.inputs, again.labels[mixed]).chosen()
    assert _agreement(again.chosen(), other) < 0.9
    for device in ("cpu", "cuda:0"):
        passed, words = judged(folder, other, device)
        assert passed is False, words


def test_too_wide_a_tolerance_cannot_tell(folder, monkeypatch):
    monkeypatch.setattr(mask_evidence, "_OF_CPUS", 10.0)
    passed, words = judged(folder, 1 - first_round(folder).chosen())
    assert passed is None
    assert "too near to tell" in words


def test_without_a_round_nothing_was_chosen():
    assert coordinates_follow_public_data(SimpleNamespace(rounds=()))[0] is None


@pytest.mark.slow
def test_a_run_with_other_instructions_passes(tmp_path):
    """Trained with torch's plainest kernels in another process, judged here."""
    plain = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    words = [*RUN, "--out", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "dpfed", *words], env=plain, check=True, capture_output=True)
    (check,) = [one for one in audit_run(tmp_path / "run").checks if "public data" in one.name]
    assert check.passed is True, check.detail
