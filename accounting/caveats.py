"""Default delta, notes beside a weak (epsilon, delta), and the message of a spent budget."""

import math

from accounting.rounding import downwards, upwards

LARGE_EPSILON = 20.0
"""Largest epsilon without a note. Above it an event may be e^20, or 485 million, times as likely under one neighbour as
under the other.
"""
EPSILON_NOTE_END = "almost anything"
"""End of the note on an epsilon above `LARGE_EPSILON`."""


DELTA_NOTE_START = "delta "
"""Start of the note on a delta above 1/n. The note is printed wherever the epsilon of that delta is printed."""

LARGEST_DEFAULT_DELTA: dict[str, float] = {"client": 1e-4, "record": 1e-5}
"""Largest default delta, by the unit of privacy."""


def default_delta(units: int, *, unit: str = "client") -> float:
    """Return the default delta: units^-1.1, but at most 1e-4 for clients and 1e-5 for records.

    units: number of all clients, or of all training records, at least 1. Without the cap, 12 clients would have delta
    0.065: a guarantee that permits a breach in one run of fifteen.

    >>> default_delta(650)
    0.0001
    >>> default_delta(6000) == 6000**-1.1
    True
    """
    return float(min(units**-1.1, LARGEST_DEFAULT_DELTA[unit]))


def caveats(*, epsilon: float, delta: float, units: int | None, unit: str = "client") -> tuple[str, ...]:
    """Return sentences for the notes of a guarantee; none for an epsilon and delta without a caveat.

    units: number of clients, or of records for unit "record", or a lower bound of that number; None if unknown.
    """
    return (*delta_note(delta, units=units, unit=unit), *_epsilon_note(epsilon, delta))


def delta_note(delta: float, *, units: int | None, unit: str = "client") -> tuple[str, ...]:
    """Return the note on a delta above 1/n.

    Releasing the whole data of one of n, drawn at random, is (0, 1/n)-private under replace-one. A guarantee with a
    larger delta does not exclude such a breach.
    """
    if units is None or delta * units <= 1:
        return ()
    return (
        f"{DELTA_NOTE_START}{upwards(delta)} is above 1/{unit}s = 1/{units}: it allows releasing one {unit}'s data "
        "outright with that probability",
    )


def few_clients_note(*, clients: int, cohort: int, noise_multiplier: float | None) -> tuple[str, ...]:
    """Return the note on client-level noise that hides the mean of a few clients: above a tenth of the clip norm on
    every coordinate, for fewer than 100 clients.

    In d = 100 coordinates such noise is as long as the clip norm itself.
    """
    if noise_multiplier is None or clients >= 100 or noise_multiplier <= 0.1 * cohort:
        return ()
    ratio = upwards(noise_multiplier / cohort, digits=2)
    return (
        f"few clients: on each coordinate of the mean of {cohort} the noise is {ratio} clip norms, and few models learn"
        " under it. With records as the unit of privacy the noise is far smaller; or find more clients",
    )


def _epsilon_note(epsilon: float, delta: float) -> tuple[str, ...]:
    if math.isinf(epsilon):
        return ("epsilon is infinite: nothing is guaranteed",)
    if epsilon > LARGE_EPSILON:
        return (
            f"epsilon {upwards(epsilon)} is above {upwards(LARGE_EPSILON)}: it allows likelihood ratios of "
            f"e^{upwards(epsilon)} between neighbours, {EPSILON_NOTE_END}",
        )
    if epsilon == 0:
        return (
            f"epsilon is 0 because delta {upwards(delta)} covers all that is released, not because nothing is: with "
            "that probability anything may be revealed",
        )
    return ()


def no_round_fits_message(
    whose: str, *, allowed: float, after: float, delta: float, advice: str, spent: float | None = None
) -> str:
    """Return the message for a budget without room for one round.

    whose: name of the budget: an argument, a TOML key or a file. after: epsilon with one round; spent: epsilon without
    that round, if other runs draw from the same budget.
    """
    remaining = "" if spent is None else f", of which {downwards(max(allowed - spent, 0.0))} is left"
    return (
        f"{whose}: not even one round fits. It would bring epsilon to {upwards(after)} at delta {upwards(delta)}; "
        f"allowed is {downwards(allowed)}{remaining}. {advice}"
    )
