"""The upgrade procedure: a run of one version is stopped by SIGTERM, the version changes, the run is resumed."""

import signal
import subprocess
import sys
import time

import pytest

from accounting import Ledger
from dpfed.cli import status
from dpfed.version import __version__

SETTINGS = (
    "federation.rounds=8", "model.hidden=[4]", "federation.clients=24", "federation.cohort=8", "privacy.accountant=rdp",
    "data.train_samples=240", "data.test_samples=50", "local.epochs=1",
)  # fmt: skip
WORDS = [word for one in SETTINGS for word in ("--set", one)]
EARLIER = """
import sys
import dpfed.version
dpfed.version.__version__ = "0.2.999"
from dpfed.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_goes_on_under_the_next_version(tmp_path):
    """To the same releases and model as a run that was never stopped, and its audit passes."""
    assert __version__ != "0.2.999"
    out, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    command = [sys.executable, "-c", EARLIER, "run", "dp-fedavg-digits", "--out", str(out), *WORDS]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 120
    while not metrics.exists() or not metrics.read_bytes():
        assert time.monotonic() < deadline
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.002)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 128 + signal.SIGTERM, said
    assert not (out / "summary.json").exists()
    assert status(["ledger", "backup", str(out / "ledger.jsonl"), str(tmp_path / "copy")]) == 0
    assert status(["run", "--resume", "--out", str(out)]) == 0
    assert status(["run", "dp-fedavg-digits", "--out", str(tmp_path / "whole"), *WORDS]) == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    upgraded, whole = (Ledger.read(folder / "ledger.jsonl") for folder in (out, tmp_path / "whole"))
    assert upgraded.header.about["package"] == "dpfed 0.2.999"
    assert upgraded.releases == whole.releases
    assert status(["audit", "run", str(out)]) == 0
