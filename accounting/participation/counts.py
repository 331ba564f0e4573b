"""How often a client takes part in the first rounds of a schedule: the exact law of that number."""

import numpy as np

from accounting.gaussian.half_lines import Floats
from accounting.mechanisms.schedules import Allocation, BallsAndBins, MinSeparation, Schedule


def counts_law(schedule: Schedule, count: int) -> Floats:
    """Probabilities of 0, 1, 2, ... participations of one client in the first `count` rounds. Exact to rounding; of a
    cyclic order, those of the client that comes first."""
    if isinstance(schedule, BallsAndBins):
        law = np.zeros(count // schedule.bins + 2)
        law[-1] = (count % schedule.bins) / schedule.bins
        law[-2] = 1 - law[-1]
        return law
    if isinstance(schedule, Allocation):
        from scipy.stats import hypergeom

        numbers = np.arange(schedule.participations + 1)
        return np.asarray(hypergeom.pmf(numbers, schedule.rounds, schedule.participations, count), dtype=float)
    if not isinstance(schedule, MinSeparation):
        law = np.zeros(schedule.most_participations(count) + 1)
        law[-1] = 1.0
        return law
    return _renewals(schedule, count)


def _renewals(schedule: MinSeparation, count: int) -> Floats:
    """By the chain over (rest left, participations so far): stationary at the beginning."""
    rest, coin = schedule.separation - 1, schedule.coin
    state = np.zeros((rest + 1, schedule.most_participations(count) + 2))
    state[:, 0] = schedule.probability
    state[0, 0] = 1 - rest * schedule.probability
    for _ in range(count):
        free = state[0].copy()
        taking_part = np.append(0.0, coin * free[:-1])
        state[0] = (1 - coin) * free
        if rest:
            state[0] += state[1]
            state[1:-1] = state[2:]
            state[-1] = taking_part
        else:
            state[0] += taking_part
    return np.asarray(state.sum(axis=0))
