"""Marks in audited code for the values that a replay audit (`dpfed.audit.replay`) compares; no effect in other runs.

A replay audit runs the code on data D, then on a neighbour D' with the outputs of all mechanisms frozen to those of
the first run. `mechanism` marks code that adds noise; `outside` marks a value that must not depend on any client or
record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from accounting import require
from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Norm = Literal["l1", "l2", "linf"]
Adjacency = Literal["add-remove", "replace-one"]
NoiseStd = float | Callable[..., float]
"""Standard deviation of the noise in each coordinate: a number, or a function of the call's arguments."""
Released = TypeVar("Released")
Part = TypeVar("Part")
Ids = TypeVar("Ids", bound="NDArray[Any]")


class Replay(Protocol):
    """One of the two runs of a replay audit: its interface for the code under audit."""

    def outside(self, name: str, value: object, client: int | tuple[int, int] | None = None) -> None:
        """Compare a value that is not the output of a mechanism."""

    def mechanism(
        self,
        name: str,
        given: object,
        noisy: Released,
        *,
        sensitivity: float | None,
        norm: Norm = "l2",
        client: int | None = None,
        adjacency: Adjacency = "add-remove",
    ) -> Released:
        """Compare the input of a mechanism, and return the mechanism's output in the first run."""

    def test_noise(self, name: str, f: Callable[[], object], given: object, std: float) -> None:
        """Test that a mechanism's noise has the stated size; `f` calls the mechanism on `given` again."""

    def made_run_folder(self, path: Path) -> None:
        """Note that this process has made a run folder, whose operator's files are not compared."""

    def reseed(self, name: str) -> None:
        """Set the global generators to one state, equal in both runs, whatever was drawn before."""

    def randomness(self, made: Part) -> Part:
        """Return secret randomness with equal draws in both runs, in place of `made`."""

    def own(self, given: Part, config: object) -> Part:
        """Return the objects given to `dpfed.run`, with the data replaced by this run's data."""

    def training(self, made: Part) -> Part:
        """Return local training on the records that clients have in this run."""

    @property
    def writes_reports(self) -> bool:
        """True if this run writes its report."""

    @property
    def rounds(self) -> Any:
        """Comparison of federated rounds (`dpfed.round.RoundComparison`)."""

    def is_temporary_path(self, path: Path) -> bool:
        """Return True for a path in the audit's own folder, which is deleted with it."""

    def drawn(self, cohort: Ids, number: int) -> Ids:
        """Return the drawn clients of round `number` without those that are absent from this run's data."""

    def batch(self, records: Ids) -> Ids:
        """Return the drawn records of a batch without those that are absent from this run's data."""


_current: Replay | None = None


def current_replay() -> Replay | None:
    """Return the run of a replay audit that this process executes; None outside replay audits."""
    return _current


def enter_replay(replay: Replay | None) -> None:
    """Make this process execute a run of a replay audit; None ends the audit."""
    global _current
    _current = replay


@contextmanager
def without_replay() -> Iterator[None]:
    """Context in which a replay audit compares nothing: code on synthetic clients, with a number of calls that depends
    on the speed of the machine.
    """
    replay = _current
    enter_replay(None)
    try:
        yield
    finally:
        enter_replay(replay)


def require_apart(*paths: str | os.PathLike[str] | None) -> None:
    """Raise ConfigError in a replay audit for files outside its folder: its noise is always repeatable."""
    for path in paths:
        if _current is not None and (path is None or not _current.is_temporary_path(Path(path))):
            raise ConfigError(
                f"{path or 'runs/'}: a replay audit makes its noise from known seeds, so none of its folders or "
                "ledgers may stay. In call(data, out), write to `out` and below it, and to no project's ledger."
            )


def outside(name: str, value: object, client: int | None = None) -> None:
    """Declare a value that must not depend on any other client's data.

    name:   name in the report, by which the value is matched between the two runs
    value:  an array, a tensor, a number, a string, or anything with a `repr`
    client: the client that the value belongs to; None: a value of the whole run, which depends on no client

    Has no effect outside a replay audit. In an audit, values with equal name and client are compared bit by bit, in the
    order of their declarations. Only values of clients changed by the audit may differ.

    >>> import dpfed.audit
    >>> dpfed.audit.outside("update", [0.5, -0.5], client=3)
    """
    if _current is not None:
        _current.outside(name, value, client)


def mechanism(
    f: Callable[..., Released],
    *,
    sensitivity: float,
    norm: Norm = "l2",
    std: NoiseStd | None = None,
    adjacency: Adjacency = "add-remove",
    name: str | None = None,
) -> Callable[..., Released]:
    """Return `f` marked as a mechanism: a function that adds noise to its first argument, with a public output.

    sensitivity: largest change of the first argument by one client added or removed, in `norm`; replacing the data of
                 a client may change the argument by twice the sensitivity
    norm:        "l1", "l2" or "linf"
    std:         stated standard deviation of the noise in each coordinate, a number or a function of the call's
                 arguments; an audit then tests by repeated calls that the noise is not smaller
    adjacency:   "replace-one" if the sensitivity is for a replaced client
    name:        name in the report; default: the name of `f`

    Outside a replay audit the result behaves as `f`. In an audit, the first argument may change by the sensitivity for
    each client changed by the audit, and the noise must not depend on the argument. The second run continues with the
    first run's output. Noise from the global generators of numpy, torch or Python, or from the operating system, is
    made repeatable.
    Units: sensitivity in units of the first argument. Errors: InvalidParameter for an unknown norm or adjacency, and
    for a sensitivity that is no finite number of at least 0.

    >>> import dpfed.audit
    >>> dpfed.audit.mechanism(lambda total: total + 0.25, sensitivity=1.0)(2.0)
    2.25
    """
    require.nonnegative(sensitivity=sensitivity)
    require.one_of(get_args(Norm), norm=norm)
    require.one_of(get_args(Adjacency), adjacency=adjacency)

    @wraps(f)
    def with_replay_hook(given: object, *more: object, **named: object) -> Released:
        if _current is None:
            return f(given, *more, **named)
        called = name or str(getattr(f, "__name__", type(f).__name__))
        kept = _copy_of(given)
        _current.reseed(called)
        noisy = f(given, *more, **named)
        if std is not None:
            size = std(kept, *more, **named) if callable(std) else std
            _current.test_noise(called, lambda: f(_copy_of(kept), *more, **named), kept, size)
        return _current.mechanism(called, kept, noisy, sensitivity=sensitivity, norm=norm, adjacency=adjacency)

    return with_replay_hook


def _copy_of(value: object) -> object:
    """Return a copy of an array or a tensor, which `f` may write to; any other value is returned unchanged."""
    if isinstance(value, list | tuple):
        return [_copy_of(one) for one in value]
    for way in ("clone", "copy"):
        if hasattr(value, way) and hasattr(value, "dtype"):
            return getattr(value, way)()
    return value
