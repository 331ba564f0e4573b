"""One pass of CI on another processor, as far as one can be had on this one: the tests that compare stored numbers.

    PYTHONPATH=tests python -m golden.other_processor

The variables below choose other instructions in torch, oneDNN, MKL and numpy. If they move no number of a training, the
pass would show nothing, and fails with these words. On a processor without AVX512 they still move some. Nothing else
sets these variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from golden.record import COMMAND, ROOT, environment_of

VARIABLES = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3",
}
MOVED = ("trained one after another", "trained dp-fedavg", "trained signsgd")
"""Settings of the golden net whose numbers are looked at for a difference."""
TESTS = (
    "tests/golden/test_golden.py",
    "tests/accounting/compose/test_not_looser.py",
    "tests/dpfed/compress",
    "tests/dpfed/clients",
    "tests/dpfed/runs/test_determinism.py",
)
"""Tests that compare with stored numbers, or numbers of two ways that may differ in their last bits."""


def answers(variables: dict[str, str], out: Path) -> list[Any]:
    """Return the answers of the settings MOVED in a process with these variables."""
    environment = {key: value for key, value in environment_of(ROOT).items() if key not in VARIABLES} | variables
    subprocess.run([*COMMAND, "--answers", str(out), *MOVED], env=environment, check=True, cwd=ROOT)
    return [json.loads(line) for line in out.read_text().splitlines()]


def moved(before: list[Any], now: list[Any]) -> bool:
    """Return True if any number differs in any bit."""
    return before != now


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        here, there = answers({}, Path(home) / "here"), answers(VARIABLES, Path(home) / "there")
    if not moved(here, there):
        print("shows nothing: no number of a training moved under", *(f"{k}={v!r}" for k, v in VARIABLES.items()))
        return 1
    command = [sys.executable, "-m", "pytest", "-m", "not slow", *TESTS]
    return subprocess.run(command, env=os.environ | VARIABLES, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
