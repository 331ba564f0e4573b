"""One pass of CI on another processor, as far as one can be had on this one: the tests that compare stored numbers.

    PYTHONPATH=tests python -m golden.other_processor

The variables below choose other instructions in torch, oneDNN, MKL and numpy. If they move no number of a training, the
pass would show nothing, and fails with these words. On a processor without AVX512 they still move some. Numpy's names
are left out where it does not have them. Nothing else sets these variables.
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

VARIABLES = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
NUMPY, FEATURES = "NPY_DISABLE_CPU_FEATURES", ("X86_V4", "X86_V3")
"""Numpy's variable, and its names of what it is to do without."""
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


def variables_here() -> dict[str, str]:
    """Return the variables for this processor: numpy warns of a feature that it does not know or that is not there."""
    find = "from numpy._core._multiarray_umath import __cpu_dispatch__ as d, __cpu_features__ as f; "
    find += "print(*(name for name in d if f.get(name)))"
    there = {key: value for key, value in os.environ.items() if key != NUMPY}
    found = subprocess.run([sys.executable, "-c", find], env=there, capture_output=True, text=True, check=True)
    names = [name for name in FEATURES if name in found.stdout.split()]
    return VARIABLES | ({NUMPY: " ".join(names)} if names else {})


def answers(variables: dict[str, str], out: Path) -> list[Any]:
    """Return the answers of the settings MOVED in a process with these variables."""
    environment = {key: value for key, value in environment_of(ROOT).items() if key not in {*VARIABLES, NUMPY}}
    environment |= variables
    subprocess.run([*COMMAND, "--answers", str(out), *MOVED], env=environment, check=True, cwd=ROOT)
    return [json.loads(line) for line in out.read_text().splitlines()]


def moved(before: list[Any], now: list[Any]) -> bool:
    """Return True if any number differs in any bit."""
    return before != now


def main() -> int:
    variables = variables_here()
    with tempfile.TemporaryDirectory() as home:
        here, there = answers({}, Path(home) / "here"), answers(variables, Path(home) / "there")
    if not moved(here, there):
        print("shows nothing: no number of a training moved under", *(f"{k}={v!r}" for k, v in variables.items()))
        return 1
    command = [sys.executable, "-m", "pytest", "-m", "not slow", *TESTS]
    return subprocess.run(command, env=os.environ | variables, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
