"""Street View House Numbers, the cropped digits, from local .mat files. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfed.data.dataset import Dataset
from dpfed.data.mat import read_mat
from dpfed.data.pixels import standardise
from dpfed.errors import DataError

_MEANS, _DEVIATIONS = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

_Half = tuple[NDArray[np.uint8], NDArray[np.int64]]


def load_svhn(root: Path, *, extra: bool = False) -> Dataset:
    """Photographed digits [3, 32, 32] from ROOT/SVHN/{train,test}_32x32.mat: 73,257 + 26,032.

    extra: 531,131 further training images from extra_32x32.mat, as Fed-SMP has them; the data take 7.4 GB of memory
    then, and 9.1 while they are read. The files call digit 0 "10"; here it is 0. Pixels are scaled to [0, 1], then
    standardised by published means and deviations. Raises DataError.
    """
    folder = root / "SVHN"
    train = [_read(folder / f"{part}_32x32.mat") for part in (("train", "extra") if extra else ("train",))]
    test_images, test_labels = _read(folder / "test_32x32.mat")
    labels = np.concatenate([labels for _, labels in train])
    inputs = np.empty((len(labels), 3, 32, 32), dtype=np.float32)
    start = 0
    for images, _ in train:
        standardise(images, _MEANS, _DEVIATIONS, out=inputs[start : start + len(images)])
        start += len(images)
    return Dataset(
        name="svhn-extra" if extra else "svhn",
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=standardise(test_images, _MEANS, _DEVIATIONS),
        test_labels=test_labels,
        classes=10,
    )


def _read(path: Path) -> _Half:
    if not path.is_file():
        raise DataError(
            f"{path}: not found. Put train_32x32.mat, test_32x32.mat (and extra_32x32.mat for 'svhn-extra') from "
            f"http://ufldl.stanford.edu/housenumbers into {path.parent}, or set DPFED_DATA_DIR to the folder that "
            "holds SVHN."
        )
    arrays = read_mat(path, {"X", "y"})
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if (
        images.ndim != 4
        or images.shape[:3] != (32, 32, 3)
        or images.dtype != np.uint8
        or images.shape[3] != len(labels)
    ):
        raise DataError(
            f"{path}: X is {images.dtype} of shape {images.shape} with {len(labels)} labels; expected bytes of shape "
            "(32, 32, 3, N) and N labels. Take the cropped digits (format 2)."
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: y must hold the labels 1..10 only. The file is damaged: download it again.")
    pixels: NDArray[np.uint8] = images.transpose(3, 2, 0, 1).view(np.uint8)
    return pixels, labels.astype(np.int64) % 10
