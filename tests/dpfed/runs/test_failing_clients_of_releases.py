"""In a release, how many clients' trainings fail is for the operator: no public file, page, message or log has it."""

import hashlib
import json
import logging
import secrets
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

import dpfed
from dpfed.cli import status
from dpfed.randomness import Secure
from dpfed.runs.folder import RunFolder

from .test_public_code import TABLES, points

OPERATORS = ("diagnostics.jsonl", "checkpoint.safetensors")


class Fragile(nn.Module):
    """A network that learns nothing; its training raises an error, prints and warns if an input is beyond 20."""

    fails = True

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, inputs):
        if self.training and self.fails and inputs.abs().max() > 20:
            raise ArithmeticError(f"an input is {float(inputs.abs().max())}")
        return self.out(inputs).detach() + 0 * self.out(inputs)


def same_bits(randomness, count, purpose, *path):
    """Bits by purpose and path, so that two runs draw the same noise."""
    content = hashlib.shake_256(repr((count, purpose, path)).encode()).digest(8 * count)
    return np.frombuffer(content, dtype=np.uint64)


@pytest.fixture
def shown(tmp_path, monkeypatch, capfd, caplog):
    """`shown(fails)` runs a release. Returns all that is public of it, by name, and what its operator sees."""
    monkeypatch.setattr("dpfed.runs.loop.time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(Secure, "bits", same_bits)
    monkeypatch.setattr(secrets, "token_bytes", lambda count=32: bytes(count))

    def start(*, fails, pages=True):
        monkeypatch.setattr(Fragile, "fails", fails)
        if not pages:
            monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
        folder, lines = tmp_path / "run", tmp_path / "lines.txt"
        tables = TABLES | {"local.strategy": None}
        clients = [points(10, seed, 30.0 if seed < 3 else 1.0) for seed in range(6)]
        data = dpfed.data.from_clients(clients, test=points(30, 9), classes=3)

        def progress(line):
            with lines.open("a") as file:
                file.write(f"{line}\n")

        with warnings.catch_warnings(), caplog.at_level(logging.DEBUG, logger="dpfed"):
            warnings.simplefilter("always")
            dpfed.run("dp-fedavg-digits", tables, data=data, model=Fragile, out=folder, progress=progress)
        if pages:
            assert status(["report", str(folder), "--out", str(folder / "page")]) == 0
            assert status(["report", str(folder), "--card", str(folder / "card.md")]) == 0
            assert status(["audit", str(folder), "--effort", "quick", "--set", "confidence=0.999999", "--json"]) == 0
        printed = capfd.readouterr()
        files = {file.name: file.read_bytes() for file in [*folder.rglob("*"), lines] if file.is_file()}
        files |= {"output": printed.out.encode(), "errors": printed.err.encode(), "log": caplog.text.encode()}
        assert status(["diagnose", str(folder)]) == 0
        failed = [json.loads(line)["failed"] for line in files["diagnostics.jsonl"].splitlines()]
        lines.unlink(), folder.rename(tmp_path / f"run-{fails}")
        caplog.clear()
        public = {name: content for name, content in files.items() if name not in OPERATORS}
        return public, failed, capfd.readouterr().out

    return start


def differing(shown, **how):
    """Names of public files and messages that depend on how many clients' trainings fail."""
    none, no_failures, diagnosis = shown(fails=False, **how)
    assert (no_failures, "50.0%" in diagnosis) == ([0, 0], False)
    three, failures, diagnosis = shown(fails=True, **how)
    assert (failures, "50.0%" in diagnosis) == ([3, 3], True)
    assert none.keys() == three.keys() >= {"metrics.jsonl", "summary.json", "ledger.jsonl", "model.safetensors", "log"}
    return sorted(name for name, content in none.items() if content != three[name])


def test_how_many_clients_failed_is_in_no_file_of_the_run_and_no_message(shown):
    assert differing(shown, pages=False) == []


@pytest.mark.slow
def test_how_many_clients_failed_is_in_no_report_card_or_audit_page(shown):
    assert differing(shown) == []


@pytest.mark.slow
def test_a_number_of_failures_in_the_log_is_found(shown, monkeypatch):
    """The planted fault: a message of the training process for the user."""
    append = RunFolder.append_round

    def and_log(folder, line, record):
        append(folder, line, record)
        logging.getLogger("dpfed").info("round %s: %s failed", line.round, record.failed)

    monkeypatch.setattr(RunFolder, "append_round", and_log)
    assert differing(shown, pages=False) == ["log"]
