"""Every error that `accounting` raises on purpose.

AccountingError
├── InvalidParameter       a number outside its domain
├── UnsupportedMechanism   no valid bound is known for this combination
├── CalibrationError       no noise multiplier or number of rounds meets the target
├── ContradictoryBounds    a lower bound exceeds epsilon: one of the two is wrong
└── LedgerError            a ledger cannot be trusted
    ├── TruncatedLedger    the last line was not written to its end
    ├── EditedLedger       a line is not the one that was written
    ├── LedgerVersionError written by an unknown version
    └── BudgetSpent        a release would cost more than a project has left

Each message says what was given, what is allowed, and what to do.
"""


class AccountingError(Exception):
    """The family: catch this to catch all of them."""


class InvalidParameter(AccountingError, ValueError):
    """A number outside its domain."""


class UnsupportedMechanism(AccountingError, ValueError):
    """No valid bound is known for this combination of mechanism, sampling, adjacency and accountant."""


class CalibrationError(AccountingError, ValueError):
    """No noise multiplier, or no number of rounds, meets the target."""


class ContradictoryBounds(AccountingError):
    """A proven lower bound above the epsilon of the same mechanism: nothing may be stated."""


class LedgerError(AccountingError):
    """A ledger that cannot be trusted or written."""


class TruncatedLedger(LedgerError):
    """The last line of a ledger was not written to its end."""


class EditedLedger(LedgerError):
    """A line of a ledger is not the line that was written."""


class LedgerVersionError(LedgerError):
    """A ledger written by a version that this one cannot read."""


class BudgetSpent(LedgerError):
    """A release that would cost more than the project has left: it must not be made."""
