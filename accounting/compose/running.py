"""Epsilon while a run goes on whose rounds are not all alike: one convolution for each, instead of all over again."""

import math
from collections.abc import Sequence

import numpy as np

from accounting import require
from accounting.compose import accountant as accountants
from accounting.compose import adaptive, loss_grid, pld, rdp
from accounting.compose.accountant import Accountant
from accounting.compose.pld import LossLaws
from accounting.compose.rdp import Floats
from accounting.compose.twins import continuous
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Composed, SingleRelease, parts_of


class Running:
    """The composition of releases that are added one by one, and its epsilon at `delta`.

    typical: a release like those to come, of which about `rounds` are planned: it sets grid and orders. Every value is
    an upper bound, equal to that of `compose.accountant.epsilon` within the tolerance of the grid. "best" takes the
    smallest of the privacy loss distribution, the adaptive account of fixed-size sampling and the Renyi account; the
    first two where noise is Gaussian or nearly.
    """

    def __init__(self, *, delta: float, typical: SingleRelease, rounds: int, accountant: Accountant = "best") -> None:
        self._delta, self._rounds = require.open_probability(delta=delta), require.count(rounds=rounds)
        self._lost = 0.0
        self._curve: Floats | None = None
        self._losses: _Losses | None = None
        losses = [name for name in ("pld", "adaptive") if accountant in ("best", name)]
        if losses and delta >= pld.SMALLEST_DELTA and _near(typical, rounds) is not None:
            self._losses = _Losses(typical, rounds, delta=delta, accountants=losses)
        if accountant in ("best", "rdp"):
            self._orders = accountants.orders(typical)
            self._curve = np.zeros_like(self._orders)
        if self._losses is None and self._curve is None:
            raise UnsupportedMechanism(accountants.without_bound(accountant, typical, delta))
        self._count = 0

    def add(self, release: SingleRelease, count: int = 1) -> None:
        """`count` releases more, all like this."""
        self._count += require.count(count=count)
        self._lost += count * accountants.overflow(release)
        if self._losses is not None:
            self._losses.add(release, count)
        if self._curve is not None:
            self._curve = self._curve + count * self._of_orders(release)

    def epsilon(self, also: SingleRelease | None = None) -> float:
        """Of everything added so far, and of `also` on top."""
        if also is None and not self._count:
            return 0.0
        target = self._delta - self._lost - (accountants.overflow(also) if also is not None else 0.0)
        if target <= 0:
            return math.inf
        bounds = []
        if self._losses is not None:
            bounds.append(self._losses.epsilon(target, also))
        if self._curve is not None:
            curve = self._curve + (self._of_orders(also) if also is not None else 0.0)
            bounds.append(rdp.epsilon_from_curve(self._orders, curve, delta=target).epsilon)
        return min(bounds)

    def _of_orders(self, release: SingleRelease) -> Floats:
        # As one of many: a discrete Gaussian's Renyi curve is that of the whole composition over its number of rounds.
        many = Composed(parts=((release, self._rounds),))
        try:
            return np.asarray(rdp.curve(many, self._orders) / self._rounds)
        except UnsupportedMechanism:
            if self._losses is None:
                raise
            return np.full_like(self._orders, np.inf)  # replace-one under Poisson: the other account stands alone


class _Losses:
    """The composed privacy loss distribution on the grid of the planned rounds, and the adaptive account beside it."""

    def __init__(self, typical: SingleRelease, rounds: int, *, delta: float, accountants: Sequence[str]) -> None:
        self._rounds, self._accountants = rounds, accountants
        near = _near(typical, rounds)
        assert near is not None  # the caller has asked
        self._interval = loss_grid.interval(Composed(parts=((near[0], rounds),)))
        self._adding = adaptive.Adding(near[0], rounds=rounds, delta=delta) if "adaptive" in accountants else None
        self._known: dict[SingleRelease, tuple[LossLaws, SingleRelease, float]] = {}
        self._tilt = pld.tilt(near[0], rounds, self._interval, delta)
        self._total: LossLaws | None = None
        self._held: LossLaws | None = None
        self._closeness, self._count = 0.0, 0

    def add(self, release: SingleRelease, count: int) -> None:
        if self._tilt:
            self._held = self._tilted_with(release, count)
        self._total, self._closeness = self._with(release, count)
        if self._adding is not None:
            self._adding.add(self._one(release)[1], count)
        # The ends that a self-composition cuts may wrap around, too: 1e-15, twice the slack of five.
        self._count += count + (5 if count > 1 else 0)

    def epsilon(self, delta: float, also: SingleRelease | None) -> float:
        total, closeness = (self._total, self._closeness) if also is None else self._with(also)
        count = self._count + (also is not None)
        near = delta * math.exp(-closeness)
        if total is None:
            return 0.0
        held = self._held if also is None or not self._tilt else self._tilted_with(also)
        slack = 2 * pld.composition_slack(count)
        bounds = [total.charged_epsilon(near, slack, held) if "pld" in self._accountants else math.inf]
        if self._adding is not None:
            bounds.append(self._adding.epsilon(near, None if also is None else self._one(also)[1]))
        return min(bounds) + 2 * closeness

    def _with(self, release: SingleRelease, count: int = 1) -> tuple[LossLaws, float]:
        losses, _, closeness = self._one(release)
        if count > 1:
            losses, closeness = losses.repeated(count), count * closeness
        return losses if self._total is None else self._total.plus(losses), self._closeness + closeness

    def _tilted_with(self, release: SingleRelease, count: int = 1) -> LossLaws:
        """The sum so far and these, held so that rounding is little of a small delta."""
        losses = self._one(release)[0].tilted(self._tilt)
        losses = losses.repeated(count) if count > 1 else losses
        return losses if self._held is None else self._held.plus(losses)

    def _one(self, release: SingleRelease) -> tuple[LossLaws, SingleRelease, float]:
        """Its loss laws, the release with continuous noise, and how near that is."""
        if release not in self._known:
            near = _near(release, self._rounds)
            if near is None:
                raise UnsupportedMechanism(f"{type(release).__name__}: no privacy loss distribution is implemented.")
            twin, closeness = near
            self._known[release] = pld.distribution(twin, self._interval), twin, closeness
        return self._known[release]


def _near(release: SingleRelease, rounds: int) -> tuple[SingleRelease, float] | None:
    """The release with continuous noise and how near that is; None where there is no such thing."""
    try:
        near = continuous(Composed(parts=((release, rounds),)))
    except UnsupportedMechanism:
        return None
    ((twin, _),) = parts_of(near.mechanism)
    return (twin, near.closeness / rounds) if pld.supports(twin) else None
