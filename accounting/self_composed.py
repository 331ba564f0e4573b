"""One loss law composed with itself by the fast Fourier transform, and the epsilon of the result."""

import math
from dataclasses import dataclass

import numpy as np

from accounting.half_lines import Floats

_CUT = 1e-15  # the mass that the ends of a composition may lose; it counts as an infinite loss


@dataclass(frozen=True, kw_only=True, eq=False)
class LossLaw:
    """Masses of the losses `spacing` (lowest + 0, 1, 2, ...), and the mass of an infinite loss."""

    spacing: float
    lowest: int
    masses: Floats
    infinite: float

    def repeated(self, count: int) -> "LossLaw":
        """The law of the sum of `count` independent losses.

        Both ends are cut where Chernoff's bound leaves at most _CUT. What is beyond wraps around in the transform, and
        is charged as an infinite loss besides. Direction of error: upper bound but for the rounding of the transform,
        about 1e-16 a composition, which is the caller's to charge (`accounting.pld.composition_slack`).
        """
        if count == 1:
            return self
        from scipy import fft

        first, last = self._ends(count)
        length = fft.next_fast_len(max(last - first + 1, len(self.masses)), real=True)
        wrapped = fft.irfft(fft.rfft(self.masses, length) ** count, length)
        return LossLaw(
            spacing=self.spacing,
            lowest=self.lowest * count + first,
            masses=np.roll(wrapped, -first)[: last - first + 1],
            infinite=_CUT - math.expm1(count * math.log1p(-self.infinite)) if self.infinite < 1 else 1.0,
        )

    def _ends(self, count: int) -> tuple[int, int]:
        """Steps above count times `lowest` between which all but _CUT of the sum lies: Chernoff's bound."""
        steps = np.arange(len(self.masses), dtype=float)
        # Not by @: the threads of a matrix product wait for each other, long where cores are busy.
        mean = float((self.masses * steps).sum())
        spread = math.sqrt(max(float((self.masses * (steps - mean) ** 2).sum()), 1e-6))
        wanted = math.log(2 / _CUT)
        # A normal law would need the first exponent; beyond `largest` the moments overflow.
        normal, largest = math.sqrt(2 * wanted / count) / spread, 600.0 / max(steps[-1], 1.0)
        near = np.concatenate([normal * np.array([0.2, 0.5, 0.8, 1.0, 1.3, 2.0]), largest * 4.0 ** -np.arange(6)])
        first, last = 0, (len(self.masses) - 1) * count
        for exponent in near[near <= largest]:
            growth = np.exp(exponent * (steps - mean))
            for sign, factors in ((-1.0, 1.0 / growth), (1.0, growth)):
                moment = float((self.masses * factors).sum())
                bound = count * mean + sign * (count * math.log(moment) + wanted) / exponent
                if sign > 0:
                    last = min(last, math.ceil(bound))
                else:
                    first = max(first, math.floor(bound))
        return first, max(last, first)

    def smallest_epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with sum over losses l of (1 - e^(epsilon - l))+ <= delta; infinite if there is none.

        Between two losses delta is A - e^epsilon B with A the mass above and B = sum of e^-l over it, so the answer is
        log((A - delta)/B) in the first stretch from the right where it exceeds delta.
        """
        if self.infinite > delta:
            return math.inf
        losses = self.spacing * (self.lowest + np.arange(len(self.masses), dtype=float))[::-1]
        masses = np.maximum(self.masses[::-1], 0.0)
        above = self.infinite + _running_sums(masses)
        anchor = losses[min(int(np.searchsorted(above, delta)), len(losses) - 1)]  # delta(epsilon) <= above: not below
        near = losses > max(anchor - 600.0, 0.0)  # for exponents that do not overflow
        losses, above = losses[near], above[near]
        if not len(losses):
            return 0.0
        discounted = _running_sums(masses[: len(losses)] * np.exp(anchor - losses))
        over = np.flatnonzero(above - np.exp(np.minimum(losses - anchor, 0.0)) * discounted > delta)
        if over.size:
            k = int(over[0]) - 1  # losses fall from left to right here
        elif losses[-1] > 1.5 * self.spacing:
            return float(losses[-1])  # far enough below all that counts
        else:
            k = len(losses) - 1
        if above[k] <= delta:
            return 0.0
        return max(0.0, float(anchor) + math.log((above[k] - delta) / discounted[k]))


def _running_sums(values: Floats) -> Floats:
    """np.cumsum by blocks: terms one after the other lose more than `accounting.pld.composition_slack` of one round."""
    blocks = np.append(values, np.zeros(-len(values) % 1000)).reshape(-1, 1000).cumsum(axis=1)
    before = np.append(0.0, blocks[:-1, -1].cumsum())
    return np.asarray((before[:, None] + blocks).ravel()[: len(values)])
