"""Adjacency of data sets, and the sensitivity that follows from it."""

import reprlib
from enum import StrEnum

from accounting.errors import InvalidParameter


class Adjacency(StrEnum):
    """Neighbouring datasets, for a sum of client vectors of L2 norm at most C.

    - add-remove: one client is added or removed. The sum moves by at most C.
    - zero-out: one client's vector becomes zero, and so does everything else the client adds, such as its centred count
      for an adaptive clip. The number of clients does not change. The sum moves by at most C.
    - replace-one: one client's vector becomes any other. The sum moves by at most 2C.

    >>> Adjacency.REPLACE_ONE.sensitivity_in_clips
    2.0
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
        """Return the adjacency of this name. Errors: InvalidParameter for an unknown name; the message lists the known
        ones.
        """
        if isinstance(name, str) and name in list(cls):
            return cls(name)
        raise InvalidParameter(f"adjacency={reprlib.repr(name)}: must be one of {', '.join(cls)}.")
