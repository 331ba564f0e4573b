"""Are draws of `run.randomness = "secure"` fresh, or do they come from a seed?"""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import torch
from scipy.special import pdtrc

from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.randomness import Secure

_CALLS = 200_000
_WORDS = 4
_FRESH = "from dpfed.randomness import Secure; print(Secure().bits(4, 'noise.sum', 0).tolist())"


def secure_check(source: Secure | None = None) -> Check:
    """No draw comes again: not under the same name, not after all libraries' seeds were set to the same number, not in
    a new process, not in 200,000 calls.

    64 fresh bits repeat in so many calls with probability 1.1e-9; bits that a call makes of 32 bits of entropy do with
    probability 0.99. What it cannot see: one seed of 32 bits or more for a whole process.
    """
    drawn_from = Secure() if source is None else source
    named = [_after_the_same_seed(drawn_from) for _ in range(2)]
    processes = [_in_a_new_process() for _ in range(2)] if source is None else [b"1", b"2"]
    if named[0] == named[1] or processes[0] == processes[1]:
        return Check(name="secure draws", passed=False, detail="the same draws came again, from a seed")
    first = np.array([drawn_from.bits(1, "audit", 0)[0] for _ in range(_CALLS)])
    again = _CALLS - len(np.unique(first))
    expected = _CALLS**2 / 2 * 2.0**-64
    return Check(
        name="secure draws",
        passed=again == 0 or float(pdtrc(again - 1, expected)) >= FALSE_ALARM,
        detail=f"fresh after the same seed and in a new process; {again} of {_CALLS:,} words came twice",
    )


def _after_the_same_seed(source: Secure) -> list[int]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    drawn = source.bits(_WORDS, "noise.sum", 0).tolist() + source.subset(8, 1 << 30, "cohort", 0).tolist()
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    return [int(word) for word in drawn]


def _in_a_new_process() -> bytes:
    done = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, check=True)
    return done.stdout
