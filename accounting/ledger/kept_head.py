"""Head file beside a ledger: it stores the hash of the last line, so that missing last lines are detected.

PATH.head is written after every append. After a crash between the two writes, the ledger may have lines beyond the
head, but never lacks the head's line. The check detects a truncated or replaced ledger, unless the head was replaced as
well.
"""

from pathlib import Path

from accounting.errors import LedgerError
from accounting.ledger import regular_file
from accounting.ledger.file import Ledger


def path_of(ledger: Path) -> Path:
    """Return the path of the head file of a ledger."""
    return ledger.with_name(f"{ledger.name}.head")


def read(ledger: Path) -> str | None:
    """Return the stored head; None if there is no head file. It must be read before the ledger, to which other
    processes may append.
    Errors: LedgerError.
    """
    return regular_file.read_digits(path_of(ledger), at_fault="holds no hash of a ledger's line")


def write(ledger: Path, head: str) -> None:
    """Store this head durably. Errors: LedgerError."""
    path = path_of(ledger)
    try:
        regular_file.replace_content(path, f"{head}\n".encode())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error}). Nothing was released; free space or fix the folder, then resume."
        ) from error


def is_head(text: str) -> bool:
    """Return True if the text has the format of a hash."""
    return regular_file.DIGITS.fullmatch(text) is not None


def entries_after(ledger: Ledger, head: str) -> int:
    """Return the number of entries after the line with this hash. Errors: LedgerError if no line has it."""
    later_entries = ledger.entries_after(head)
    if later_entries is None:
        raise LedgerError(
            f"{ledger.path}: has no line of hash {head[:12]}...: earlier lines were changed or are missing, or the "
            "hash belongs to another ledger. Restore the file from a copy."
        )
    return later_entries


def check(ledger: Ledger, head: str | None, *, needed: bool) -> None:
    """Raise LedgerError if the ledger lacks the line of this head, or if the head is missing and `needed`."""
    path = path_of(ledger.path)
    if head is None:
        if needed:
            raise LedgerError(
                f"{path}: the head is missing, so lines of {ledger.path} may be missing, too. Restore both from a copy."
            )
    elif ledger.entries_after(head) is None:
        raise LedgerError(
            f"{ledger.path}: has no line of hash {head[:12]}..., which {path.name} names as its last line. Lines are "
            "missing, or the ledger was replaced, so releases may be missing. Restore it from a copy."
        )
