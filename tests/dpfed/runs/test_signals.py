"""Signals: the round is finished and saved, the command to go on with is the one that works; twice ends at once."""

import contextlib
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from accounting import Ledger
from dpfed.cli import status
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

SETTINGS = (
    "federation.rounds=6", "model.hidden=[4]", "federation.clients=24", "federation.cohort=8", "privacy.accountant=rdp",
    "data.train_samples=240", "data.test_samples=50", "local.epochs=1",
)  # fmt: skip


def started(out, *launch, rounds=100_000):
    settings = [word for one in (*SETTINGS, f"federation.rounds={rounds}") for word in ("--set", one)]
    return subprocess.Popen(
        [sys.executable, *(launch or ("-m", "dpfed")), "run", "dp-fedavg-digits", "--out", str(out), *settings],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_rounds(process, out, rounds, patience=120.0):
    """Until so many rounds are in metrics.jsonl."""
    metrics, deadline = out / "metrics.jsonl", time.monotonic() + patience
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < rounds:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asked_after(rounds):
    """`stop` of a run: asked before the round after so many."""
    count = iter(range(1_000_000))
    return lambda: next(count) >= rounds


def test_a_run_that_is_told_to_stop_at_its_end_is_complete(tiny_config, tmp_path):
    outcome = federation.run(build(tiny_config()), tmp_path / "run", stop=asked_after(3))
    assert (outcome.summary["rounds"], outcome.summary["stopped_by"]) == (3, "rounds")


def test_the_printed_command_goes_on(tmp_path, capsys, monkeypatch):
    """A user's configuration, settings with blanks, an --out with a blank, and a project."""
    out, ledger = tmp_path / "my run", tmp_path / "p.jsonl"
    assert status(["ledger", "create", str(ledger), "--clients", "24", "--epsilon", "30"]) == 0
    settings = [word for one in (*SETTINGS, "model.hidden=[4, 4]") for word in ("--set", one)]
    command = importlib.import_module("dpfed.cli.run_on_terminal")
    monkeypatch.setattr(command, "stop_by_signals", lambda say: contextlib.nullcontext(asked_after(2)))
    assert status(["run", "dp-fedavg-digits", "--out", str(out), "--ledger", str(ledger), *settings]) == 130
    monkeypatch.undo()
    said = capsys.readouterr().err
    words = shlex.split(said[said.index("Go on with: ") + len("Go on with: ") :])
    assert words[0] == "dpfed"
    assert words[-1] == "--resume"
    assert status(words[1:]) == 0
    assert json.loads((out / "summary.json").read_text())["rounds"] == 6


def test_a_run_goes_on_by_its_folder_alone(tmp_path, monkeypatch):
    """By the configuration that it wrote, to the same bytes as a run that was not interrupted."""
    words = [word for one in SETTINGS for word in ("--set", one)]
    assert status(["run", "dp-fedavg-digits", "--out", str(tmp_path / "whole"), *words]) == 0
    command = importlib.import_module("dpfed.cli.run_on_terminal")
    monkeypatch.setattr(command, "stop_by_signals", lambda say: contextlib.nullcontext(asked_after(2)))
    assert status(["run", "dp-fedavg-digits", "--out", str(tmp_path / "run"), *words]) == 130
    monkeypatch.undo()
    assert status(["run", "--resume", "--out", str(tmp_path / "run")]) == 0
    for name in ("config.toml", "model.safetensors", "ledger.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_folder_without_a_run_has_nothing_to_go_on_with(tmp_path, capsys):
    assert status(["run", "--resume", "--out", str(tmp_path)]) == 1
    assert "has no run to resume" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_finishes_the_round(tmp_path):
    first = started(tmp_path / "run")
    wait_for_rounds(first, tmp_path / "run", 2)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 130
    assert "SIGINT: the run ends after this round is saved" in said
    assert "Go on with: dpfed run dp-fedavg-digits" in said
    done = int(said.partition("interrupted after round ")[2].split()[0])
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").releases) == done


def test_a_second_signal_is_a_kill(tmp_path):
    """Signals in a round that never ends: the first is recorded, also within a write; the second ends the process."""
    script = (
        "import time, sys\n"
        "from dpfed.cli.stopping import stop_by_signals\n"
        "def say(words):\n"
        "    raise RuntimeError('reentrant call')\n"
        "with stop_by_signals(say) as asked:\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(60)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert "Repeat the signal to end it now" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == -signal.SIGINT


@pytest.mark.slow
def test_with_torchrun_all_processes_end(tmp_path):
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "dpfed")
    process = started(tmp_path / "run", *launch)
    wait_for_rounds(process, tmp_path / "run", 2)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode != 0
    assert "Go on with: torchrun --nproc-per-node 2 -m dpfed run dp-fedavg-digits" in said
    done = int(said.partition("interrupted after round ")[2].split()[0])
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").releases) == done
