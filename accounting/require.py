"""Domain checks of numbers. The keyword is the name that the message shows."""

import math
from numbers import Integral, Real

from accounting.errors import InvalidParameter


def _fail(name: str, value: object, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{name}={value!r}: must be {allowed}.")


def real(allowed: str, **named: object) -> float:
    """The one named value as a finite float; `allowed` describes the domain in the message."""
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise _fail(name, value, allowed)
    return float(value)


def positive(**named: object) -> float:
    """A finite number above 0, as a Python float."""
    value = real("a finite number above 0", **named)
    if value <= 0:
        raise _fail(*next(iter(named.items())), "a finite number above 0")
    return value


def nonnegative(**named: object) -> float:
    """A finite number of at least 0, as a Python float."""
    value = real("a finite number of at least 0", **named)
    if value < 0:
        raise _fail(*next(iter(named.items())), "a finite number of at least 0")
    return value


def probability(**named: object) -> float:
    """A number in [0, 1], as a Python float."""
    value = real("a probability in [0, 1]", **named)
    if not 0 <= value <= 1:
        raise _fail(*next(iter(named.items())), "a probability in [0, 1]")
    return value


def open_probability(**named: object) -> float:
    """A number in (0, 1), as a Python float."""
    value = real("a number strictly between 0 and 1", **named)
    if not 0 < value < 1:
        raise _fail(*next(iter(named.items())), "a number strictly between 0 and 1")
    return value


def count(at_least: int = 1, **named: object) -> int:
    """A whole number of at least `at_least`, as a Python int."""
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise _fail(name, value, f"a whole number of at least {at_least}")
    return int(value)
