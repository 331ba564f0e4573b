"""Checks that samplers draw cohorts with the accounted distribution, and that secure draws never repeat."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, pdtrc

from accounting.mechanisms import CappedPoissonSampling, PoissonSampling
from accounting.mechanisms.samplings import cap_of
from dpfed.audit.evidence.cohort_distribution import poisson_finding, size_distribution
from dpfed.audit.verdict import FALSE_ALARM, Check
from dpfed.participation.sampling import Sampler, sampler
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.round import Method, draw_round_cohort
from dpfed.seeds import Seeds

_CLIENTS, _COHORT = 20, 1

_CALLS = 200_000

_WORDS = 4

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
        found.append(sampler_check(_SamplerOfRounds(drawing), drawing.randomness, rounds))
    wrong = [one for one in found if not one.passed]
    return wrong[0] if wrong else replace(found[0], detail="; ".join(dict.fromkeys(one.detail for one in found)))


class _SamplerOfRounds:
    """Sampler that draws each cohort by the code of a method's round."""

    def __init__(self, method: Method) -> None:
        self._method, who = method, method.sampler
        self.clients, self.expected, self.law = who.clients, who.expected, who.law

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        return draw_round_cohort(self._method, number)


def sampler_check(who: Sampler, randomness: Randomness, rounds: int = 200) -> Check:
    """Check that cohort sizes and members have the accounted distribution.

    That is a constant size, or independent draws of clients, with or without a cap. Sizes are tested exactly
    (`cohort_distribution`). Equal frequencies of all clients are tested by the upper tail of chi-square in its normal
    approximation. A correct sampler fails with probability about FALSE_ALARM.
    """
    q, clients = who.law.probability, who.clients
    sized = size_distribution(who)
    if cap_of(who.law) is not None:
        q = (sized.smallest_size + float(sized.mass @ np.arange(len(sized.mass)))) / clients
    cohorts = [who.sample(randomness, number) for number in range(rounds)]
    sizes = [len(cohort) for cohort in cohorts]
    drawn = np.bincount(np.concatenate(cohorts), minlength=clients)
    whole = all(len(np.unique(cohort)) == len(cohort) for cohort in cohorts) and len(drawn) == clients
    if not isinstance(who.law, PoissonSampling | CappedPoissonSampling):
        fits = all(size == round(q * clients) for size in sizes)
        detail = f"{rounds} cohorts of {min(sizes)} to {max(sizes)} clients, {who.law.name} sampling charged"
    else:
        finding, detail = poisson_finding(sized, round(who.expected), sizes, FALSE_ALARM / 2)
        fits = finding is True
    uneven = 0.0
    if q < 1:
        members = float(((drawn - rounds * q) ** 2).sum() / (rounds * q * (1 - q)))
        uneven = (members - clients) / math.sqrt(2 * clients)
    return Check(
        name="sampler",
        passed=fits and whole and uneven < 2 - float(ndtri(FALSE_ALARM / 2)),
        detail=f"{detail.rstrip('.')}; the clients' frequencies deviate by {uneven:.1f} standard deviations",
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
        return Check(name="secure draws", passed=False, detail="draws repeat after an equal seed or in a new process")
    first = np.array([drawn_from.bits(1, "audit", 0)[0] for _ in range(_CALLS)])
    again = _CALLS - len(np.unique(first))
    expected = _CALLS**2 / 2 * 2.0**-64
    return Check(
        name="secure draws",
        passed=again == 0 or float(pdtrc(again - 1, expected)) >= FALSE_ALARM,
        detail=f"fresh after the same seed and in a new process; {again} of {_CALLS:,} draws were repeated",
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
