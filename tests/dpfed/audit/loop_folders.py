"""Ledgers of training loops of one's own: made, tampered with, and audited in tests."""

import json

import torch

import dpfed
from accounting.ledger.hash_chain import chained_line
from dpfed.audit.run import audit_run

D = 1000
SURE = 1 - 1e-6
"""Confidence at which no seed of these tests fails by chance."""
PLAN = {"clients": 60, "cohort": 12, "clip_norm": 1.0, "rounds": 6, "noise_multiplier": 2.0}


def ran(folder, *, skip=(), skip_if=lambda step: False, **plan):
    """A loop that has gone through all its rounds."""
    private = dpfed.ClientLevel(ledger=folder / "l.jsonl", **(PLAN | plan))
    for step in private.rounds():
        if step.round not in skip and not skip_if(step):
            step.release(torch.randn(len(step.cohort), D, generator=torch.Generator().manual_seed(step.round)))
    return private


def change(ledger, edit):
    """As a forger would: `edit(lines)`, and every hash anew."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    edit(lines)
    chain, content = "", b""
    for line in lines:
        line.pop("chain", None)
        one, chain = chained_line(line, chain)
        content += one
    ledger.write_bytes(content)


def failed(folder, confidence=SURE):
    return {one.name for one in audit_run(folder, confidence=confidence).checks if one.passed is False}


def undecided(folder, confidence=SURE):
    return {one.name for one in audit_run(folder, confidence=confidence).checks if one.passed is None}
