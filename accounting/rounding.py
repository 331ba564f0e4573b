"""Rounding of printed numbers in the direction that keeps their statement true.

Upwards: epsilon, delta, noise to be added, probabilities of failure. Downwards: lower bounds, remaining or allowed
budget, calibrated clip norms. JSON output stores unrounded doubles.

In HTML tables of results for notebooks, every name and value is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from html import escape
from typing import SupportsFloat


def html_table(title: str, rows: Iterable[tuple[str, str]], notes: Iterable[str] = ()) -> str:
    """Return a table of names and values under a title, with notes below it."""
    body = "".join(f"<tr><th style='text-align:left'>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<table><caption>{escape(title)}</caption>{body}</table>" + (f"<ul>{items}</ul>" if items else "")


_PLAIN = range(-4, 6)
"""Decimal exponents of numbers that are written without a power of ten."""
_CONTEXT = Context(prec=400)


def upwards(value: SupportsFloat | None, *, digits: int = 4) -> str:
    """Return the least decimal of at least `digits` places and `digits` significant digits that is not below `value`.

    Claim: float(upwards(x)) >= x for every number x, so a printed upper bound is an upper bound, and a printed noise
    multiplier that is given as input is not smaller. An exactly representable number has no trailing zeros: a budget of
    3 is "3", 2.99998 is "3.0000". Infinite and nan values are "inf" and "nan"; None is a dash.

    A double counts as the shortest decimal that parses to it: a delta given as 1e-5 is "1e-05", though the double is
    slightly larger. Numbers from a million on, or below 1e-4, are written with a power of ten and only significant
    digits.

    >>> from accounting.rounding import upwards
    >>> upwards(0.63029154)
    '0.6303'
    """
    return _rounded(value, ROUND_CEILING, digits)


def downwards(value: SupportsFloat | None, *, digits: int = 4) -> str:
    """Return the largest decimal in the format of `upwards` that is not above `value`: float(downwards(x)) <= x.

    >>> from accounting.rounding import downwards
    >>> downwards(0.63029154)
    '0.6302'
    """
    return _rounded(value, ROUND_FLOOR, digits)


def _rounded(value: SupportsFloat | None, direction: str, digits: int) -> str:
    if value is None:
        return "–"
    exact = Decimal(value) if isinstance(value, int) else Decimal(repr(float(value)))
    if not exact.is_finite():
        return str(float(value))
    if not exact:
        return "0"
    first = exact.adjusted()
    last = first - digits + 1
    if first in _PLAIN:
        last = min(last, -digits)
    rounded = exact.quantize(Decimal((0, (1,), last)), rounding=direction, context=_CONTEXT)
    trimmed = rounded.normalize(_CONTEXT) if rounded == exact else rounded
    if first in _PLAIN:
        return f"{trimmed:f}"
    mantissa, _, power = f"{trimmed:e}".partition("e")
    return f"{mantissa}e{int(power):+03d}"
