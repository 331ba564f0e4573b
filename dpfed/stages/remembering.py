"""What is carried of single clients from round to round: said by who does it, and refused where no account covers it.

An account of single rounds rests on the bound of this round's rows. Where something of a client's earlier rounds is
added to them (error feedback, local momentum that stays), that bound no longer bounds what its data can change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, Protocol, runtime_checkable

from torch import Tensor

from dpfed.errors import ConfigError


@runtime_checkable
class Remembering(Protocol):
    """A stage, or whoever trains clients, that says whether it remembers anything of them between rounds."""

    @property
    def remembers_clients(self) -> bool: ...


@runtime_checkable
class CoversMemory(Protocol):
    """A private stage that says whether its charge is for clients that are remembered. None that comes with dpfed."""

    @property
    def covers_memory(self) -> bool: ...


def remembers_clients(part: object) -> bool:
    """Whether it says so. Who says nothing remembers nothing, and finds no memory in a private round (`NoMemory`)."""
    return isinstance(part, Remembering) and part.remembers_clients


def covers_memory(private: object) -> bool:
    """Whether its account says so."""
    return isinstance(private, CoversMemory) and private.covers_memory


class NoMemory(dict[str, Tensor]):
    """`Round.memory` of a private round whose account covers none: nothing can be put in."""

    def _refuse(self, *given: object, **more: object) -> NoReturn:
        raise ConfigError(
            f"memory of round to round with [privacy] ({', '.join(map(str, given[:1]))}): no account of single rounds "
            "covers what a stage remembers of clients. Let the stage say remembers_clients = True and run it without "
            "[privacy], or let it forget."
        )

    __setitem__ = setdefault = update = __ior__ = _refuse


def memory_of(private: object, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stages of a round find in memory. `private`: the stage that is charged, None without one."""
    return dict(kept) if private is None or covers_memory(private) else NoMemory(kept)
