"""A user's file passes strict type checkers: mypy, and pyright where it is installed (npm install -g pyright)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

USER_FILE = Path(__file__).with_name("user_file.py")


@pytest.mark.slow
def test_a_users_file_passes_mypy_strict_and_a_wrong_type_is_found(tmp_path):
    wrong = tmp_path / "wrong_file.py"
    wrong.write_text(USER_FILE.read_text().replace("tuple[float, float, int]", "tuple[str, float, int]"))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, str(USER_FILE), str(wrong)]
    # Errors inside packages are no business of a user's; those of the file alone count.
    done = subprocess.run([*command, "--cache-dir", ".mypy_cache/user"], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "user_file.py" not in done.stdout, done.stdout
    (found,) = [line for line in done.stdout.splitlines() if "wrong_file.py" in line and "error:" in line]
    assert "Incompatible return value type" in found


@pytest.mark.slow
def test_a_users_file_passes_pyright():
    pyright = shutil.which(os.environ.get("PYRIGHT", "pyright"))
    if pyright is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, str(USER_FILE)], capture_output=True, text=True
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert not [f"{one['range']['start']['line'] + 1}: {one['message']}" for one in found if one["severity"] == "error"]
