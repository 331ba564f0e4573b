"""Ledgers of training loops of one's own."""

import torch

import dpfed

D = 1000
PLAN = {"clients": 60, "cohort": 12, "clip_norm": 1.0, "rounds": 6, "noise_multiplier": 2.0}


def ran(folder, *, skip=(), skip_if=lambda step: False, **plan):
    """A loop that has gone through all its rounds."""
    private = dpfed.ClientLevel(ledger=folder / "l.jsonl", **(PLAN | plan))
    for step in private.rounds():
        if step.round not in skip and not skip_if(step):
            step.release(torch.randn(len(step.cohort), D, generator=torch.Generator().manual_seed(step.round)))
    return private
