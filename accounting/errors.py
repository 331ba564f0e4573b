"""Errors that `accounting` raises on purpose.

AccountingError
├── InvalidParameter       a number outside its domain
├── UnsupportedMechanism   no valid bound is known for this combination
├── CalibrationError       no noise multiplier or number of rounds meets the target
├── MissingLibrary         a required library is not installed
├── ContradictoryBounds    a lower bound exceeds epsilon: one of the two is wrong
└── LedgerError            a ledger cannot be trusted
    ├── TruncatedLedger    the last line was not written to its end
    ├── EditedLedger       a line is not the one that was written
    ├── LedgerVersionError written by a version that this one cannot read
    └── BudgetSpent        a release would exceed the remaining budget of a project

Each message names what was given, what is allowed, and what to do.
"""


class AccountingError(Exception):
    """Base class of all errors of `accounting`."""


class InvalidParameter(AccountingError, ValueError):
    """Number outside its domain."""


class UnsupportedMechanism(AccountingError, ValueError):
    """Combination of mechanism, sampling, adjacency and accountant without a known valid bound."""


class CalibrationError(AccountingError, ValueError):
    """Privacy target that no noise multiplier, or no number of rounds, meets."""


class MissingLibrary(AccountingError):
    """Required library that is not installed."""


class ContradictoryBounds(AccountingError):
    """Proven lower bound above the epsilon of the same mechanism: neither bound may be stated."""


class LedgerError(AccountingError):
    """Ledger that cannot be trusted or written."""


class TruncatedLedger(LedgerError):
    """Last line of a ledger that was not written to its end."""


class EditedLedger(LedgerError):
    """Line of a ledger that was changed after it was written."""


class LedgerVersionError(LedgerError):
    """Ledger written by a version of the library that this version cannot read."""


class BudgetSpent(LedgerError):
    """Release that would exceed the remaining budget of the project: it must not be made."""
