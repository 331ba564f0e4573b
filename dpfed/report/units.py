"""Quantities as text, rounded to nearest. Guarantees are printed by `accounting.rounding` instead."""

from __future__ import annotations

import math

_BYTES = ("bytes", "kB", "MB", "GB", "TB", "PB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def percent_text(value: float | None) -> str:
    """Return a percentage: 0.8885 -> "88.85%"; a dash for None."""
    return "–" if value is None else f"{value:.2%}"


def size_text(count: float) -> str:
    """Return bytes, in powers of 1000, with three significant digits: 3884 -> "3.88 kB"."""
    value, power = float(count), 0
    while abs(value) >= 999.5 and power < len(_BYTES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.0f} {_BYTES[power]}" if not power else f"{significant_text(value)} {_BYTES[power]}"


def duration_text(seconds: float) -> str:
    """Return a duration: 9.23 -> "9.2 s"; 75 -> "1 min 15 s"; 3700 -> "1 h 2 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def significant_text(value: float, digits: int = 3) -> str:
    """Return the value with `digits` significant digits, without a power of ten below a million: 12.8929 -> "12.9"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    first = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - first)
    return f"{value:,.{decimals}f}"
