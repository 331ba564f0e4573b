"""Domain checks of numbers. A number is given as a keyword argument, whose name appears in the error message."""

import math
import operator
import reprlib
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import TypeGuard, TypeVar

from accounting.errors import InvalidParameter
from accounting.rounding import downwards, upwards

T = TypeVar("T")

LARGEST_COUNT = 10**15
"""Largest allowed number of rounds or clients. Larger numbers are mistakes; integers above 2^53 are not exact in
doubles.
"""

SMALLEST_NOISE, LARGEST_NOISE = 1e-9, 1e9
"""Smallest and largest allowed noise multiplier. Beyond them there is no noise, or no signal, and intermediate squares
would overflow.
"""

SMALLEST_PROBABILITY = 1e-300
"""Smallest delta or other probability above 0: its products with shares and counts are not 0 in float64."""

SMALLEST_CLIP, LARGEST_CLIP = 1e-15, 1e15
"""Smallest and largest allowed clip norm C, for arithmetic in float32, whose normal numbers are from 1.2e-38 to 3.4e38.

With at most 10^15 clients and noise multipliers z from 1e-9 to 1e9, the least noise in a share, z C / sqrt(10^15), is
above 1e-32. The most noise on a sum, 10 z C, and a sum of 10^15 rows are at most 1e30; C^2 is from 1e-30 to 1e30. So
every number computed with C is a normal number with a relative rounding error, which `dpfed.stages.clip` covers.
"""


def short_repr(value: object) -> str:
    """Return a short representation of any value, for an error message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python converts no integer of more than 4300 digits to text
        return "an integer of thousands of digits"


def plain(value: object) -> object:
    """Return a number of numpy, torch, decimal or fractions as an int or a float; any other value unchanged.

    Whole numbers are those with `__index__`; arrays and tensors must have no dimension. Containers are unchanged.
    """
    if isinstance(value, bool | int | str | bytes) or value is None:
        return value
    if getattr(value, "dtype", None) is not None and str(getattr(value, "dtype", "")).endswith("bool"):
        return bool(value) if getattr(value, "ndim", 1) == 0 else value
    if not hasattr(value, "__float__") or getattr(value, "ndim", 0) != 0:
        return value
    for convert in (operator.index, float):
        try:
            return convert(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError, OverflowError):
            continue
    return value


def _domain_error(name: str, value: object, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{name}={short_repr(value)}: must be {allowed}.")


def real(allowed: str, **named: object) -> float:
    """Return the value of the one keyword argument as a finite float. `allowed`: the domain, as the error message
    describes it.
    """
    ((name, given),) = named.items()
    value = plain(given)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _domain_error(name, given, allowed)
    try:
        number = float(value)
    except OverflowError:  # an int beyond the range of a double
        number = math.inf
    if not math.isfinite(number):
        raise _domain_error(name, value, allowed)
    return number


def _number(allowed: str, is_allowed: Callable[[float], bool]) -> Callable[..., float]:
    """Return the check of one keyword argument, which returns a Python float."""

    def check(**named: object) -> float:
        value = real(allowed, **named)
        if not is_allowed(value):
            raise _domain_error(*next(iter(named.items())), allowed)
        return value

    return check


positive = _number("a finite number above 0", lambda value: value > 0)
nonnegative = _number("a finite number of at least 0", lambda value: value >= 0)
probability = _number("a probability in [0, 1]", lambda value: 0 <= value <= 1)
fraction = _number("a fraction in [0, 1)", lambda value: 0 <= value < 1)
open_probability = _number(
    f"a number strictly between 0 and 1, and at least {SMALLEST_PROBABILITY:g}",
    lambda value: SMALLEST_PROBABILITY <= value < 1,
)
clip_norm = _number(
    f"from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, which float32 holds with noise and sums",
    lambda value: SMALLEST_CLIP <= value <= LARGEST_CLIP,
)
"""Check of a clip norm: float32 can represent its noise and sums."""


def count(at_least: int = 1, **named: object) -> int:
    """Return a whole number of at least `at_least`, as a Python int."""
    ((name, given),) = named.items()
    value = plain(given)
    if isinstance(value, bool) or not isinstance(value, Integral) or not at_least <= int(value) <= LARGEST_COUNT:
        raise _domain_error(name, given, f"a whole number from {at_least} to {LARGEST_COUNT:.0e}")
    return int(value)


def noise_multiplier(value: object) -> float:
    """Return a noise multiplier (noise standard deviation over clip norm), as a Python float."""
    allowed = f"a finite number above 0, from {upwards(SMALLEST_NOISE)} to {downwards(LARGEST_NOISE)}"
    return _number(allowed, lambda number: SMALLEST_NOISE <= number <= LARGEST_NOISE)(noise_multiplier=value)


def one_of(allowed: Sequence[str], **named: object) -> str:
    """Return one of the `allowed` strings."""
    ((name, value),) = named.items()
    if not isinstance(value, str) or value not in allowed:
        raise _domain_error(name, value, f"one of {', '.join(allowed)}")
    return value


def replace_fields(instance: object, check: Callable[..., object], *names: str) -> None:
    """Replace fields of a frozen dataclass by their values as `check(name=value)` returns them."""
    for name in names:
        object.__setattr__(instance, name, check(**{name: getattr(instance, name)}))


def or_none(check: Callable[..., T]) -> Callable[..., T | None]:
    """Return a check that also accepts None."""

    def checked(**named: object) -> T | None:
        [value] = named.values()
        return None if value is None else check(**named)

    return checked


def stream_name(given: object) -> str:
    """Return a valid stream name, which identifies one draw of a schedule: text of at most 100 characters."""
    if not isinstance(given, str) or len(given) > 100:
        raise _domain_error("stream", given, "text of at most 100 characters")
    return given


def is_whole(value: object) -> TypeGuard[int]:
    """Return True if the value is an integer; False for a Boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return True if the value is an integer or a float; False for a Boolean."""
    return is_whole(value) or isinstance(value, float)
