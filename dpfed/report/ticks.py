"""Where an axis has its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MANY_DECADES, _LINEAR_BELOW, _LEAST = 3.0, 20.0, 1.5


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From the numbers of an axis to 0 ... 1, and its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear(low: float, high: float, *, most: int = 6, whole: bool = False) -> Scale:
    """Round numbers around the data. `whole`: only whole ones."""
    if high <= low:
        room = abs(low) / 10 or 1.0
        low, high = (low - room, high + room) if low else (0.0, 1.0)
    step = _step((high - low) / (most - 1))
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(i * step for i in range(first, last + 1))
    return Scale(low=ticks[0], high=ticks[-1], ticks=ticks)


def logarithmic(low: float, high: float) -> Scale:
    """Powers of ten where the data reach over many, 1, 2 and 5 of them where over few, else round numbers.

    Numbers that are nearly the same are shown so: no axis is shorter than from 2 to 3.
    """
    if high <= low:
        low, high = low / 2, high * 2
    if high / low < _LEAST:
        wider = math.sqrt(_LEAST * low / high)
        low, high = low / wider, high * wider
    if high / low < _LINEAR_BELOW:
        inside = [tick for tick in linear(low, high, most=5).ticks if low <= tick <= high]
    else:
        within = (1.0,) if math.log10(high / low) > _MANY_DECADES else (1.0, 2.0, 5.0)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        inside = [tick for power in powers for one in within if low <= (tick := one * 10.0**power) <= high]
    room = (high / low) ** 0.04
    return Scale(low=low / room, high=high * room, ticks=tuple(inside), logarithmic=True)


def label(value: float) -> str:
    """A tick: 0.1, 20, 5,000."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2g}"
    return f"{value:,.6f}".rstrip("0").rstrip(".") or "0"


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(one * power for one in _STEPS if one * power >= least * (1 - 1e-9))
