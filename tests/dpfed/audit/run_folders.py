"""Folders of runs: made once, copied and tampered with in tests."""

import json
import shutil
import tomllib

import tomli_w

from accounting.ledger.hash_chain import chained_line
from dpfed.audit.run import audit_run
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import DIGITS, configured, tables

TABLES = tables(DIGITS, federation={"rounds": 4}, privacy={"accountant": "rdp"})
SURE = 1 - 1e-6
"""Confidence at which no seed of these tests fails by chance."""


def run(folder, *settings, without=()):
    federation.run(build(configured(*settings, start=TABLES, **dict.fromkeys(without))), folder)
    return folder


def copied(source, target):
    shutil.copytree(source, target)
    return target


def records(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def write_records(folder, name, lines):
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def change(folder, name, edit):
    """`edit(lines)` on the objects of a JSON-lines file, in place."""
    lines = records(folder, name)
    edit(lines)
    write_records(folder, name, lines)


def change_summary(folder, **values):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_config(folder, table, **values):
    tables = tomllib.loads((folder / "config.toml").read_text())
    tables[table] |= values
    (folder / "config.toml").write_text(tomli_w.dumps(tables))


def forge_ledger(path, edit):
    """Edit the lines by `edit` and compute every hash anew, as a forger would. Returns the last hash."""
    lines = records(path.parent, path.name)
    edit(lines)
    chain, content = "", b""
    for line in lines:
        line.pop("chain", None)
        one, chain = chained_line(line, chain)
        content += one
    path.write_bytes(content)
    return chain


def change_ledger(folder, edit):
    forge_ledger(folder / "ledger.jsonl", edit)


BOUND = "all files are of one run"
"""What whoever edits configuration or ledger must forge as well; its own tests are in test_rounds_and_files.py."""
ALSO = {BOUND, "other summary values follow"}
"""The second fails for whoever edits ledger or model alone; its own tests are in test_summary_keys.py."""


def failed(folder, confidence=SURE):
    """The checks that fail, but for those of ALSO. Each names the smallest fault that it finds."""
    failing = [one for one in audit_run(folder, confidence=confidence).checks if one.passed is False]
    assert all(one.would_find for one in failing)
    return {one.name for one in failing} - ALSO


def undecided(folder, confidence=SURE):
    return {one.name for one in audit_run(folder, confidence=confidence).checks if one.passed is None} - ALSO
