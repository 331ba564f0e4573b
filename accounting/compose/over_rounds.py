"""Iterators of epsilon after 1, 2, ... rounds of one release, for a check before each round of a run."""

import itertools
import math
from collections.abc import Iterator

from accounting.compose import adaptive, pld, rdp
from accounting.compose.accountant import (
    Accountant,
    epsilon,
    exact_epsilon,
    has_exact,
    no_bound_message,
)
from accounting.compose.twins import allowed_loss, continuous, overflow, plain_shift
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import Composed, Mechanism, SingleRelease, parts_of, schedule_of


def epsilons(
    mechanism: SingleRelease, *, delta: float, rounds: int, accountant: Accountant = "best"
) -> Iterator[float]:
    """Yield epsilon after 1, 2, ... rounds of `mechanism`, each an upper bound. It is fast enough for progress bars and
    stopping rules.

    rounds: number of planned rounds. Each value equals `epsilon` of the composition within the tolerance of the grid.
    """
    streams: list[Iterator[float]] = []
    is_one_gaussian = plain_shift(mechanism) is not None and accountant in ("best", "pld")
    uses_losses = accountant in ("best", "pld", "adaptive")
    gaussian = _gaussian_epsilons(mechanism, delta, rounds, accountant) if uses_losses else None
    if gaussian is not None:
        streams.append(gaussian)
    if is_one_gaussian:
        return streams[0]
    if accountant == "exact" or (accountant == "best" and has_exact(Composed(parts=((mechanism, rounds),)))):
        streams.append(_exact_epsilons(mechanism, delta))
    try:
        if accountant in ("best", "rdp"):
            streams.append(_rdp_epsilons(mechanism, delta, rounds))
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


def _sampled_epsilons(
    twin: SingleRelease, delta: float, rounds: int, lost: float, accountant: Accountant
) -> Iterator[float] | None:
    """Return epsilons by loss distributions, by the adaptive account, or the smaller of both; None without an
    account.
    """
    one = pld.epsilons(twin, delta=delta, rounds=rounds, lost=lost) if accountant != "adaptive" else None
    two = adaptive.epsilons(twin, delta=delta, rounds=rounds, lost=lost) if accountant != "pld" else None
    return map(min, zip(one, two, strict=False)) if one is not None and two is not None else one or two


def _gaussian_epsilons(
    mechanism: SingleRelease, delta: float, rounds: int, accountant: Accountant
) -> Iterator[float] | None:
    """Return epsilons by closed form or loss distributions for (nearly) Gaussian noise; None for other noise."""
    try:
        replacement = continuous(Composed(parts=((mechanism, rounds),)), lost=allowed_loss(delta, rounds))
    except UnsupportedMechanism:
        return None
    ((twin, _),) = parts_of(replacement.mechanism)
    closeness_per_round = replacement.closeness / rounds
    # (delta - T overflow) e^(-T each) >= delta - T lost
    lost = overflow(mechanism) + replacement.lost / rounds + delta * closeness_per_round
    if plain_shift(twin) is not None:
        stream = _analytic_epsilons(twin, delta, lost)
    elif delta >= pld.SMALLEST_DELTA and pld.supports(twin):
        if replacement.pairwise and accountant == "adaptive":
            return None
        sampled = _sampled_epsilons(twin, delta, rounds, lost, "pld" if replacement.pairwise else accountant)
        if sampled is None:
            return None
        stream = sampled
    else:
        return None
    return (stated + 2 * count * closeness_per_round for count, stated in enumerate(stream, start=1))


def _analytic_epsilons(twin: SingleRelease, delta: float, lost: float) -> Iterator[float]:
    """Yield epsilon of rounds that compose to one Gaussian: unsampled, or in a public order."""
    for count in itertools.count(1):
        target, shift = delta - count * lost, plain_shift(Composed(parts=((twin, count),)))
        assert shift is not None  # the caller has checked
        yield smallest_epsilon(target, mu=shift) if target > 0 else math.inf


def _schedule_epsilon(mechanism: SingleRelease, count: int, delta: float) -> float:
    """Return epsilon of the first `count` rounds by Renyi curves; infinite if the schedule is shorter."""
    schedule = schedule_of(mechanism)
    if schedule is not None and schedule.ends_after is not None and count > schedule.ends_after:
        return math.inf
    return epsilon(Composed(parts=((mechanism, count),)), delta=delta, accountant="rdp")


def _rdp_epsilons(mechanism: SingleRelease, delta: float, rounds: int) -> Iterator[float]:
    if schedule_of(mechanism) is not None:  # rounds that are accounted jointly
        return (_schedule_epsilon(mechanism, count, delta) for count in itertools.count(1))
    run = Composed(parts=((mechanism, rounds),))
    streams = [
        _curve_epsilons(one, overflow(mechanism) + lost / rounds, delta, rounds)
        for one, lost in rdp.valid_mechanisms(run)
    ]
    return streams[0] if len(streams) == 1 else map(min, *streams)


def _curve_epsilons(run: Mechanism, lost_per_round: float, delta: float, rounds: int) -> Iterator[float]:
    """Yield epsilon by the Renyi curve of `run`, the composition of all rounds. `lost_per_round` is subtracted from
    delta for each round.
    """
    orders = rdp.orders(run)
    curve = rdp.curve(run, orders) / rounds
    return (
        rdp.epsilon_from_curve(orders, count * curve, delta=delta - count * lost_per_round).epsilon
        if delta > count * lost_per_round
        else math.inf
        for count in itertools.count(1)
    )
