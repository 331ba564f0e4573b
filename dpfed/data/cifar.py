"""CIFAR-10 and CIFAR-100 in the binary version: records of label bytes and 3,072 pixels. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpfed.data.dataset import Dataset
from dpfed.data.files import Images, image_dataset, read_bytes, reading

_FOLDERS = {"cifar-10": "cifar-10-batches-bin", "cifar-100": "cifar-100-binary"}
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_MOST_RECORDS = 100_000  # twice the size of the largest file
_SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def load_cifar10(root: Path) -> Dataset:
    """Return 50,000 + 10,000 colour images [3, 32, 32] in 10 classes, from ROOT/cifar-10-batches-bin.

    Pixels are scaled to [0, 1], then standardised by the published means and deviations of the training set.
    Raises DataError; torchvision's pickled copy is refused, since unpickling runs code from the file.
    """
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    return image_dataset(
        "cifar-10",
        [_read_images(root, "cifar-10", name, labels=1) for name in names],
        [_read_images(root, "cifar-10", "test_batch.bin", labels=1)],
        classes=10,
        means=(0.4914, 0.4822, 0.4465),
        deviations=(0.2470, 0.2435, 0.2616),
    )


def load_cifar100(root: Path) -> Dataset:
    """Return colour images as in `load_cifar10`, in the 100 fine classes, from ROOT/cifar-100-binary."""
    return image_dataset(
        "cifar-100",
        [_read_images(root, "cifar-100", "train.bin", labels=2)],
        [_read_images(root, "cifar-100", "test.bin", labels=2)],
        classes=100,
        means=(0.5071, 0.4865, 0.4409),
        deviations=(0.2673, 0.2564, 0.2762),
    )


def _read_images(root: Path, name: str, file: str, *, labels: int) -> Images:
    """Return images, and the last label byte of each record (in CIFAR-100 the coarse class is first)."""
    record = labels + _PIXELS
    expected = (
        f"whole records of {record} bytes. Unpack the binary version ({name}-binary.tar.gz from {_SITE}) into {root}, "
        "or set DPFED_DATA_DIR; the pickled version is not read: unpickling runs code from the file"
    )
    path = root / _FOLDERS[name] / file
    content = read_bytes(path, at_most=_MOST_RECORDS * record, expected=expected)
    with reading(path, expected):
        if not content or len(content) % record:
            raise ValueError(f"{len(content)} bytes, not a whole number of records")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
        return rows[:, labels:].reshape(-1, *_SHAPE), rows[:, labels - 1].astype(np.int64)
