"""Checks that samplers draw cohorts with the accounted distribution, and that secure draws never repeat."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import pdtrc
from scipy.stats import binom

from accounting.cohorts import Sampler
from accounting.mechanisms import Schedule
from dpfed.audit.evidence.cohort_distribution import sizes_finding
from dpfed.audit.evidence.cohort_members import members_finding
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.participation.sampling import sampler
from dpfed.randomness import Secure, Simulated
from dpfed.round import Method, draw_round_cohort
from dpfed.seeds import Seeds

_CLIENTS, _COHORT = 20, 1

_CALLS = 200_000

_WORDS = 4

_SEEDS_FOUND = "draws from a seed of a library, or from 32 bits of entropy each"

_FRESH = "from dpfed.randomness import Secure; print(Secure().bits(4, 'noise.sum', 0).tolist())"


def cohorts_check(method: Method, seeds: Seeds, others: Iterable[Sampler], rounds: int = 200) -> Check:
    """Check the sampler of `method`, the samplers `others`, and three small ones by `sampler_check`; return one check.

    Cohorts are drawn as in a round. The small samplers include one whose cohorts are sometimes empty (Poisson
    sampling), and one whose cohorts exceed the cap in two of five rounds.
    """
    small = [sampler(name, clients=_CLIENTS, cohort=_COHORT) for name in ("poisson", "fixed")]
    overfull = sampler("poisson", clients=_CLIENTS, cohort=_CLIENTS // 2, cap=_CLIENTS // 2)
    found = []
    for who in (method.sampler, *others, *small, overfull):
        drawing = replace(method, sampler=who, canaries=None, randomness=Simulated(seeds=seeds))
        found.append(sampler_check(who, lambda number, drawing=drawing: draw_round_cohort(drawing, number), rounds))  # type: ignore[misc]
    wrong = [one for one in found if not one.passed]
    fine = f"{rounds} cohorts of each of {len(found)} samplers: sizes, members, overlaps and repetitions as charged"
    return wrong[0] if wrong else replace(found[0], detail=fine)


def sampler_check(who: Sampler, drawn: Callable[[int], NDArray[np.int64]], rounds: int = 200) -> Check:
    """Check drawn cohorts by the tests of recorded ones: sizes, members, overlaps, repetitions, schedules.

    drawn: function that draws the cohort of a round. A correct sampler fails with probability at most FALSE_ALARM.
    """
    cohorts = [np.sort(drawn(number)) for number in range(rounds)]
    found = [sizes_finding(who, [len(one) for one in cohorts], FALSE_ALARM / 2)]
    if who.law.probability < 1 or isinstance(who.law, Schedule):
        ids = getattr(who, "ids", None)
        numbered = list(enumerate(cohorts, 1))
        found.append(members_finding(who.law, who.clients, numbered, alpha=FALSE_ALARM / 2, ids=ids))
    wrong = [one for one in found if one[0] is False]
    mean, often = rounds * who.law.probability, 0
    with suppress(ValueError):
        often = int(binom.isf(FALSE_ALARM / 12 / who.clients, rounds, who.law.probability)) + 1
    return Check(
        name="sampler",
        passed=not wrong,
        detail=" ".join(one[1] for one in wrong or found),
        would_find=f"a cohort that is drawn twice, or a client drawn {often} times in {rounds} rounds in place of "
        f"{mean:.0f}",
    )


def secure_check(source: Secure | None = None) -> Check:
    """Check that no draw repeats.

    Draws are compared under equal names, after equal seeds of all libraries, in two new processes, and in 200,000
    calls. In that number of calls, 64 fresh bits repeat with probability 1.1e-9; bits computed from 32 bits of entropy
    repeat with probability 0.99. One seed of 32 bits or more for a whole process is not found.
    """
    drawn_from = Secure() if source is None else source
    named = [_draws_after_equal_seeds(drawn_from) for _ in range(2)]
    processes = [_draws_of_new_process() for _ in range(2)] if source is None else [b"1", b"2"]
    if named[0] == named[1] or processes[0] == processes[1]:
        return Check(
            name="secure draws",
            passed=False,
            detail="draws repeat after an equal seed or in a new process",
            would_find=_SEEDS_FOUND,
        )
    first = np.array([drawn_from.bits(1, "audit", 0)[0] for _ in range(_CALLS)])
    again = _CALLS - len(np.unique(first))
    expected = _CALLS**2 / 2 * 2.0**-64
    return Check(
        name="secure draws",
        passed=again == 0 or float(pdtrc(again - 1, expected)) >= FALSE_ALARM,
        detail=f"fresh after the same seed and in a new process; {again} of {_CALLS:,} draws were repeated",
        would_find=_SEEDS_FOUND,
    )


def _draws_after_equal_seeds(source: Secure) -> list[int]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    drawn = source.bits(_WORDS, "noise.sum", 0).tolist() + source.subset(8, 1 << 30, "cohort", 0).tolist()
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    return [int(word) for word in drawn]


def _draws_of_new_process() -> bytes:
    done = subprocess.run([sys.executable, "-c", _FRESH], capture_output=True, check=True)
    return done.stdout
