"""docs/deploy.md line by line: its `sh` blocks, in order, as one script on ports that are free."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from .served import free_port, lines

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")
pytest.importorskip("ray", reason="ray is not installed: make test-flower")

GUIDE = Path(__file__).parents[3] / "docs" / "deploy.md"
PATIENCE = 1800
STRANGER = """
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f stranger
flower-supernode --root-certificates ca.pem --superlink 127.0.0.1:18000 --port 19092 --max-retries 1 \\
    --auth-supernode-private-key stranger --ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key \\
    --node-config "partition-id=0" > stranger.log 2>&1 || echo "stranger turned away: $?"
"""
"""Before the run under TLS: a node with a key that nobody has registered, for the place of client 0."""


def blocks():
    found = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 5, "the environment, the simulation, an app, loopback, TLS"
    return found


def script():
    *before, tls = blocks()
    start, run, rest = tls.partition("flwr run app tls")
    start, loop, nodes = start.partition("for node in 0 1; do\n")
    text = "\n".join(["set -e", *before, start, STRANGER, loop + nodes, run + rest])
    for port in (18000, 19092):
        text = text.replace(str(port), str(free_port()))
    for number in (0, 1):
        text = text.replace(f"--port 1909{number}", f"--port {free_port()}")
    return text.replace("--port 1909$node", f"--port $(({free_port()} + node))")


def kill_all_in(folder):
    """Processes that work in this folder, whoever has started them: some leave their parents' session."""
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if place.resolve().is_relative_to(folder):
                os.kill(int(place.parent.name), signal.SIGKILL)


def test_the_guide_runs_as_it_is_written(tmp_path, flower):
    (tmp_path / "guide.sh").write_text(script())
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            ["bash", "guide.sh"],
            cwd=tmp_path,
            env=flower(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        ended = process.wait(timeout=PATIENCE)
    finally:
        kill_all_in(tmp_path)
        process.wait()
    said = (tmp_path / "log").read_text(errors="replace")
    assert ended == 0, said[-3000:]
    assert said.count('"status": "finished:completed"') == 2, said[-3000:]
    assert "stranger turned away" in said, said[-3000:]
    assert "Traceback" not in (tmp_path / "stranger.log").read_text(errors="replace")
    for name in ("runs/dp-fedavg-digits", "app-run", "tls-run"):
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["rounds"] == (3 if name.startswith("runs") else 2)
        assert summary["epsilon"] > 0
    for name in ("app-run", "tls-run"):
        assert [one["arrived"] for one in lines(tmp_path / name, "diagnostics.jsonl")] == [2, 2]
