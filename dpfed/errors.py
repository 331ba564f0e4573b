"""Every error that `dpfed` raises on purpose.

DpfedError
├── ConfigError    a value in a configuration, an option or an argument cannot work
├── DataError      a data set is missing, truncated or not what it says it is
├── WireError      bytes of an upload that are truncated, forged or not what was agreed
└── RunError       a run cannot go on (its folder, its ledger, its checkpoint)
    ├── RunInterrupted    it was asked to stop, and has saved its rounds
    ├── TrainingFailed    torch gave up in the middle of a round
    └── SecureSumAborted  too few clients were left: nothing of the round may be released

Each message says what was given, what is allowed, where, and what to do.
"""


class DpfedError(Exception):
    """The family: catch this to catch all of them."""


class ConfigError(DpfedError, ValueError):
    """A configuration value, command-line option or argument that cannot work."""


class DataError(DpfedError, ValueError):
    """A data set that is missing, truncated or not what it says it is."""


class WireError(DpfedError, ValueError):
    """Bytes of an upload that are truncated, damaged, forged, or not of the agreed form."""


class RunError(DpfedError, RuntimeError):
    """A run that cannot start or go on."""


class RunInterrupted(RunError):
    """A run that was asked to stop: the round it was in is finished and saved."""

    signal: int = 2
    """Number of the signal that asked: SIGINT, or SIGTERM."""


class TrainingFailed(RunError):
    """A round in which training failed: a lost GPU, no memory, a process that has died. It was not released."""


class SecureSumAborted(RunError):
    """A secure sum with too few clients left at some step: it reveals nothing, and nothing of it may be released."""
