"""Iterators of epsilon after 1, 2, ... rounds of one release, for a check before each round of a run."""

import itertools
import math
from collections.abc import Iterator

from accounting.compose.accountant import Accountant, epsilon, exact_epsilon, has_exact, no_bound_message
from accounting.compose.running import Running
from accounting.compose.twins import plain_shift
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Composed, SingleRelease


def epsilons(
    mechanism: SingleRelease, *, delta: float, rounds: int, accountant: Accountant = "best"
) -> Iterator[float]:
    """Yield epsilon after 1, 2, ... rounds of `mechanism`, each an upper bound. It is fast enough for progress bars and
    stopping rules.

    rounds: number of planned rounds. Each value equals `epsilon` of the composition within the tolerance of the grid.
    """
    if plain_shift(mechanism) is not None and accountant in ("best", "pld"):
        return (epsilon(Composed(parts=((mechanism, count),)), delta=delta) for count in itertools.count(1))
    streams: list[Iterator[float]] = []
    if accountant == "exact" or (accountant == "best" and has_exact(Composed(parts=((mechanism, rounds),)))):
        streams.append(_exact_epsilons(mechanism, delta))
    if accountant in ("best", "pld", "adaptive", "rdp"):
        try:
            streams.append(_running_epsilons(mechanism, delta, rounds, accountant))
        except UnsupportedMechanism:
            if not streams:
                raise
    if not streams:
        raise UnsupportedMechanism(no_bound_message(accountant, mechanism, delta))
    return map(min, zip(*streams, strict=False))


def _exact_epsilons(mechanism: SingleRelease, delta: float) -> Iterator[float]:
    for count in itertools.count(1):
        run = Composed(parts=((mechanism, count),))
        yield exact_epsilon(run, delta=delta) if has_exact(run) else math.inf


def _running_epsilons(mechanism: SingleRelease, delta: float, rounds: int, accountant: Accountant) -> Iterator[float]:
    running = Running(delta=delta, typical=mechanism, rounds=rounds, accountant=accountant)
    running.add(mechanism)
    first = running.epsilon()  # now, so that a release without an account is refused before the first round

    def values() -> Iterator[float]:
        yield first
        while True:
            running.add(mechanism)
            yield running.epsilon()

    return values()
