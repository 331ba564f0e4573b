"""The layers of pyproject.toml hold: imports point downwards, accounting stands alone."""

import subprocess
import sys
from pathlib import Path


def test_import_contracts_are_kept():
    root = Path(__file__).parent.parent
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
