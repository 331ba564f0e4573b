"""Secret key for fingerprints of populations, in a file of the operator.

A ledger may be published, and an unkeyed hash of private data would let an attacker test guesses of the data. With a
256-bit key that only the operator has, the fingerprint reveals only whether two runs with the same key have the same
clients.
"""

import secrets
from pathlib import Path

from accounting.errors import LedgerError
from accounting.ledger import regular_file


def new_key() -> bytes:
    """Return a new random key from the operating system."""
    return secrets.token_bytes(32)


def read(path: Path) -> bytes | None:
    """Return the key in this file; None if the file does not exist. Errors: LedgerError."""
    text = regular_file.read_digits(path, at_fault="must hold 64 hexadecimal digits, a key")
    return None if text is None else bytes.fromhex(text)


def write(path: Path, key: bytes) -> None:
    """Write the key to a file that only its owner may read. Errors: LedgerError."""
    try:
        regular_file.replace_content(path, f"{key.hex()}\n".encode(), mode=0o600)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Nothing was charged.") from error
