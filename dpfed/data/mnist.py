"""MNIST, Fashion-MNIST and EMNIST from local files in torchvision's layout. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfed.data.dataset import Dataset
from dpfed.data.idx import read_idx
from dpfed.data.pixels import standardise
from dpfed.errors import DataError

_SIDE = 28
_MNIST_MOMENTS = (0.1307, 0.3081)

EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}
"""The splits of EMNIST (Cohen et al. 2017), and their numbers of classes."""

_Half = tuple[NDArray[np.uint8], NDArray[np.int64]]


def load_mnist(root: Path) -> Dataset:
    """Handwritten digits: 60,000 + 10,000 images [1, 28, 28] from ROOT/MNIST/raw.

    Pixels are scaled to [0, 1], then standardised by the training set's published mean 0.1307 and deviation
    0.3081 (fixed constants: nothing is computed from private data). Raises DataError.
    """
    folder = root / "MNIST" / "raw"
    return _dataset("mnist", _read(folder, "", "train"), _read(folder, "", "t10k"), 10, _MNIST_MOMENTS)


def load_fashion_mnist(root: Path) -> Dataset:
    """Articles of clothing: 60,000 + 10,000 images [1, 28, 28] from ROOT/FashionMNIST/raw.

    As `load_mnist`, with the published mean 0.2860 and deviation 0.3530. Raises DataError.
    """
    folder = root / "FashionMNIST" / "raw"
    return _dataset("fashion-mnist", _read(folder, "", "train"), _read(folder, "", "t10k"), 10, (0.2860, 0.3530))


def load_emnist(root: Path, split: str) -> Dataset:
    """Handwritten characters of a split of EMNIST, images [1, 28, 28] from ROOT/EMNIST/raw/emnist-SPLIT-*.

    The files hold images with rows and columns swapped; here they stand upright. Labels of "letters" count from 1
    in the files and from 0 here. Standardised by MNIST's constants, from which EMNIST's format was taken.
    Raises DataError.
    """
    folder, prefix = root / "EMNIST" / "raw", f"emnist-{split}-"
    first = 1 if split == "letters" else 0
    train, test = (_upright(_read(folder, prefix, half), first) for half in ("train", "test"))
    return _dataset(f"emnist-{split}", train, test, EMNIST_CLASSES[split], _MNIST_MOMENTS)


def _upright(half: _Half, first: int) -> _Half:
    images, labels = half
    return images.transpose(0, 2, 1), labels - first


def _dataset(name: str, train: _Half, test: _Half, classes: int, moments: tuple[float, float]) -> Dataset:
    mean, deviation = moments
    return Dataset(
        name=name,
        train_inputs=standardise(train[0][:, None], [mean], [deviation]),
        train_labels=train[1],
        test_inputs=standardise(test[0][:, None], [mean], [deviation]),
        test_labels=test[1],
        classes=classes,
    )


def _read(folder: Path, prefix: str, half: str) -> _Half:
    images_path = _find(folder, prefix, f"{half}-images-idx3-ubyte")
    labels_path = _find(folder, prefix, f"{half}-labels-idx1-ubyte")
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
    return images, labels.astype(np.int64)


def _find(folder: Path, prefix: str, name: str) -> Path:
    for path in (folder / f"{prefix}{name}", folder / f"{prefix}{name}.gz"):
        if path.is_file():
            return path
    halves = "train,test" if prefix else "train,t10k"
    raise DataError(
        f"{folder / (prefix + name)}: not found, nor with .gz. Expected {prefix}{{{halves}}}-"
        f"{{images-idx3,labels-idx1}}-ubyte[.gz] in {folder} (torchvision's layout). Put the four files there, or set "
        f"DPFED_DATA_DIR to the folder that holds {folder.parent.name}/raw."
    )
