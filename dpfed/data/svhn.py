"""Street View House Numbers, the cropped digits, from local .mat files. Nothing is downloaded.

MATLAB's level 5 files are read as far as SVHN needs them: numeric arrays, compressed or not. A file is assumed to be
hostile: nothing is allocated or decompressed beyond the file's own size and LARGEST_BYTES. scipy 1.17.1 does not ensure
this. It ends the process (SIGSEGV) on an element of an unknown type, takes 268 MB for a file of 178 bytes that declares
them, and inflates 300 MB behind an array of 8 bytes; calling whosmat first prevents none of these.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import open_input
from dpfed.data.dataset import Dataset
from dpfed.data.files import Images, image_dataset, reading
from dpfed.errors import DataError

_MEANS, _DEVIATIONS = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

LARGEST_BYTES = 2**31
"""Largest number of bytes of a variable: SVHN's largest has 1.63e9."""

_HEADER = 128
_COMPRESSED, _MATRIX = 15, 14
_INT8, _INT32, _UINT32 = 1, 5, 6
_STORED = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""Name in numpy for each type of a data element."""
_NUMERIC = range(6, 16)
"""Classes of arrays that hold numbers: double .. uint64."""


def load_svhn(root: Path, *, extra: bool = False) -> Dataset:
    """Return photographed digits [3, 32, 32] from ROOT/SVHN/{train,test}_32x32.mat: 73,257 + 26,032.

    extra: True: with the 531,131 further training images from extra_32x32.mat, which Fed-SMP uses; the data then take
    7.4 GB of memory, and 9.1 GB while they are read. The files call digit 0 "10"; here it is 0. Pixels are scaled to
    [0, 1], then standardised by published means and deviations. Raises DataError.
    """
    folder = root / "SVHN"
    train = [_read_images(folder / f"{part}_32x32.mat") for part in (("train", "extra") if extra else ("train",))]
    name, test = "svhn-extra" if extra else "svhn", _read_images(folder / "test_32x32.mat")
    return image_dataset(name, train, [test], classes=10, means=_MEANS, deviations=_DEVIATIONS)


def _read_images(path: Path) -> Images:
    if not path.is_file():
        raise DataError(
            f"{path}: not found. Put train_32x32.mat, test_32x32.mat (and extra_32x32.mat for 'svhn-extra') from "
            f"http://ufldl.stanford.edu/housenumbers into {path.parent}, or set DPFED_DATA_DIR to the folder that "
            "holds SVHN."
        )
    arrays = read_mat(path, {"X", "y"})
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if images.shape != (32, 32, 3, len(labels)) or images.dtype != np.uint8:
        raise DataError(
            f"{path}: X is {images.dtype} of shape {images.shape} with {len(labels)} labels; expected bytes of shape "
            "(32, 32, 3, N) and N labels. Take the cropped digits (format 2)."
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: y must hold the labels 1..10 only. The file is damaged: download it again.")
    pixels: NDArray[np.uint8] = images.transpose(3, 2, 0, 1).view(np.uint8)
    return pixels, labels.astype(np.int64) % 10


class _ByteSource(Protocol):
    def read(self, size: int, /) -> bytes | bytearray: ...


def read_mat(path: Path, names: set[str]) -> dict[str, NDArray[np.generic]]:
    """Return the numeric arrays called `names` in a .mat file of version 5, little-endian, axes in MATLAB's order.

    Other variables are skipped. Raises DataError naming the file if it is unreadable, of another version, truncated,
    damaged or too large, or if a name is missing.
    """
    found: dict[str, NDArray[np.generic]] = {}
    with reading(path, "an undamaged MATLAB 5 file. Download it again"), open_input(path) as file:
        header = file.read(_HEADER)
        if len(header) < _HEADER or header[124:] != b"\x00\x01IM":
            raise ValueError(f"its header ends with {header[124:]!r}, not with version 0x0100 and 'IM'")
        for element in _read_elements(file):
            name, array = _read_array(element, names)
            if array is not None:
                found[name] = array
    if missing := names - set(found):
        raise DataError(f"{path}: has no numeric array {', '.join(sorted(missing))}. Check that it is the right file.")
    return found


def _read_elements(file: BinaryIO) -> Iterator[_ByteSource]:
    """Yield the top-level variables in order; the file moves to the next variable even if one is not read."""
    while tag := file.read(8):
        kind, size = _unpack_pair(tag)
        start = file.tell()
        if kind == _COMPRESSED:
            yield _CompressedElement(file, size)
        elif kind == _MATRIX:
            file.seek(start - len(tag))  # an uncompressed variable is read from its tag on
            yield file
        else:
            raise ValueError(f"an element of type {kind}")
        file.seek(start + size)


class _CompressedElement:
    """A compressed element, which is inflated only as far as it is read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left, self._inflate = file, size, zlib.decompressobj()

    def read(self, size: int) -> bytearray:
        content = bytearray()
        while len(content) < size:
            fed = self._inflate.unconsumed_tail
            if not fed:
                fed = self._file.read(min(self._left, 2**20))
                self._left -= len(fed)
            piece = self._inflate.decompress(fed, size - len(content))
            if not fed and not piece:
                break
            content += piece
        return content


def _read_array(source: _ByteSource, names: set[str]) -> tuple[str, NDArray[np.generic] | None]:
    kind, _ = _unpack_pair(source.read(8))
    if kind != _MATRIX:
        raise ValueError(f"a variable of type {kind}")
    flags = _read_part(source, _UINT32, at_most=8)
    sides = _read_part(source, _INT32, at_most=128)
    shape = struct.unpack(f"<{len(sides) // 4}i", sides[: 4 * (len(sides) // 4)])
    name = _read_part(source, _INT8, at_most=64).decode("latin-1")
    # 0x08 marks complex numbers
    if name not in names or len(flags) != 8 or flags[0] not in _NUMERIC or flags[1] & 0x08:
        return name, None
    stored, size, small = _read_tag(source)
    width = np.dtype(_STORED.get(stored, "V1")).itemsize
    spanned = width * math.prod(max(side, 1) for side in shape)  # numpy bounds the strides of empty arrays, too
    fits = math.prod(shape) * width == size and spanned <= LARGEST_BYTES
    if stored not in _STORED or min(shape, default=-1) < 0 or not fits:
        raise ValueError(
            f"{name} has shape {shape} and {size} bytes of type {stored}; at most {LARGEST_BYTES} are read"
        )
    content = (small or _read_exactly(source, size))[:size]
    return name, np.frombuffer(content, dtype=_STORED[stored]).reshape(shape, order="F")


def _read_part(source: _ByteSource, expected: int, *, at_most: int) -> bytes | bytearray:
    """Return the content of the next part, which must have the expected type and at most `at_most` bytes."""
    kind, size, small = _read_tag(source)
    if kind != expected or size > at_most:
        raise ValueError(
            f"a part of type {kind} and {size} bytes; expected type {expected} and at most {at_most} bytes"
        )
    return small[:size] if small else _read_exactly(source, size + -size % 8)[:size]


def _read_tag(source: _ByteSource) -> tuple[int, int, bytes | bytearray]:
    """Return type, number of bytes, and the content itself if it is short enough to be in the tag's eight bytes."""
    tag = _read_exactly(source, 8)
    kind, size = _unpack_pair(tag)
    if kind >> 16:
        if kind >> 16 > 4:
            raise ValueError("a small part of more than four bytes")
        return kind & 0xFFFF, kind >> 16, tag[4:]
    return kind, size, b""


def _unpack_pair(content: bytes | bytearray) -> tuple[int, int]:
    if len(content) < 8:
        raise ValueError("it ends inside a tag")
    first, second = struct.unpack("<II", content)
    return first, second


def _read_exactly(source: _ByteSource, size: int) -> bytes | bytearray:
    content = source.read(size)
    if len(content) < size:
        raise ValueError(f"it ends after {len(content)} of {size} bytes of a part")
    return content
