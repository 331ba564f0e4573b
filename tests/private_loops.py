"""A small `dpfed.ClientLevel` loop that tests drive."""

import torch

import dpfed

PLAN = {"clients": 60, "cohort": 12, "clip_norm": 1.0, "rounds": 3, "noise_multiplier": 2.0, "randomness": "simulated"}


D = 40


def level(tmp_path=None, **changes):
    where = {} if tmp_path is None else {"ledger": tmp_path / "l.jsonl"}
    return dpfed.ClientLevel(**(PLAN | where | changes))


def rows(step, size=D):
    """Of each client always the same."""
    made = [torch.randn(size, generator=torch.Generator().manual_seed(int(one))) for one in step.cohort]
    return torch.stack(made) if made else torch.zeros(0, size)


def releases(private, updates=rows):
    return [step.release(updates(step)) for step in private.rounds()]
