"""EMNIST: six splits, images turned upright, letters counted from 0."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from dpfed.data import load
from dpfed.errors import DataError

from .test_mnist import encode

CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}


def write(root: Path, split: str, highest: int, suffix: str = "") -> None:
    """Images whose third pixel of the first stored row is white."""
    raw = root / "EMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    images = np.zeros((4, 28, 28), dtype=np.uint8)
    images[:, 0, 2] = 255
    first = 1 if split == "letters" else 0
    labels = np.array([first, first + 1, highest, first], dtype=np.uint8)
    for half in ("train", "test"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = gzip.compress(encode(array)) if suffix else encode(array)
            (raw / f"emnist-{split}-{half}-{kind}-ubyte{suffix}").write_bytes(content)


@pytest.mark.parametrize("split", sorted(CLASSES))
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_every_split_stands_upright_and_counts_from_zero(tmp_path: Path, split: str, suffix: str) -> None:
    highest = CLASSES[split] - (0 if split == "letters" else 1)
    write(tmp_path, split, highest, suffix)
    data = load(f"emnist-{split}", tmp_path)
    assert data.classes == CLASSES[split]
    assert data.train_labels.tolist() == [0, 1, CLASSES[split] - 1, 0]
    assert data.train_inputs.shape == (4, 1, 28, 28)
    white = np.argwhere(data.test_inputs[0, 0] > 0)
    assert white.tolist() == [[2, 0]]  # row and column are the other way round than in the file


def test_a_label_that_the_split_does_not_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "letters", 27)
    refused(DataError, r"'emnist-letters'.*not among the 26 declared", load, "emnist-letters", tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    refused(DataError, r"emnist-balanced-train-images.*train,test.*EMNIST/raw", load, "emnist-balanced", tmp_path)
