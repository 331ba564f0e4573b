"""Hash chain of lines: reading detects and names the first edited, missing, repeated or reordered line.

A line is a JSON object in canonical form (sorted keys, no blanks). Its field `"chain"` is the SHA-256 hash of the
previous line's chain and the bytes of this line without `"chain"`. The hash has no key, so it detects accidents and
careless edits, but not a forger who rewrites the whole file.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from accounting.errors import EditedLedger


def chained_line(record: Mapping[str, object], previous: str) -> tuple[bytes, str]:
    """Return the line of a record, with its line end, and its chain hash."""
    content = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    chain = _chain_hash(content, previous)
    return b"".join((b"{", _chain_field(chain), content[1:], b"\n")), chain


def parsed_line(path: Path, number: int, line: bytes, previous: str) -> tuple[dict[str, object], str]:
    """Return the record and the chain hash of a line, with or without line end. Errors: EditedLedger, which names the
    line.
    """
    try:
        record = _DECODER.decode(line.decode())
        if not isinstance(record, dict):
            raise ValueError("not an object")
        chain = record.pop("chain")
    except (ValueError, KeyError, RecursionError) as error:
        raise EditedLedger(f"{path}, line {number}: not a valid ledger line ({error}).") from None
    # The bytes are hashed unchanged, so that the format of numbers in this version does not matter.
    content = line.removesuffix(b"\n").replace(_chain_field(chain), b"", 1)
    if chain != _chain_hash(content, previous):
        raise EditedLedger(
            f"{path}, line {number}: its hash does not match, so this line was edited, or one before it was removed or "
            "reordered. The epsilon of this file cannot be trusted; restore the file from a copy."
        )
    return record, chain


def _chain_hash(content: bytes, previous: str) -> str:
    return hashlib.sha256(previous.encode() + content).hexdigest()


def _chain_field(chain: object) -> bytes:
    return f'"chain":"{chain}",'.encode(errors="backslashreplace")


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite_number, parse_constant=_finite_number)
