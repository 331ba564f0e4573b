"""MNIST and Fashion-MNIST from local files in torchvision's layout. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfed.data.dataset import Dataset
from dpfed.data.idx import read_idx
from dpfed.errors import DataError

_CLASSES = 10
_SIDE = 28


def load_mnist(root: Path) -> Dataset:
    """Handwritten digits: 60,000 + 10,000 images [1, 28, 28] from ROOT/MNIST/raw.

    Pixels are scaled to [0, 1], then standardised by the training set's published mean 0.1307 and deviation
    0.3081 (fixed constants: nothing is computed from private data). Raises DataError.
    """
    return _load("mnist", root / "MNIST" / "raw", mean=0.1307, deviation=0.3081)


def load_fashion_mnist(root: Path) -> Dataset:
    """Articles of clothing: 60,000 + 10,000 images [1, 28, 28] from ROOT/FashionMNIST/raw.

    As `load_mnist`, with the published mean 0.2860 and deviation 0.3530. Raises DataError.
    """
    return _load("fashion-mnist", root / "FashionMNIST" / "raw", mean=0.2860, deviation=0.3530)


def _load(name: str, folder: Path, *, mean: float, deviation: float) -> Dataset:
    train_images, train_labels = _read_half(folder, "train")
    test_images, test_labels = _read_half(folder, "t10k")
    return Dataset(
        name=name,
        train_inputs=_standardise(train_images, mean, deviation),
        train_labels=train_labels.astype(np.int64),
        test_inputs=_standardise(test_images, mean, deviation),
        test_labels=test_labels.astype(np.int64),
        classes=_CLASSES,
    )


def _read_half(folder: Path, half: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_path = _find(folder, f"{half}-images-idx3-ubyte")
    labels_path = _find(folder, f"{half}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, axes=3), read_idx(labels_path, axes=1)
    if images.shape[1:] != (_SIDE, _SIDE):
        raise DataError(
            f"{images_path}: images of {images.shape[1:]} pixels; expected ({_SIDE}, {_SIDE}). "
            "This is another data set: check the file."
        )
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} holds {len(images)} images, {labels_path} {len(labels)} labels; the counts must "
            "agree. Take both files from one release."
        )
    return images, labels


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{folder / name}: not found, nor with .gz. Expected {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte"
        f"[.gz] in {folder} (torchvision's layout). Put the four files there, or set DPFED_DATA_DIR to the "
        f"folder that holds {folder.parent.name}/raw."
    )


def _standardise(images: NDArray[np.uint8], mean: float, deviation: float) -> NDArray[np.float32]:
    inputs = images[:, None].astype(np.float32)
    inputs /= 255
    inputs -= mean
    inputs /= deviation
    return inputs
