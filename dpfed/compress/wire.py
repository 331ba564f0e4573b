"""Frame around a payload's content: header with scheme, options, d and seed, and a checksum.

    magic "DPfC" (4), version (1), length of the name (1), name, length of the options (1), options,
    d (4), seed (8), the fields' bytes, CRC-32 of all before (4)        integers little-endian

23 bytes, the scheme's name, and the options that differ from defaults as JSON: about 32 bytes. The checksum detects
accidents, not forgeries; authenticity must be ensured by the transport.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from dpfed.compress.fields import Reader
from dpfed.errors import ConfigError, WireError

Option = bool | int | float | str | None

MAGIC = b"DPfC"
VERSION = 2
LARGEST_DIMENSION = 1 << 24
"""Largest d that is accepted if the receiver does not state the expected d."""

_CHECKSUM = 4


@dataclass(frozen=True, kw_only=True)
class FrameHeader:
    """Header of a payload: scheme, options other than the defaults, d, and the seed that decoding needs (else 0)."""

    name: str
    options: Mapping[str, Option]
    dimension: int
    seed: int


def write_frame(header: FrameHeader, content: bytes) -> bytes:
    """Return header, content and checksum as bytes."""
    name = header.name.encode("ascii")
    options = _options_to_bytes(header.options)
    if not 1 <= header.dimension < 1 << 32:
        raise ConfigError(f"d={header.dimension}: a payload holds from 1 to 2^32 - 1 coordinates.")
    if len(options) > 255:
        raise ConfigError(f"the options of {header.name} take {len(options)} bytes on the wire: at most 255 fit.")
    frame = b"".join(
        (
            MAGIC,
            bytes([VERSION, len(name)]),
            name,
            bytes([len(options)]),
            options,
            header.dimension.to_bytes(4, "little"),
            header.seed.to_bytes(8, "little"),
            content,
        )
    )
    return frame + zlib.crc32(frame).to_bytes(_CHECKSUM, "little")


def read_frame(message: bytes, *, dimension: int | None) -> tuple[FrameHeader, Reader]:
    """Return the header, and a reader at the content. Raise WireError unless `write_frame` could have written the
    message.

    d must equal `dimension` if that is given, else be at most LARGEST_DIMENSION, so that a forged d takes no memory.
    """
    if not isinstance(message, bytes | bytearray | memoryview):
        raise WireError(f"a message must be bytes, not {type(message).__name__}.")
    message = bytes(message)
    if len(message) < _CHECKSUM or message[: len(MAGIC)] != MAGIC:
        raise WireError(f"a message of {len(message)} bytes that does not start with {MAGIC!r}: not one of dpfed.")
    frame = message[:-_CHECKSUM]
    if zlib.crc32(frame) != int.from_bytes(message[-_CHECKSUM:], "little"):
        raise WireError(f"a message of {len(message)} bytes: its checksum is wrong; it was damaged or cut short.")
    reader = Reader(content=frame, at=len(MAGIC))
    version = reader.integer(1, "the version")
    if version != VERSION:
        raise WireError(f"a message of version {version}: this program reads version {VERSION}.")
    name = reader.take_bytes(reader.integer(1, "the name's length"), "the name")
    options = reader.take_bytes(reader.integer(1, "the options' length"), "the options")
    header = FrameHeader(
        name=name.decode("ascii", "backslashreplace"),
        options=_options_from_bytes(options),
        dimension=reader.integer(4, "d"),
        seed=reader.integer(8, "the seed"),
    )
    if dimension is not None and header.dimension != dimension:
        raise WireError(f"a message for d={header.dimension}: expected d={dimension}.")
    if not 1 <= header.dimension <= (dimension or LARGEST_DIMENSION):
        raise WireError(
            f"a message for d={header.dimension}: must be from 1 to {LARGEST_DIMENSION} unless the expected d is given "
            "(`from_bytes(..., dimension=d)`)."
        )
    return header, reader


def _options_to_bytes(options: Mapping[str, Option]) -> bytes:
    return json.dumps(options, sort_keys=True, separators=(",", ":")).encode("ascii") if options else b""


def _options_from_bytes(content: bytes) -> Mapping[str, Option]:
    if not content:
        return {}
    try:
        options = json.loads(content.decode("ascii"))
    except (ValueError, RecursionError):
        raise WireError(f"the options {content[:40]!r}: not JSON.") from None
    scalars = isinstance(options, dict) and all(
        isinstance(one, bool | int | float | str | None) for one in options.values()
    )
    if not scalars or _options_to_bytes(options) != content:
        raise WireError(f"the options {content[:40]!r}: must be one JSON object of numbers and names, in short form.")
    checked: Mapping[str, Option] = options
    return checked
