"""What the kinds of mechanisms have in common for a plan."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from accounting.mechanisms import SingleRelease


class RoundsOf(Protocol):
    """The rounds of a plan, as its kind of mechanism makes them; made from the plan."""

    takes: ClassVar[frozenset[str]]
    """Fields of a plan that this kind looks at, besides those that every kind has."""
    has_noise_multiplier: ClassVar[bool]
    advice: ClassVar[str]
    """Where not even one round fits."""

    def resolved(self) -> Mapping[str, Any]:
        """Fields of the plan that follow from others where they are not given. Errors: AccountingError for fields that
        do not fit each other."""
        ...

    @property
    def noise_kept(self) -> float:
        """Fraction of the noise variance asked for that is accounted."""
        ...

    def round(self, noise_multiplier: float | None) -> SingleRelease:
        """The mechanism of one round."""
        ...

    def details(self, noise_multiplier: float | None) -> Mapping[str, Any]:
        """What a budget's JSON has besides."""
        ...

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """What a reader of the epsilon should know."""
        ...
