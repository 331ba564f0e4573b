"""Secret key under which populations are fingerprinted, in a file of the operator.

A ledger is published, and a plain hash of private data would let an attacker try out guesses of the data. Under a key
of 256 bits that stays with the operator, the fingerprint reveals only whether two runs that share the key have the same
clients.
"""

import re
import secrets
from pathlib import Path

from accounting.errors import LedgerError
from accounting.ledger import regular_file

_BYTES = 32
_HEX = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")


def fresh() -> bytes:
    """Return a new key, from the operating system."""
    return secrets.token_bytes(_BYTES)


def read(path: Path) -> bytes | None:
    """Return the key in this file; None if there is none. Errors: LedgerError."""
    try:
        with regular_file.open_input(path) as file:
            text = file.read(2 * _BYTES + 2).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error}).") from error
    if not _HEX.fullmatch(text):
        raise LedgerError(f"{path}: must hold {2 * _BYTES} hexadecimal digits, a key. Restore it from a copy.")
    return bytes.fromhex(text)


def write(path: Path, key: bytes) -> None:
    """Write the key to a file that only its owner may read. Errors: LedgerError."""
    try:
        regular_file.put(path, f"{key.hex()}\n".encode(), mode=0o600)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Nothing was charged.") from error
