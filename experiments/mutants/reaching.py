"""Pytest plugin: what each test takes of the processor, and which of the drawn mutants' statements it reaches.

MUTANTS names the file with the mutants, REACHED the folder that gets a file for each process, one line a test.
Processes that tests start count as seconds, not as reached.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import time
from pathlib import Path

import mutants
import pytest

_FOLDER = Path(os.environ["REACHED"])
_reached: set[int] = set()
builtins.__reached__ = _reached.add
sys.meta_path.insert(0, mutants.Changed(mutants.changed(mutants.read(Path(os.environ["MUTANTS"])), mutants.report)))
_tests: dict[str, dict] = {}


def _seconds() -> float:
    return sum(os.times()[:4])


def _phase(name: str):
    @pytest.hookimpl(wrapper=True)
    def measured(item):
        began = _seconds()
        try:
            return (yield)
        finally:
            _tests.setdefault(item.nodeid, {"test": item.nodeid, "passed": True})[name] = round(_seconds() - began, 2)

    return measured


pytest_runtest_setup, pytest_runtest_call, pytest_runtest_teardown = map(_phase, ("setup", "call", "teardown"))


def pytest_runtest_makereport(item, call) -> None:
    if call.excinfo is not None:
        skipped = call.excinfo.errisinstance(pytest.skip.Exception)
        _tests.setdefault(item.nodeid, {"test": item.nodeid})["passed"] = None if skipped else False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    began = _seconds()
    try:
        return (yield)
    finally:
        if isinstance(collector, pytest.Module):
            _write({"module": collector.nodeid, "seconds": round(_seconds() - began, 2)})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _reached.clear()
    began = time.time()
    try:
        return (yield)
    finally:
        _write(_tests.pop(item.nodeid, {}) | {"wall": round(time.time() - began, 2), "reached": sorted(_reached)})


def _write(line: dict) -> None:
    with open(_FOLDER / f"{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
