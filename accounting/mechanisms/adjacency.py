"""Adjacency of data sets, and the sensitivity that follows from it."""

import reprlib
from dataclasses import asdict
from enum import StrEnum
from typing import Any, ClassVar, Protocol

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


class Unsampled(Protocol):
    """One release for given participants, without sampling.

    A class with a `kind` is a dataclass with a field `adjacency`, and is read from ledger lines of this kind. `account`
    is its `mechanisms.kinds.Account`, or the location "module:NAME" of one, because modules of accounts load the
    numerics.
    """

    kinds: ClassVar[dict[str, type[Any]]] = {}
    """Class of each kind, by name."""
    kind: ClassVar[str]
    account: ClassVar[object] = None
    words: ClassVar[str] = "noise"
    """Short description for reports."""
    sums: ClassVar[bool] = True
    """True if only a sum over the cohort is visible, so that sampling can hide the participants."""

    adjacency: Adjacency

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            known = Unsampled.kinds.setdefault(cls.kind, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise InvalidParameter(
                    f"kind={cls.kind!r} of {cls.__name__}: is that of {known.__module__}.{known.__name__}, as which "
                    "ledger lines are read. Use another name."
                )
            Unsampled.kinds[cls.kind] = cls

    def __hash__(self) -> int:
        return hash(self.kind)

    @property
    def mu(self) -> float | None:
        """Sensitivity over the standard deviation of the noise on the sum; None without such noise."""
        return None

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Return the standard deviation of the noise that the account assumes, in the units of `clip_norm`."""
        ...

    @property
    def overflow(self) -> float:
        """Probability of a failure that is added to delta for each release: 0."""
        return 0.0

    def check_sampling(self, name: str, cohort: int | None) -> None:
        """Raise UnsupportedMechanism for a sampler that the account of this release does not cover: none."""
        return

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a ledger line."""
        fields: dict[str, object] = asdict(self)  # type: ignore[call-overload]  # a dataclass
        return {"kind": self.kind, **fields, "adjacency": str(fields["adjacency"])}
