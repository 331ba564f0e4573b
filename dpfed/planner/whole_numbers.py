"""Integer options of the command line: a fraction is refused, not rounded."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter, Token


def parse_whole(kind: object, tokens: Sequence[Token]) -> int:
    """Return the integer in a text such as 7, 7.0 or 1e6. ValueError for anything else."""
    (text,) = (token.value for token in tokens)
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (number := float(text)).is_integer() and abs(number) < 1 << 53:  # text such as 1e6
            return int(number)
    raise ValueError(f"{text!r} is no integer")


WholeNumber = Annotated[int, Parameter(converter=parse_whole)]
MaybeWholeNumber = Annotated[int | None, Parameter(converter=parse_whole)]
