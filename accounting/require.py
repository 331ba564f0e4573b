"""Domain checks of numbers. The keyword is the name in the message."""

import math
import reprlib
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypeGuard

from accounting.errors import InvalidParameter
from accounting.rounding import downwards, upwards

LARGEST_COUNT = 10**15
"""Largest number of rounds, clients or cohorts: more are a mistake, and doubles could not count them."""

SMALLEST_NOISE, LARGEST_NOISE = 1e-9, 1e9
"""Noise multipliers beyond these are no noise, or nothing but noise; squares of their inverses would overflow."""

SMALLEST_CLIP, LARGEST_CLIP = 1e-15, 1e15
"""Clip norms C beyond these do not hold in float32, whose normal numbers are from 1.2e-38 to 3.4e38.

Of at most 10^15 clients and noise multipliers z from 1e-9 to 1e9: the least noise in a share, z C / sqrt(10^15), is
above 1e-32; the most on a sum, 10 z C, and a sum of 10^15 rows are at most 1e30; C^2 is from 1e-30 to 1e30. So nothing
that is computed with C leaves the normal numbers, and rounding is relative: `dpfed.stages.clip` covers it.
"""


def shown(value: object) -> str:
    """Return the value in a message: short, whatever it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no integers of more than 4300 digits
        return "an integer of thousands of digits"


def _fail(name: str, value: object, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{name}={shown(value)}: must be {allowed}.")


def real(allowed: str, **named: object) -> float:
    """Return the one named value as a finite float; `allowed` describes the domain in the message."""
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _fail(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of a double
        number = math.inf
    if not math.isfinite(number):
        raise _fail(name, value, allowed)
    return number


def positive(**named: object) -> float:
    """Return a finite number above 0, as a Python float."""
    value = real("a finite number above 0", **named)
    if value <= 0:
        raise _fail(*next(iter(named.items())), "a finite number above 0")
    return value


def nonnegative(**named: object) -> float:
    """Return a finite number of at least 0, as a Python float."""
    value = real("a finite number of at least 0", **named)
    if value < 0:
        raise _fail(*next(iter(named.items())), "a finite number of at least 0")
    return value


def probability(**named: object) -> float:
    """Return a number in [0, 1], as a Python float."""
    value = real("a probability in [0, 1]", **named)
    if not 0 <= value <= 1:
        raise _fail(*next(iter(named.items())), "a probability in [0, 1]")
    return value


def open_probability(**named: object) -> float:
    """Return a number in (0, 1), as a Python float."""
    value = real("a number strictly between 0 and 1", **named)
    if not 0 < value < 1:
        raise _fail(*next(iter(named.items())), "a number strictly between 0 and 1")
    return value


def clip_norm(**named: object) -> float:
    """Return a clip norm that float32 holds with noise and sums, from `SMALLEST_CLIP` to `LARGEST_CLIP`."""
    allowed = f"from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, which float32 holds with noise and sums"
    value = real(allowed, **named)
    if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
        raise _fail(*next(iter(named.items())), allowed)
    return value


def count(at_least: int = 1, **named: object) -> int:
    """Return a whole number of at least `at_least`, as a Python int."""
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Integral) or not at_least <= int(value) <= LARGEST_COUNT:
        raise _fail(name, value, f"a whole number from {at_least} to {LARGEST_COUNT:.0e}")
    return int(value)


def noise_multiplier(value: object) -> float:
    """Return a noise multiplier (noise standard deviation over clip norm), as a Python float."""
    allowed = f"a finite number above 0, from {upwards(SMALLEST_NOISE)} to {downwards(LARGEST_NOISE)}"
    number = real(allowed, noise_multiplier=value)
    if not SMALLEST_NOISE <= number <= LARGEST_NOISE:
        raise _fail("noise_multiplier", value, allowed)
    return number


def one_of(allowed: Sequence[str], **named: object) -> str:
    """Return one of the `allowed` strings."""
    ((name, value),) = named.items()
    if not isinstance(value, str) or value not in allowed:
        raise _fail(name, value, f"one of {', '.join(allowed)}")
    return value


def stream(given: object) -> str:
    """Return the name of the draw of a schedule: text of at most 100 characters."""
    if not isinstance(given, str) or len(given) > 100:
        raise _fail("stream", given, "text of at most 100 characters")
    return given


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for a whole number of JSON, TOML or a caller; False for true and false."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a number of JSON, TOML or a caller; False for true and false."""
    return is_whole(value) or isinstance(value, float)
