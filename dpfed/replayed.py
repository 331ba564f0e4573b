"""Marks in the code under audit whose values a replay audit compares (`dpfed.audit.replay`); without effect elsewhere.

A replay audit runs the code on data D, then on a neighbour D' with the outputs of all mechanisms frozen to those of the
first run. `mechanism` marks the code that adds noise, `outside` a value that must not depend on any client or record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Norm = Literal["l1", "l2", "linf"]
Released = TypeVar("Released")
Part = TypeVar("Part")
Ids = TypeVar("Ids", bound="NDArray[Any]")


class Replay(Protocol):
    """One of the runs of a replay audit, as the code under audit sees it."""

    def outside(self, name: str, value: object, client: int | tuple[int, int] | None = None) -> None:
        """Compare a value that is no mechanism's output."""

    def mechanism(
        self,
        name: str,
        given: object,
        noisy: Released,
        *,
        sensitivity: float | None,
        norm: Norm = "l2",
        client: int | None = None,
        step: int | None = None,
    ) -> Released:
        """Compare the input of a mechanism, and return the first run's output."""

    def reseed(self, name: str) -> None:
        """Give the global generators the same state in both runs, whatever was drawn before."""

    def randomness(self, made: Part) -> Part:
        """Return secret randomness that both runs draw alike, in place of `made`."""

    def own(self, given: Part, config: object) -> Part:
        """Return the objects of a `dpfed.run` with this run's data among them."""

    def training(self, made: Part) -> Part:
        """Return local training on what the clients of this run hold."""

    @property
    def writes_reports(self) -> bool:
        """True if this run writes its report."""

    @property
    def rounds(self) -> Any:
        """Comparison of federated rounds (`dpfed.round.Compared`)."""

    def keeps(self, path: Path) -> bool:
        """Return True for a path in the audit's own folder, which is deleted with it."""

    def drawn(self, cohort: Ids) -> Ids:
        """Return the drawn clients of a round without those that this run's data do not have."""

    def batch(self, records: Ids) -> Ids:
        """Return the drawn records of a batch without those that this run's data do not have."""


_current: Replay | None = None


def current() -> Replay | None:
    """Return the replay audit's run that this process is; None in every other run."""
    return _current


def enter(replay: Replay | None) -> None:
    """Make this process a run of a replay audit; None: an ordinary one again."""
    global _current
    _current = replay


def require_apart(*paths: str | os.PathLike[str] | None) -> None:
    """Raise ConfigError in a replay audit for files that stay: its noise is repeatable, whatever it is called."""
    for path in paths:
        if _current is not None and (path is None or not _current.keeps(Path(path))):
            raise ConfigError(
                f"{path or 'runs/'}: a replay audit makes its noise from known seeds, so that no folder or ledger of "
                "it may stay. In call(data, out), write to `out` and below it, and to no project's ledger."
            )


def outside(name: str, value: object, client: int | None = None) -> None:
    """Declare a value that must not depend on any other client's data.

    name:   for the report, and to find the same value in the other run
    value:  an array, a tensor, a number, a string, or anything with a `repr`
    client: the client that the value belongs to; None: a value of the whole run, which depends on no client

    Has no effect without a replay audit. In one, values of the same name and client are compared bit by bit, in the
    order of their declarations; only those of clients changed by the audit may differ.

    >>> import dpfed.audit
    >>> dpfed.audit.outside("update", [0.5, -0.5], client=3)
    """
    if _current is not None:
        _current.outside(name, value, client)


def mechanism(
    f: Callable[..., Released], *, sensitivity: float, norm: Norm = "l2", name: str | None = None
) -> Callable[..., Released]:
    """Return `f` as a mechanism: a function that adds noise to its first argument, and whose output is public.

    sensitivity: the largest move of the first argument by one client added or removed, in `norm`; a client whose data
                 are replaced may move it by twice that
    norm:        "l1", "l2" or "linf"
    name:        for the report; default: the function's own

    Without a replay audit it is `f`. In one, the first argument may move by the sensitivity for each client changed by
    the audit, the noise must not depend on the argument, and the second run continues with the first one's output.
    Noise from numpy's, torch's or Python's global generators, or from the operating system, is made repeatable.
    Units: sensitivity in those of the first argument.

    >>> import dpfed.audit
    >>> dpfed.audit.mechanism(lambda total: total + 0.25, sensitivity=1.0)(2.0)
    2.25
    """

    @wraps(f)
    def marked(given: object, *more: object, **named: object) -> Released:
        if _current is None:
            return f(given, *more, **named)
        called = name or str(getattr(f, "__name__", type(f).__name__))
        kept = _copied(given)
        _current.reseed(called)
        noisy = f(given, *more, **named)
        return _current.mechanism(called, kept, noisy, sensitivity=sensitivity, norm=norm)

    return marked


def _copied(value: object) -> object:
    """Return a copy of an array or a tensor, which `f` may write to; any other value as it is."""
    if isinstance(value, list | tuple):
        return [_copied(one) for one in value]
    for way in ("clone", "copy"):
        if hasattr(value, way) and hasattr(value, "dtype"):
            return getattr(value, way)()
    return value
