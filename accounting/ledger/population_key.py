"""Secret key under which populations are fingerprinted, in a file of the operator.

A ledger is published, and a plain hash of private data would let an attacker try out guesses of the data. Under a key
of 256 bits that stays with the operator, the fingerprint reveals only whether two runs that share the key have the same
clients.
"""

import secrets
from pathlib import Path

from accounting.errors import LedgerError
from accounting.ledger import regular_file


def fresh() -> bytes:
    """Return a new key, from the operating system."""
    return secrets.token_bytes(32)


def read(path: Path) -> bytes | None:
    """Return the key in this file; None if there is none. Errors: LedgerError."""
    text = regular_file.read_digits(path, at_fault="must hold 64 hexadecimal digits, a key")
    return None if text is None else bytes.fromhex(text)


def write(path: Path, key: bytes) -> None:
    """Write the key to a file that only its owner may read. Errors: LedgerError."""
    try:
        regular_file.put(path, f"{key.hex()}\n".encode(), mode=0o600)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Nothing was charged.") from error
