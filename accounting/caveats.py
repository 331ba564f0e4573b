"""Default delta, notes beside a weak (epsilon, delta), and the message of a spent budget."""

import math

from accounting.rounding import downwards, upwards

LARGE_EPSILON = 20.0
"""Epsilon above which an event of probability p under one neighbour may have e^20 p, 485 million times p, under the
other.
"""
ALMOST_ANYTHING = "almost anything"
"""End of the note on such an epsilon."""


ABOVE_ONE_OF_N = "delta "
"""Beginning of the note on a delta above 1/n, which is printed wherever its epsilon is."""

LARGEST_DEFAULT_DELTA: dict[str, float] = {"client": 1e-4, "record": 1e-5}
"""Largest default delta, by the unit of privacy."""


def default_delta(units: int, *, unit: str = "client") -> float:
    """Return the default delta: units^-1.1, but at most 1e-4 for clients and 1e-5 for records.

    units: number of all clients, or of all training records, at least 1. n^-1.1 alone is .065 for 12 clients: a
    guarantee that permits a breach in one run of fifteen.

    >>> default_delta(650)
    0.0001
    >>> default_delta(6000) == 6000**-1.1
    True
    """
    return float(min(units**-1.1, LARGEST_DEFAULT_DELTA[unit]))


def caveats(*, epsilon: float, delta: float, units: int | None, unit: str = "client") -> tuple[str, ...]:
    """Return sentences for the notes of a guarantee; none for an epsilon and delta without a caveat.

    units: number of clients (records, for that `unit`), or a lower bound of it; None: unknown.
    """
    return (*of_delta(delta, units=units, unit=unit), *_epsilon_note(epsilon, delta))


def of_delta(delta: float, *, units: int | None, unit: str = "client") -> tuple[str, ...]:
    """Return the note on a delta above 1/n.

    Releasing the whole data of one of n, drawn at random, is (0, 1/n)-private under replace-one: from there on a
    guarantee does not exclude a breach.
    """
    if units is None or delta * units <= 1:
        return ()
    return (
        f"{ABOVE_ONE_OF_N}{upwards(delta)} is above 1/{unit}s = 1/{units}: it allows releasing one {unit}'s data "
        "outright with that probability",
    )


def _epsilon_note(epsilon: float, delta: float) -> tuple[str, ...]:
    if math.isinf(epsilon):
        return ("epsilon is infinite: nothing is guaranteed",)
    if epsilon > LARGE_EPSILON:
        return (
            f"epsilon {upwards(epsilon)} is above {upwards(LARGE_EPSILON)}: it allows likelihood ratios of "
            f"e^{upwards(epsilon)} between neighbours, {ALMOST_ANYTHING}",
        )
    if epsilon == 0:
        return (
            f"epsilon is 0 because delta {upwards(delta)} covers all that is released, not because nothing is: with "
            "that probability anything may be revealed",
        )
    return ()


def no_round_fits(
    whose: str, *, allowed: float, after: float, delta: float, advice: str, spent: float | None = None
) -> str:
    """Return the message for a budget without room for one round.

    whose: names the budget: an argument, a TOML key, a file. after: epsilon with one round; spent: epsilon without it,
    if other runs draw from the same budget.
    """
    left = "" if spent is None else f", of which {downwards(max(allowed - spent, 0.0))} is left"
    return (
        f"{whose}: not even one round fits. It would bring epsilon to {upwards(after)} at delta {upwards(delta)}; "
        f"allowed is {downwards(allowed)}{left}. {advice}"
    )
