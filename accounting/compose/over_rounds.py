"""Epsilon after 1, 2, ... rounds of one release: requested before each round of a run."""

import itertools
import math
from collections.abc import Iterator

from accounting.compose import adaptive, pld, rdp
from accounting.compose.accountant import (
    Accountant,
    epsilon,
    exact_epsilon,
    has_exact,
    without_bound,
)
from accounting.compose.twins import allowed_loss, continuous, overflow, plain_shift
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import Composed, Mechanism, SingleRelease, parts_of, schedule_of


def epsilons(
    mechanism: SingleRelease, *, delta: float, rounds: int, accountant: Accountant = "best"
) -> Iterator[float]:
    """Yield epsilon after 1, 2, ... rounds of `mechanism`, each an upper bound, quickly: for progress and for stopping.

    rounds: number of planned rounds. Equal to `epsilon` of the composition within the tolerance of the grid.
    """
    streams: list[Iterator[float]] = []
    plain = plain_shift(mechanism) is not None and accountant in ("best", "pld")
    losses = accountant in ("best", "pld", "adaptive")
    gaussian = _gaussian_epsilons(mechanism, delta, rounds, accountant) if losses else None
    if gaussian is not None:
        streams.append(gaussian)
    if plain:
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
        raise UnsupportedMechanism(without_bound(accountant, mechanism, delta))
    return map(min, zip(*streams, strict=False))


def _exact_epsilons(mechanism: SingleRelease, delta: float) -> Iterator[float]:
    for count in itertools.count(1):
        run = Composed(parts=((mechanism, count),))
        yield exact_epsilon(run, delta=delta) if has_exact(run) else math.inf


def _sampled_epsilons(
    twin: SingleRelease, delta: float, rounds: int, lost: float, accountant: Accountant
) -> Iterator[float] | None:
    """Yield epsilon by loss distributions, by the adaptive account, or the smaller of both."""
    one = pld.epsilons(twin, delta=delta, rounds=rounds, lost=lost) if accountant != "adaptive" else None
    two = adaptive.epsilons(twin, delta=delta, rounds=rounds, lost=lost) if accountant != "pld" else None
    return map(min, zip(one, two, strict=False)) if one is not None and two is not None else one or two


def _gaussian_epsilons(
    mechanism: SingleRelease, delta: float, rounds: int, accountant: Accountant
) -> Iterator[float] | None:
    """Return the closed form or the privacy loss distribution of (nearly) Gaussian noise; None for anything else."""
    try:
        near = continuous(Composed(parts=((mechanism, rounds),)), lost=allowed_loss(delta, rounds))
    except UnsupportedMechanism:
        return None
    ((twin, _),) = parts_of(near.mechanism)
    each = near.closeness / rounds
    # (delta - T overflow) e^(-T each) >= delta - T lost
    lost = overflow(mechanism) + near.lost / rounds + delta * each
    if plain_shift(twin) is not None:
        stream = _analytic_epsilons(twin, delta, lost)
    elif delta >= pld.SMALLEST_DELTA and pld.supports(twin):
        if near.pairwise and accountant == "adaptive":
            return None
        sampled = _sampled_epsilons(twin, delta, rounds, lost, "pld" if near.pairwise else accountant)
        if sampled is None:
            return None
        stream = sampled
    else:
        return None
    return (stated + 2 * count * each for count, stated in enumerate(stream, start=1))


def _analytic_epsilons(twin: SingleRelease, delta: float, lost: float) -> Iterator[float]:
    """Yield epsilon of Gaussians that are one Gaussian together: plain, or in a public order."""
    for count in itertools.count(1):
        target, shift = delta - count * lost, plain_shift(Composed(parts=((twin, count),)))
        assert shift is not None  # the caller has asked
        yield smallest_epsilon(target, mu=shift) if target > 0 else math.inf


def _schedule_epsilon(mechanism: SingleRelease, count: int, delta: float) -> float:
    """Return epsilon of the first `count` rounds by Renyi curves; infinite if the schedule is shorter."""
    schedule = schedule_of(mechanism)
    if schedule is not None and schedule.ends_after is not None and count > schedule.ends_after:
        return math.inf
    return epsilon(Composed(parts=((mechanism, count),)), delta=delta, accountant="rdp")


def _rdp_epsilons(mechanism: SingleRelease, delta: float, rounds: int) -> Iterator[float]:
    if schedule_of(mechanism) is not None:  # rounds that belong together
        return (_schedule_epsilon(mechanism, count, delta) for count in itertools.count(1))
    run = Composed(parts=((mechanism, rounds),))
    streams = [
        _curve_epsilons(one, overflow(mechanism) + lost / rounds, delta, rounds) for one, lost in rdp.choices(run)
    ]
    return streams[0] if len(streams) == 1 else map(min, *streams)


def _curve_epsilons(run: Mechanism, silent: float, delta: float, rounds: int) -> Iterator[float]:
    """Yield epsilon by the Renyi curve of `run`, all its rounds; `silent` is subtracted from delta in each."""
    at = rdp.orders(run)
    curve = rdp.curve(run, at) / rounds
    return (
        rdp.epsilon_from_curve(at, count * curve, delta=delta - count * silent).epsilon
        if delta > count * silent
        else math.inf
        for count in itertools.count(1)
    )
