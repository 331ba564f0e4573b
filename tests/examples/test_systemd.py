"""The systemd unit of the server: systemd itself reads it, and a misspelt key is found."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "examples" / "systemd" / "dpfed-superlink.service"
SERVER = "/srv/dpfed/.venv-flower/bin/flower-superlink"


def verified(text, folder):
    """Return the output of `systemd-analyze verify` for a unit whose server program exists."""
    unit = folder / UNIT.name
    unit.write_text(text.replace(SERVER, shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    return done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)
def test_systemd_reads_the_unit(tmp_path):
    text = UNIT.read_text(encoding="utf-8")
    assert f"ExecStart={SERVER} " in text
    assert verified(text, tmp_path) == (0, [])
    _, said = verified(text.replace("RestartSec=10", "RestartSecs=10"), tmp_path)
    assert any("RestartSecs" in line for line in said)
    code, _ = verified(
        text.replace("Restart=on-failure", "Restart=sometimes").replace("ExecStart", "ExecBegin"), tmp_path
    )
    assert code != 0
