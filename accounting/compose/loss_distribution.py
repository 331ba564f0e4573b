"""Privacy loss distributions on a grid: composition by the fast Fourier transform, epsilon and delta."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting.arrays import Floats

_TILTS = np.geomspace(0.01, 300, 60)
LITTLE = 1e-6
"""Largest share of delta for the rounding errors of a tilted composition."""
CUT = 1e-15  # mass of the truncated ends of a composition, which is charged as an infinite loss


@dataclass(frozen=True, kw_only=True, eq=False)
class LossDistribution:
    """Masses of the losses `spacing` (lowest + k), k = 0, 1, 2, ..., and the mass of an infinite loss.

    Compositions are upper bounds except for rounding errors of the transform, about 1e-16 each, which the caller
    charges (`charged_epsilon`). In a tilted distribution the mass of a loss l is `masses` times e^(scale - tilt l). So
    rounding errors are small against a small delta.
    """

    spacing: float
    lowest: int
    masses: Floats
    infinite: float
    tilt: float = 0.0
    scale: float = 0.0

    @property
    def losses(self) -> Floats:
        """Finite losses, one for each entry of `masses`."""
        return np.asarray(self.spacing * (self.lowest + np.arange(len(self.masses), dtype=float)))

    def tilted(self, tilt: float) -> "LossDistribution":
        """Return the tilted form of this untilted distribution."""
        with np.errstate(divide="ignore"):
            logs = tilt * self.losses + np.log(np.maximum(self.masses, 0.0))
        top = float(logs.max())
        weighted = np.where(logs - top > -650, np.exp(np.maximum(logs - top, -650.0)), 0.0)  # denormal numbers are slow
        total = float(weighted.sum())
        return replace(self, masses=weighted / total, tilt=tilt, scale=top + math.log(total))

    def untilted_masses(self) -> Floats:
        """Return the untilted masses of `losses`, with 0 for masses that rounding has made negative."""
        masses = np.maximum(self.masses, 0.0)
        return masses * np.exp(np.minimum(self.scale - self.tilt * self.losses, 700.0)) if self.tilt else masses

    def charged_epsilon(self, delta: float, slack: float) -> float:
        """Return `smallest_epsilon` if transforms may have misplaced mass `slack`; infinite if `slack` is too large for
        `delta`.

        Misplaced mass at losses above epsilon adds at most slack e^(scale - tilt epsilon) to delta(epsilon).
        """
        if delta <= 0:
            return math.inf
        if not self.tilt:
            return self.smallest_epsilon(delta - slack) if slack < delta else math.inf
        found = self.smallest_epsilon(delta * (1 - LITTLE))
        most = self.scale - self.tilt * found + math.log(slack / (LITTLE * delta))
        return found if most <= 0 else math.inf

    def repeated(self, count: int) -> "LossDistribution":
        """Return the distribution of the sum of `count` independent losses, as `composed`."""
        return self if count == 1 else composed([(self, count)])

    def plus(self, other: "LossDistribution") -> "LossDistribution":
        """Return the distribution of the sum of two independent losses, one from each distribution, on their common
        grid.

        Tails with total mass at most `CUT` are removed: the upper tail becomes an infinite loss, the lower tail the
        lowest remaining loss.
        Direction of error: upper bound.
        """
        size = len(self.masses) + len(other.masses) - 1
        length = scipy.fft.next_fast_len(size, real=True)
        transform = scipy.fft.rfft(self.masses, length) * scipy.fft.rfft(other.masses, length)
        return LossDistribution(
            spacing=self.spacing,
            lowest=self.lowest + other.lowest,
            masses=scipy.fft.irfft(transform, length)[:size],
            infinite=self.infinite + other.infinite - self.infinite * other.infinite,
            tilt=self.tilt,
            scale=self.scale + other.scale,
        )._with_truncated_ends()

    def _with_truncated_ends(self) -> "LossDistribution":
        below, above = np.cumsum(self.masses), np.cumsum(self.masses[::-1])
        first = min(int(np.argmax(below > CUT / 2)), len(self.masses) - 1)
        last = max(len(self.masses) - int(np.argmax(above > CUT / 2)), first + 1)
        kept = self.masses[first:last].copy()
        kept[0] += max(float(below[first - 1]), 0.0) if first else 0.0
        beyond = max(float(above[len(above) - last - 1]), 0.0) if last < len(above) else 0.0
        end = self.spacing * (self.lowest + last)
        infinite = self.infinite + beyond * math.exp(min(self.scale - self.tilt * end, 700.0))
        return replace(self, lowest=self.lowest + first, masses=kept, infinite=infinite)

    def delta(self, epsilon: ArrayLike) -> Floats:
        """Return the sum over losses l of (1 - e^(epsilon - l))+, elementwise; infinite epsilons are allowed. Shape: as
        epsilon.

        Epsilons are processed in decreasing order, each adding the losses up to the previous epsilon. Delta is A, the
        mass above epsilon, minus the sum of e^(epsilon - l) over these losses. Rounding error: about 1e-15 of A.
        """
        assert not self.tilt  # tilted distributions are evaluated only by `charged_epsilon`
        at, losses, masses = np.asarray(epsilon, dtype=float), self.losses, self.untilted_masses()
        order = np.argsort(at, axis=None)[::-1]
        found, above, discounted, last, before = np.empty(at.size), 0.0, 0.0, len(losses), math.inf
        for place in order:
            one = float(at.flat[place])
            first = int(np.searchsorted(losses, one, side="right"))
            new = slice(first, last)
            discounted *= math.exp(one - before) if math.isfinite(before) else 0.0
            discounted += float((masses[new] * np.exp(np.maximum(one - losses[new], -745.0))).sum())
            above += float(masses[new].sum())
            found[place], last, before = self.infinite + max(above - discounted, 0.0), first, one
        return found.reshape(at.shape)

    def smallest_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 with the sum over losses l of (1 - e^(epsilon - l))+ <= delta; infinite if
        no epsilon is.

        Between two losses delta(epsilon) is A - e^epsilon B, with A the mass above and B the sum of e^-l over it. So
        the result is log((A - delta)/B) in the first interval from the right at which delta(epsilon) exceeds `delta`.
        """
        if self.infinite > delta:
            return math.inf
        losses = self.losses[::-1]
        masses = self.untilted_masses()[::-1]
        above = self.infinite + _running_sums(masses)
        # The result is not above this loss, since delta(epsilon) <= above.
        anchor_loss = losses[min(int(np.searchsorted(above, delta)), len(losses) - 1)]
        representable = losses > max(anchor_loss - 600.0, 0.0)  # so that exponents do not overflow
        losses, above = losses[representable], above[representable]
        if not len(losses):
            return 0.0
        discounted = _running_sums(masses[: len(losses)] * np.exp(anchor_loss - losses))
        over = np.flatnonzero(above - np.exp(np.minimum(losses - anchor_loss, 0.0)) * discounted > delta)
        if over.size:
            k = max(int(over[0]) - 1, 0)  # at the first, largest loss only rounding errors exceed delta
        elif losses[-1] > 1.5 * self.spacing:
            return float(losses[-1])  # the omitted losses do not affect the result
        else:
            k = len(losses) - 1
        if above[k] <= delta:
            return 0.0
        return max(0.0, float(anchor_loss) + math.log((above[k] - delta) / discounted[k]))


def certain_loss(steps: int, *, spacing: float) -> LossDistribution:
    """Return the distribution of a certain loss of `steps` steps; steps=0 is the neutral element of composition."""
    return LossDistribution(spacing=spacing, lowest=steps, masses=np.ones(1), infinite=0.0)


def tilted_for(parts: Sequence[tuple[LossDistribution, int]], delta: float) -> list[tuple[LossDistribution, int]]:
    """Return the distributions tilted such that their sum is likely near its tail of mass `delta`.

    The tilt is the exponent of Chernoff's bound on the tail. Every tilt is valid.
    """

    def bound(tilt: float) -> float:
        # The scale of a tilted distribution is log E e^(tilt l) over the finite losses l.
        return (sum(count * law.tilted(tilt).scale for law, count in parts) - math.log(delta)) / tilt

    best = min(_TILTS, key=bound)
    return [(law.tilted(best), count) for law, count in parts]


def composed(parts: Sequence[tuple[LossDistribution, int]]) -> LossDistribution:
    """Return the distribution of the sum of independent losses, `count` from each distribution, by one transform on
    their common grid.

    Both ends are truncated where Chernoff's bound on the tail is at most `CUT`. Mass beyond the ends wraps around in
    the transform, and is also charged as an infinite loss.
    Direction of error: upper bound.
    """
    if any(law.infinite >= 1 or not law.masses.sum() > 0 for law, _ in parts):
        return replace(parts[0][0], lowest=0, masses=np.zeros(1), infinite=1.0)
    first, last = chernoff_window(parts, CUT)
    length = scipy.fft.next_fast_len(max(last - first + 1, *(len(law.masses) for law, _ in parts)), real=True)
    transform = np.ones(length // 2 + 1, dtype=complex)
    for law, count in parts:
        transform *= scipy.fft.rfft(law.masses, length) ** count
    wrapped = scipy.fft.irfft(transform, length)
    finite = sum(count * math.log1p(-law.infinite) if law.infinite < 1 else -math.inf for law, count in parts)
    lowest = sum(law.lowest * count for law, count in parts)
    spacing, tilt = parts[0][0].spacing, parts[0][0].tilt
    scale = sum(law.scale * count for law, count in parts)
    beyond = CUT * math.exp(min(scale - tilt * spacing * (lowest + last), 700.0))
    return LossDistribution(
        spacing=spacing,
        lowest=lowest + first,
        masses=np.roll(wrapped, -first)[: last - first + 1],
        infinite=min(beyond - math.expm1(finite), 1.0),
        tilt=tilt,
        scale=scale,
    )


def chernoff_window(parts: Sequence[tuple[LossDistribution, int]], cut: float) -> tuple[int, int]:
    """Return (first, last) step above the lowest sum, between which the sum lies except with probability `cut`
    (Chernoff's bound).
    """
    centred_losses = [_CentredLosses.of(law, count) for law, count in parts]
    middle = sum(law.count * law.mean for law in centred_losses)
    spread = math.sqrt(sum(law.count * law.variance for law in centred_losses))
    log_tail = math.log(2 / cut)
    # The first exponent is optimal for a normal distribution; above `largest` the moments overflow.
    normal, largest = math.sqrt(2 * log_tail) / spread, 600.0 / max(max(law.width for law in centred_losses), 1.0)
    exponents = np.concatenate([normal * np.array([0.2, 0.5, 0.8, 1.0, 1.3, 2.0]), largest * 4.0 ** -np.arange(6)])
    first, last = 0, int(sum(law.width * law.count for law in centred_losses))
    for exponent in exponents[exponents <= largest]:
        moments = [law.log_moments(exponent) for law in centred_losses]
        first = max(first, math.floor(middle - (sum(low for low, _ in moments) + log_tail) / exponent))
        last = min(last, math.ceil(middle + (sum(high for _, high in moments) + log_tail) / exponent))
    return first, max(last, first)


@dataclass(frozen=True, kw_only=True, eq=False)
class _CentredLosses:
    """Losses of one distribution in steps relative to their mean, and their number `count`."""

    steps: Floats
    masses: Floats
    count: int
    mean: float
    variance: float

    @classmethod
    def of(cls, law: LossDistribution, count: int) -> "_CentredLosses":
        steps = np.arange(len(law.masses), dtype=float)
        # Without @, because threads of a matrix product wait for each other on busy machines.
        mean = float((law.masses * steps).sum())
        variance = max(float((law.masses * (steps - mean) ** 2).sum()), 1e-6)
        return cls(steps=steps - mean, masses=np.maximum(law.masses, 0.0), count=count, mean=mean, variance=variance)

    @property
    def width(self) -> float:
        return len(self.masses) - 1.0

    def log_moments(self, exponent: float) -> tuple[float, float]:
        """Return the logarithms of the moment generating function of the centred sum at -exponent and at exponent."""
        growth = np.exp(exponent * self.steps)
        low, high = float((self.masses / growth).sum()), float((self.masses * growth).sum())
        return self.count * math.log(low), self.count * math.log(high)


def _running_sums(values: Floats) -> Floats:
    """Return np.cumsum computed by blocks, because rounding errors of sequential sums would exceed one round of
    `compose.pld.composition_slack`.
    """
    blocks = np.append(values, np.zeros(-len(values) % 1000)).reshape(-1, 1000).cumsum(axis=1)
    before = np.append(0.0, blocks[:-1, -1].cumsum())
    return np.asarray((before[:, None] + blocks).ravel()[: len(values)])


def convex_minorant(gammas: Floats, curve: Floats) -> Floats:
    """Return the largest convex curve that is nowhere above these points, by removing points above the chord of
    their neighbours.
    """
    kept = np.arange(len(curve))
    while True:
        slopes = np.diff(curve[kept]) / np.diff(gammas[kept])
        above = np.flatnonzero(np.diff(slopes) < 0) + 1
        if not above.size:
            return np.asarray(np.interp(gammas, gammas[kept], curve[kept]))
        kept = np.delete(kept, above)
