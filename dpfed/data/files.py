"""Readers of data set files, whose content is not trusted, and the images in them.

IDX is the format of MNIST: magic number, big-endian dimensions, bytes.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import open_input
from dpfed.data.dataset import Dataset
from dpfed.errors import DataError

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [n, channels, height, width] and their labels [n]."""

_UBYTE = 0x08
LARGEST_BYTES = 2**30
"""Largest number of bytes that a file may declare: ten times the largest file of the MNIST family."""


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Context in which every error of a file's reader becomes a DataError with the file, the error and the content
    expected."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}). Expected {expected}.") from None
    except (ValueError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}). Expected {expected}.") from None
    except (LookupError, TypeError, AttributeError, MemoryError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__}). Expected {expected}.") from None


def read_idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes with `axes` dimensions, plain or gzipped (name ends in .gz).

    The file is assumed to be hostile: nothing is allocated or decompressed beyond its header's declaration, or beyond
    LARGEST_BYTES. Raises DataError naming the file if it is unreadable, has another magic number, is truncated, has
    bytes left over, or declares too many bytes.
    """
    magic = bytes([0, 0, _UBYTE, axes])
    expected = f"an IDX file of unsigned bytes in {axes} dimensions, 0x{magic.hex()}...; a gzipped one ends in .gz"
    with (
        reading(path, f"{expected}. Download it again"),
        open_input(path) as raw,
        gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file,
    ):
        header = file.read(4 + 4 * axes)
        if header[:4] != magic:
            raise ValueError(f"it starts with bytes 0x{header[:4].hex()}")
        if len(header) < 4 + 4 * axes:
            raise ValueError(f"it ends inside its header, after {len(header)} of {4 + 4 * axes} bytes")
        shape: tuple[int, ...] = struct.unpack(f">{axes}I", header[4:])
        size = math.prod(shape)
        if math.prod(max(side, 1) for side in shape) > LARGEST_BYTES:  # numpy bounds the strides of empty arrays, too
            raise ValueError(f"its header declares {shape}, {size} bytes; at most {LARGEST_BYTES} are allowed")
        pieces, missing = [], size + 1  # one byte more than declared, to detect bytes left over
        while missing and (piece := file.read(min(missing, 2**20))):
            pieces.append(piece)
            missing -= len(piece)
        if missing != 1:
            found = f"only {size + 1 - missing}" if missing else "more"
            raise ValueError(f"its header declares {size} bytes of content, {found} found")
    return np.frombuffer(b"".join(pieces), dtype=np.uint8).reshape(shape)


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
