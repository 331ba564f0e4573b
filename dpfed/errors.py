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


class SecureSumAborted(RunError):
    """A secure sum with too few clients left at some step: it reveals nothing, and nothing of it may be released."""
