"""Did clients take part as the schedule says that their epsilon rests on: not too often, not too soon, drawn anew?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from accounting.mechanisms import Allocation, BallsAndBins, CorrelatedRounds, MinSeparation, Schedule
from dpfed.audit.verdict import chance_in_words

Ids = NDArray[np.int64]
Finding = tuple[bool | None, str]


def schedule_kept(law: Schedule, cohorts: Sequence[Ids], clients: int, *, alpha: float) -> Finding:
    """Claim: cohorts that keep to the schedule fail with probability at most alpha.

    cohorts: sorted ids of the rounds from the first on. Exactly: who takes part twice in an epoch or in none of its
    rounds, more often than allocated, before the rest is over, or out of the public order. By chance: whether epochs
    are drawn anew (balls-and-bins).
    """
    if isinstance(law, BallsAndBins):
        return _bins(law, cohorts, clients, alpha)
    if isinstance(law, Allocation):
        return _allocated(law, cohorts, clients)
    if isinstance(law, MinSeparation | CorrelatedRounds):
        return _rested(law, cohorts, clients)
    wrong = [
        number
        for number, ids in enumerate(cohorts, 1)
        if not np.array_equal(ids, np.arange((number - 1) % law.period, clients, law.period))
    ]
    if wrong:
        return False, f"round {wrong[0]}: the cohort is not the one of the public order."
    return True, f"{len(cohorts)} cohorts are those of the public order."


def times_of(cohorts: Sequence[Ids], clients: int) -> NDArray[np.int64]:
    """How often each client takes part."""
    return np.bincount(np.concatenate([*cohorts, np.zeros(0, dtype=np.int64)]), minlength=clients)


def _bins(law: BallsAndBins, cohorts: Sequence[Ids], clients: int, alpha: float) -> Finding:
    epochs = [cohorts[start : start + law.bins] for start in range(0, len(cohorts), law.bins)]
    for number, epoch in enumerate(epochs, 1):
        times = times_of(epoch, clients)
        if int(times.max()) > 1:
            return False, f"epoch {number}: client {int(times.argmax())} takes part {int(times.max())} times, not once."
        if len(epoch) == law.bins and int(times.min()) < 1:
            return False, f"epoch {number}: client {int(times.argmin())} takes part in none of its {law.bins} rounds."
    whole = [epoch for epoch in epochs if len(epoch) == law.bins]
    pairs = [(one, two) for k, two in enumerate(whole) for one in whole[max(k - 5, 0) : k]]
    for one, two in pairs if law.bins > 1 else []:
        same = sum(len(np.intersect1d(a, b, assume_unique=True)) for a, b in zip(one, two, strict=True))
        chance = binom(clients, 1 / law.bins)
        p = min(2 * min(float(chance.cdf(same)), float(chance.sf(same - 1))), 1.0)
        if p < alpha / len(pairs):
            return False, (
                f"{same} clients have the same round in two epochs, {clients / law.bins:.1f} are expected (p = "
                f"{p:.2g}): epochs are not drawn anew. {chance_in_words(alpha)}"
            )
    return True, f"{len(whole)} whole epochs with every client once, drawn anew; {len(cohorts)} rounds in all."


def _allocated(law: Allocation, cohorts: Sequence[Ids], clients: int) -> Finding:
    times = times_of(cohorts, clients)
    if int(times.max()) > law.participations:
        return False, f"client {int(times.argmax())} takes part {int(times.max())} times, not {law.participations}."
    if len(cohorts) >= law.rounds and int(times.min()) < law.participations:
        return False, f"client {int(times.argmin())} takes part {int(times.min())} times, not {law.participations}."
    return True, f"no client takes part more than {law.participations} times in {len(cohorts)} of {law.rounds} rounds."


def _rested(law: MinSeparation | CorrelatedRounds, cohorts: Sequence[Ids], clients: int) -> Finding:
    last = np.full(clients, -law.separation)
    for number, ids in enumerate(cohorts):
        early = ids[number - last[ids] < law.separation]
        if len(early):
            gap = number - int(last[early[0]])
            return (
                False,
                f"round {number + 1}: client {int(early[0])} takes part after {gap} rounds, {law.separation} due.",
            )
        last[ids] = number
    return True, f"no client takes part twice within {law.separation} rounds, in {len(cohorts)} rounds."
