"""The IDX format of MNIST: magic number, big-endian dimensions, bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import open_input
from dpfed.errors import DataError

_UBYTE = 0x08
LARGEST_BYTES = 2**30
"""No file may declare more than this: ten times the largest of the MNIST family."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes with `axes` dimensions, plain or gzipped (name ends in .gz).

    The file is taken as hostile: nothing is allocated or decompressed beyond what its header declares, nor
    beyond LARGEST_BYTES. Raises DataError naming the file when it is unreadable, has another magic number,
    is truncated, has bytes left over, or declares too much.
    """
    try:
        with open_input(path) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            shape = _read_shape(file, path, axes)
            content = _read_content(file, path, math.prod(shape))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected an IDX file. Download it again.") from error
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read_shape(file: _Readable, path: Path, axes: int) -> tuple[int, ...]:
    header = file.read(4 + 4 * axes)
    expected = bytes([0, 0, _UBYTE, axes])
    if header[:4] != expected:
        raise DataError(
            f"{path}: starts with bytes 0x{header[:4].hex()}; an IDX file of unsigned bytes in {axes} "
            f"dimensions starts with 0x{expected.hex()}. Check that this is the right file, and that a "
            "gzipped one ends in .gz."
        )
    if len(header) < 4 + 4 * axes:
        raise DataError(
            f"{path}: ends inside its header, after {len(header)} of {4 + 4 * axes} bytes. Download it again."
        )
    shape: tuple[int, ...] = struct.unpack(f">{axes}I", header[4:])
    if math.prod(max(size, 1) for size in shape) > LARGEST_BYTES:  # an empty array, too, has strides
        raise DataError(
            f"{path}: its header declares {shape}, {math.prod(shape)} bytes; at most {LARGEST_BYTES} are "
            "allowed. The header is damaged: download the file again."
        )
    return shape


def _read_content(file: _Readable, path: Path, size: int) -> bytes:
    pieces: list[bytes] = []
    missing = size + 1  # one more than declared, to see whether bytes are left over
    while missing and (piece := file.read(min(missing, 2**20))):
        pieces.append(piece)
        missing -= len(piece)
    if missing != 1:
        found = f"only {size + 1 - missing}" if missing else "more"
        raise DataError(f"{path}: its header declares {size} bytes of content, {found} found. Download it again.")
    return b"".join(pieces)
