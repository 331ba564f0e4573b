"""Lines chained by hashes: an edited, missing, repeated or reordered line is found, and the first one is named.

A line is a JSON object in canonical form (sorted keys, no blanks), with the hash as `"chain"`: SHA-256 over the chain
of the line before and over the line's bytes without `"chain"`. The hash has no key: it finds accidents and careless
edits, not a forger who rewrites the whole file.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from accounting.errors import EditedLedger


def sealed(record: Mapping[str, object], previous: str) -> tuple[bytes, str]:
    """Return the line to write, with its end, and its chain."""
    content = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    chain = _chain(content, previous)
    return b"".join((b"{", _seal(chain), content[1:], b"\n")), chain


def opened(path: Path, number: int, line: bytes, previous: str) -> tuple[dict[str, object], str]:
    """Return the record of a line, with or without its end, and its chain. Errors: EditedLedger, which names the
    line.
    """
    try:
        record = _DECODER.decode(line.decode())
        if not isinstance(record, dict):
            raise ValueError("not an object")
        chain = record.pop("chain")
    except (ValueError, KeyError, RecursionError) as error:
        raise EditedLedger(f"{path}, line {number}: not a line that this package wrote ({error}).") from None
    # The bytes are hashed as they are: nothing depends on how numbers would be written today.
    content = line.removesuffix(b"\n").replace(_seal(chain), b"", 1)
    if chain != _chain(content, previous):
        raise EditedLedger(
            f"{path}, line {number}: its hash does not match, so this line was edited, or one before it was removed or "
            "reordered. The epsilon of this file cannot be trusted; restore the file from a copy."
        )
    return record, chain


def _chain(content: bytes, previous: str) -> str:
    return hashlib.sha256(previous.encode() + content).hexdigest()


def _seal(chain: object) -> bytes:
    return f'"chain":"{chain}",'.encode(errors="backslashreplace")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
