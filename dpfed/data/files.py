"""Readers of data set files, whose content is not trusted, and the images in them.

IDX is the format of MNIST: magic number, big-endian dimensions, bytes.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import open_input, read_input
from dpfed.data.dataset import Dataset
from dpfed.errors import DataError

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [n, channels, height, width] and their labels [n]."""

_UBYTE = 0x08
LARGEST_BYTES = 2**30
"""Largest number of bytes that a file may declare: ten times the largest file of the MNIST family."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes with `axes` dimensions, plain or gzipped (name ends in .gz).

    The file is assumed to be hostile: nothing is allocated or decompressed beyond its header's declaration, or beyond
    LARGEST_BYTES. Raises DataError naming the file if it is unreadable, has another magic number, is truncated, has
    bytes left over, or declares too many bytes.
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
    if math.prod(max(size, 1) for size in shape) > LARGEST_BYTES:  # numpy bounds the strides of empty arrays, too
        raise DataError(
            f"{path}: its header declares {shape}, {math.prod(shape)} bytes; at most {LARGEST_BYTES} are "
            "allowed. The header is damaged: download the file again."
        )
    return shape


def _read_content(file: _Readable, path: Path, size: int) -> bytes:
    pieces: list[bytes] = []
    missing = size + 1  # one byte more than declared, to detect bytes left over
    while missing and (piece := file.read(min(missing, 2**20))):
        pieces.append(piece)
        missing -= len(piece)
    if missing != 1:
        found = f"only {size + 1 - missing}" if missing else "more"
        raise DataError(f"{path}: its header declares {size} bytes of content, {found} found. Download it again.")
    return b"".join(pieces)


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """Return the whole file. Raise DataError if it cannot be read or has more than `at_most` bytes."""
    try:
        return read_input(path, at_most=at_most)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check that it is the right file, and that you may read it."
        ) from None


def image_dataset(
    name: str,
    train: Sequence[Images],
    test: Sequence[Images],
    *,
    classes: int,
    means: Sequence[float],
    deviations: Sequence[float],
) -> Dataset:
    """Return a data set of images; each half has one or several parts.

    Pixels are scaled to [0, 1]; then each channel's mean is subtracted, and the difference divided by its deviation.
    The constants are published: nothing is computed from private data.
    """
    return Dataset(
        name=name,
        train_inputs=_standardised(train, means, deviations),
        train_labels=np.concatenate([labels for _, labels in train]),
        test_inputs=_standardised(test, means, deviations),
        test_labels=np.concatenate([labels for _, labels in test]),
        classes=classes,
    )


def _standardised(parts: Sequence[Images], means: Sequence[float], deviations: Sequence[float]) -> NDArray[np.float32]:
    """Return the standardised inputs of all parts, one part at a time: SVHN's need 7.4 GB once and not twice."""
    inputs = np.empty((sum(len(images) for images, _ in parts), *parts[0][0].shape[1:]), dtype=np.float32)
    start = 0
    for images, _ in parts:
        part = inputs[start : start + len(images)]
        part[...] = images
        part /= 255
        part -= np.array(means, dtype=np.float32)[:, None, None]
        part /= np.array(deviations, dtype=np.float32)[:, None, None]
        start += len(images)
    return inputs
