"""Does a sampler draw by the law that is accounted for it?"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from accounting.mechanisms import PoissonSampling
from dpfed.audit.cohort_law import poisson_finding, size_law
from dpfed.audit.round_checks import FALSE_ALARM, Check
from dpfed.randomness import Randomness
from dpfed.sampling import Sampler


def sampler_check(sampler: Sampler, randomness: Randomness, rounds: int = 200) -> Check:
    """Cohort sizes and members have the law that is accounted: a constant size, or independent coins.

    Sizes exactly (`cohort_law`); that every client is drawn about as often as every other by chi-square, upper tail, in
    its normal approximation. Fails on a correct sampler with probability about FALSE_ALARM.
    """
    q, clients = sampler.law.probability, sampler.clients
    cohorts = [sampler.sample(randomness, number) for number in range(rounds)]
    sizes = [len(cohort) for cohort in cohorts]
    drawn = np.bincount(np.concatenate(cohorts), minlength=clients)
    whole = all(len(np.unique(cohort)) == len(cohort) for cohort in cohorts) and len(drawn) == clients
    if not isinstance(sampler.law, PoissonSampling):
        fits = all(size == round(q * clients) for size in sizes)
        detail = f"{rounds} cohorts of {min(sizes)} to {max(sizes)} clients, {sampler.law.name} sampling charged"
    else:
        finding, detail = poisson_finding(size_law(sampler, clients), round(sampler.expected), sizes, FALSE_ALARM / 2)
        fits = finding is True
    uneven = 0.0
    if q < 1:
        members = float(((drawn - rounds * q) ** 2).sum() / (rounds * q * (1 - q)))
        uneven = (members - clients) / math.sqrt(2 * clients)
    return Check(
        name="sampler",
        passed=fits and whole and uneven < 2 - float(ndtri(FALSE_ALARM / 2)),
        detail=f"{detail.rstrip('.')}; how often each client came is off by {uneven:.1f} standard deviations",
    )
