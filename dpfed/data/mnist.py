"""Images from local files: MNIST, Fashion-MNIST, EMNIST and CIFAR.

MNIST's kin are in torchvision's layout; CIFAR-10 and CIFAR-100 in the binary version, with records of label bytes and
3,072 pixels. The 8x8 digits are in a file of this package. Nothing is downloaded.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import read_input
from dpfed.data.dataset import Dataset
from dpfed.data.files import Images, image_dataset, read_idx, reading
from dpfed.errors import DataError
from dpfed.seeds import Seeds

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
    with reading(path, expected):
        content = read_input(path, at_most=_MOST_RECORDS * record)
        if not content or len(content) % record:
            raise ValueError(f"{len(content)} bytes, not a whole number of records")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
        return rows[:, labels:].reshape(-1, *_SHAPE), rows[:, labels - 1].astype(np.int64)


_SIDE = 28
_MNIST_MOMENTS = (0.1307, 0.3081)

EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}
"""The splits of EMNIST (Cohen et al. 2017), and their numbers of classes."""


def load_mnist(root: Path) -> Dataset:
    """Return handwritten digits: 60,000 + 10,000 images [1, 28, 28] from ROOT/MNIST/raw.

    Pixels are scaled to [0, 1], then standardised by the training set's published mean 0.1307 and deviation
    0.3081 (fixed constants: nothing is computed from private data). Raises DataError.
    """
    folder = root / "MNIST" / "raw"
    return _dataset("mnist", _images(folder, "", "train"), _images(folder, "", "t10k"), 10, _MNIST_MOMENTS)


def load_fashion_mnist(root: Path) -> Dataset:
    """Return articles of clothing: 60,000 + 10,000 images [1, 28, 28] from ROOT/FashionMNIST/raw.

    As `load_mnist`, with the published mean 0.2860 and deviation 0.3530. Raises DataError.
    """
    folder = root / "FashionMNIST" / "raw"
    return _dataset("fashion-mnist", _images(folder, "", "train"), _images(folder, "", "t10k"), 10, (0.2860, 0.3530))


def load_emnist(root: Path, split: str) -> Dataset:
    """Return handwritten characters of a split of EMNIST, images [1, 28, 28] from ROOT/EMNIST/raw/emnist-SPLIT-*.

    The files store images with rows and columns swapped; here they are upright. Labels of "letters" count from 1
    in the files and from 0 here. Standardised by MNIST's constants, because EMNIST has MNIST's format.
    Raises DataError.
    """
    folder, prefix = root / "EMNIST" / "raw", f"emnist-{split}-"
    first = 1 if split == "letters" else 0
    train, test = (_upright_images(_images(folder, prefix, half), first) for half in ("train", "test"))
    return _dataset(f"emnist-{split}", train, test, EMNIST_CLASSES[split], _MNIST_MOMENTS)


def _upright_images(half: Images, first: int) -> Images:
    images, labels = half
    return images.transpose(0, 1, 3, 2), labels - first


def _dataset(name: str, train: Images, test: Images, classes: int, moments: tuple[float, float]) -> Dataset:
    mean, deviation = moments
    return image_dataset(name, [train], [test], classes=classes, means=[mean], deviations=[deviation])


def _images(folder: Path, prefix: str, half: str) -> Images:
    images, labels = _read(folder, prefix, f"{half}-images-idx3", 3), _read(folder, prefix, f"{half}-labels-idx1", 1)
    if images.shape != (len(labels), _SIDE, _SIDE):
        raise DataError(
            f"{folder}: {half} has {len(images)} images of {images.shape[1:]} pixels and {len(labels)} labels; "
            f"expected ({_SIDE}, {_SIDE}) and a label for each image. Take both files from one release."
        )
    return images[:, None], labels.astype(np.int64)


def _read(folder: Path, prefix: str, name: str, axes: int) -> NDArray[np.uint8]:
    for path in (folder / f"{prefix}{name}-ubyte", folder / f"{prefix}{name}-ubyte.gz"):
        if path.is_file():
            return read_idx(path, axes=axes)
    halves = "train,test" if prefix else "train,t10k"
    raise DataError(
        f"{folder / (prefix + name)}-ubyte: not found, nor with .gz. Expected {prefix}{{{halves}}}-"
        f"{{images-idx3,labels-idx1}}-ubyte[.gz] in {folder} (torchvision's layout). Put the four files there, or set "
        f"DPFED_DATA_DIR to the folder that holds {folder.parent.name}/raw."
    )


_TEST_SAMPLES = 359


def load_digits() -> Dataset:
    """Return handwritten digits: 1,438 + 359 images [1, 8, 8], pixels in [0, 1]. The split is fixed."""
    with (files(__package__) / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        pixels, labels = arrays["pixels"], arrays["labels"]
    inputs = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    # The labels repeat in the order 0..9, so a test half of every fifth sample would have two digits only.
    order = np.argsort(Seeds(root=0).keys("digits.test", 0, np.array([0]), (len(labels),))[0])
    test, train = np.sort(order[:_TEST_SAMPLES]), np.sort(order[_TEST_SAMPLES:])
    return Dataset(
        name="digits",
        train_inputs=inputs[train],
        train_labels=labels[train],
        test_inputs=inputs[test],
        test_labels=labels[test],
        classes=10,
    )
