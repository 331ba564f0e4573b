"""Every error that `dpfed` raises on purpose.

DpfedError
├── ConfigError    a value in a configuration, an option or an argument cannot work
├── DataError      a data set is missing, truncated or not what it says it is
├── WireError      bytes of an upload that are truncated, forged or not in the agreed format
└── RunError       a run cannot start or continue (because of its folder, its ledger or its checkpoint)
    ├── RunInterrupted    the run received a signal to stop, and has saved its finished rounds
    ├── TrainingFailed    training raised an error in the middle of a round
    └── SecureSumAborted  too few clients remained: nothing of the round may be released

Each message says what was given, what is allowed, where, and what to do.
"""

import difflib
import re
from collections.abc import Iterable


class DpfedError(Exception):
    """Base class of all errors that `dpfed` raises on purpose."""


class ConfigError(DpfedError, ValueError):
    """A configuration value, command-line option or argument that cannot work."""


class DataError(DpfedError, ValueError):
    """A data set that is missing, truncated or not in the format that its name or header states."""


class WireError(DpfedError, ValueError):
    """Bytes of an upload that are truncated, damaged, forged, or not in the agreed format."""


class RunError(DpfedError, RuntimeError):
    """A run that cannot start or continue."""


class RunInterrupted(RunError):
    """A run that received a signal to stop: the round in progress was finished and saved."""

    signal: int = 2
    """Number of the signal received: SIGINT, or SIGTERM."""


class TrainingFailed(RunError):
    """A round in which training failed (GPU lost, out of memory, process died). Nothing of the round was released."""


class GroupTooLarge(TrainingFailed):
    """No memory for the moves of all clients that are trained together; a round then trains half as many."""


class SecureSumAborted(RunError):
    """A secure sum with too few clients left at some step: it reveals nothing, and nothing of it may be released."""


_ALIKE = 0.6


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'clip_norm'?" for the end of a message; empty if no known name is close."""
    found = nearest_name(name, known)
    return "" if found is None else f" Did you mean {found!r}?"


CUSTOM = " A custom one must be in a file that --load names."


def require_name(problem: str, name: str, known: Iterable[str], hint: str = "") -> None:
    """Raise ConfigError, with the problem, the known names and the nearest of them, unless `name` is known."""
    names = list(known)
    if name not in names:
        raise ConfigError(f"{problem} {', '.join(names) or 'none'}.{did_you_mean(name, names)}{hint}")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to the given one, or None.

    The order of preference: a known name that differs in hyphens and capitals only, one that begins with the given
    name, one that contains it, and one that contains its parts between hyphens. Otherwise the known name with the most
    similar letters, if they are similar enough.
    """
    wanted = _plain_name(name)
    names = sorted(known, key=lambda one: (len(one), one))
    for fits in (str.__eq__, str.startswith, str.__contains__):
        for one in names:
            if len(wanted) > 1 and fits(_plain_name(one), wanted):
                return one
    parts = [_plain_name(part) for part in re.split(r"[-_. ]", name) if len(_plain_name(part)) > 1]
    for one in names:
        if len(parts) > 1 and re.search(".*".join(parts), _plain_name(one)):
            return one
    plain = {_plain_name(one): one for one in reversed(names)}
    close = difflib.get_close_matches(wanted, plain, n=1, cutoff=_ALIKE)
    return plain[close[0]] if close else None


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
