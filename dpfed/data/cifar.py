"""CIFAR-10 and CIFAR-100 in the binary version: records of label bytes and 3,072 pixels. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpfed.data.dataset import Dataset
from dpfed.data.files import Images, image_dataset, read_bytes
from dpfed.errors import DataError

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_MOST_RECORDS = 100_000  # twice the size of the largest file
_SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def load_cifar10(root: Path) -> Dataset:
    """Return 50,000 + 10,000 colour images [3, 32, 32] in 10 classes, from ROOT/cifar-10-batches-bin.

    Pixels are scaled to [0, 1], then standardised by the published means and deviations of the training set.
    Raises DataError; torchvision's pickled copy is refused, since unpickling runs code from the file.
    """
    folder = _find_folder(root, "cifar-10-batches-bin", pickled="cifar-10-batches-py", archive="cifar-10-binary.tar.gz")
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    return image_dataset(
        "cifar-10",
        [_read_images(folder / name, labels=1) for name in names],
        [_read_images(folder / "test_batch.bin", labels=1)],
        classes=10,
        means=(0.4914, 0.4822, 0.4465),
        deviations=(0.2470, 0.2435, 0.2616),
    )


def load_cifar100(root: Path) -> Dataset:
    """Return colour images as in `load_cifar10`, in the 100 fine classes, from ROOT/cifar-100-binary."""
    folder = _find_folder(root, "cifar-100-binary", pickled="cifar-100-python", archive="cifar-100-binary.tar.gz")
    return image_dataset(
        "cifar-100",
        [_read_images(folder / "train.bin", labels=2)],
        [_read_images(folder / "test.bin", labels=2)],
        classes=100,
        means=(0.5071, 0.4865, 0.4409),
        deviations=(0.2673, 0.2564, 0.2762),
    )


def _find_folder(root: Path, name: str, *, pickled: str, archive: str) -> Path:
    folder = root / name
    if folder.is_dir():
        return folder
    found = ""
    if (root / pickled).is_dir():
        found = f" {root / pickled} is the pickled version, which is not read: unpickling runs code from the file."
    raise DataError(
        f"{folder}: not found.{found} Unpack the binary version ({archive} from {_SITE}) into {root}, or set "
        f"DPFED_DATA_DIR to the folder that holds {name}."
    )


def _read_images(path: Path, *, labels: int) -> Images:
    """Return images, and the last label byte of each record (in CIFAR-100 the coarse class is first)."""
    record = labels + _PIXELS
    content = read_bytes(path, at_most=_MOST_RECORDS * record)
    if not content or len(content) % record:
        raise DataError(
            f"{path}: {len(content)} bytes; must be a whole number of records of {record} bytes. The file is "
            "truncated or not the binary version: unpack the archive again."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return rows[:, labels:].reshape(-1, *_SHAPE), rows[:, labels - 1].astype(np.int64)
