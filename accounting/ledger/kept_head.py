"""Last hash of a ledger's chain, kept in a file beside it: a ledger that was cut at the end of a line is found.

PATH.head is written after every append, so the ledger may be ahead of it (a crash between the two), never behind. It
finds a ledger that was cut or replaced alone, not one whose head was replaced with it.
"""

from pathlib import Path

from accounting.errors import LedgerError
from accounting.ledger import regular_file
from accounting.ledger.file import Ledger


def path_of(ledger: Path) -> Path:
    """Return the path of the head of the ledger at this path."""
    return ledger.with_name(f"{ledger.name}.head")


def read(ledger: Path) -> str | None:
    """Return the stored head, or None. Read it before the ledger, which others may lengthen. Errors: LedgerError."""
    return regular_file.read_digits(path_of(ledger), at_fault="holds no hash of a ledger's line")


def write(ledger: Path, head: str) -> None:
    """Store this head, forced to the disk. Errors: LedgerError."""
    path = path_of(ledger)
    try:
        regular_file.put(path, f"{head}\n".encode())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error}). Nothing was released; free space or fix the folder, then resume."
        ) from error


def is_head(text: str) -> bool:
    """Return True if this may be the hash of a line."""
    return regular_file.DIGITS.fullmatch(text) is not None


def entries_after(ledger: Ledger, head: str) -> int:
    """Return the number of entries after the line of this hash. Errors: LedgerError if the ledger has no such line."""
    follow = ledger.entries_after(head)
    if follow is None:
        raise LedgerError(
            f"{ledger.path}: has no line of hash {head[:12]}...: lines up to it were changed or cut off, or it is the "
            "head of another ledger. Restore the file from a copy."
        )
    return follow


def check(ledger: Ledger, head: str | None, *, needed: bool) -> None:
    """Raise LedgerError unless the ledger has the line of this head; without a head, only if it is `needed`."""
    path = path_of(ledger.path)
    if head is None:
        if needed:
            raise LedgerError(f"{path}: is gone, so lines of {ledger.path} may be, too. Restore both from a copy.")
    elif ledger.entries_after(head) is None:
        raise LedgerError(
            f"{ledger.path}: has no line of hash {head[:12]}..., which {path.name} says was its last one. Lines were "
            "cut off, or the file is another one: what was spent is not all there. Restore it from a copy."
        )
