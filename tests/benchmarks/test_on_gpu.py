"""`make bench-gpu` on the CPU: all its parts work, so that the first GPU meets nothing that cannot run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refused
from scripts import script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_gpu.py"


def measured(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False, timeout=550)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU")
def test_without_a_gpu_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["on_gpu.py"])
    refused(SystemExit, "no CUDA GPU", script("benchmarks/on_gpu.py").main)


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    done = measured("--quick", "--device", "cpu", "--out", str(tmp_path / "gpu.md"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "gpu.md").read_text()
    assert "Failed after" not in text, text
    for title in ("Tests", "Fed-SMP on Fashion-MNIST", "Strategies", "Encoding beside training", "A round's steps"):
        assert f"## {title}\n" in text
    assert "| fedpm |" in text
