"""Rounding of printed numbers, to the side on which their statement stays true.

Upwards: epsilon, delta, noise to be added, probabilities of failure. Downwards: lower bounds, remaining or allowed
budget, calibrated clip norms. Not for JSON, which has the doubles themselves.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import SupportsFloat

_PLAIN = range(-4, 6)
"""Decimal exponents of the first digit for which a number is written without a power of ten."""
_CONTEXT = Context(prec=400)


def upwards(value: SupportsFloat | None, *, digits: int = 4) -> str:
    """Return the least decimal of at least `digits` places and `digits` significant digits that is not below `value`.

    Claim: float(upwards(x)) >= x for every number x, so an upper bound stays one, and a noise multiplier that is typed
    back is not smaller. A number that the digits hold exactly is written without zeros at its end: a budget of 3 is
    "3", 2.99998 is "3.0000". "inf" and "nan" unchanged; a dash for None.

    The decimal of a double is the shortest that reads back as it: a delta given as 1e-5 is "1e-05", though the double
    is a little above. Numbers from a million and below 1e-4 have a power of ten and only significant digits.

    >>> from accounting.rounding import upwards
    >>> upwards(0.63029154)
    '0.6303'
    """
    return _rounded(value, ROUND_CEILING, digits)


def downwards(value: SupportsFloat | None, *, digits: int = 4) -> str:
    """Return the largest such decimal that is not above `value`: float(downwards(x)) <= x. Format: `upwards`.

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
    shown = rounded.normalize(_CONTEXT) if rounded == exact else rounded
    if first in _PLAIN:
        return f"{shown:f}"
    mantissa, _, power = f"{shown:e}".partition("e")
    return f"{mantissa}e{int(power):+03d}"
