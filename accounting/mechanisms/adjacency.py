"""Adjacency of data sets, and the sensitivity that follows from it."""

import reprlib
from enum import StrEnum

from accounting.errors import InvalidParameter


class Adjacency(StrEnum):
    """Pairs of data sets that are neighbours, for a sum of client vectors of norm at most C.

    - add-remove: one client more or less. The sum moves by at most C.
    - zero-out: one client's vector becomes zero, and so does all else that the client adds, such as its centred count
      of an adaptive clip; the number of clients stays. The sum moves by at most C.
    - replace-one: one client's vector becomes any other. The sum moves by at most 2C.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def sensitivity_in_clips(self) -> float:
        """L2 sensitivity of a sum of clipped vectors, in units of the clip norm C."""
        return 2.0 if self is Adjacency.REPLACE_ONE else 1.0

    @classmethod
    def of(cls, name: object) -> "Adjacency":
        """The adjacency of this name; an error that lists the names for any other."""
        if isinstance(name, str) and name in list(cls):
            return cls(name)
        raise InvalidParameter(f"adjacency={reprlib.repr(name)}: must be one of {', '.join(cls)}.")
