"""The MNIST family is read from torchvision's layout, whole or not at all; the IDX reader refuses everything else."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from dpfed.data import load
from dpfed.data.files import read_idx
from dpfed.errors import DataError

REAL = os.environ.get("DPFED_DATA_DIR")
FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def encode(array: np.ndarray, magic: int = 0x08) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, magic, array.ndim, *array.shape) + array.tobytes()


def write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(array))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for folder in FOLDERS.values():
        for half, count in (("train", 20), ("t10k", 10)):
            raw = tmp_path / folder / "raw"
            write(raw / f"{half}-images-idx3-ubyte", generator.integers(0, 256, (count, 28, 28), dtype=np.uint8))
            write(raw / f"{half}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8))
    return tmp_path


@pytest.mark.parametrize(("name", "black"), [("mnist", -0.1307 / 0.3081), ("fashion-mnist", -0.2860 / 0.3530)])
def test_load_standardises_by_the_published_constants(root: Path, name: str, black: float) -> None:
    images = np.zeros((20, 28, 28), dtype=np.uint8)
    images[0] = 255
    write(root / FOLDERS[name] / "raw" / "train-images-idx3-ubyte", images)
    data = load(name, root)
    assert data.train_inputs.shape == (20, 1, 28, 28)
    assert data.train_inputs.dtype == np.float32
    assert data.train_inputs.min() == pytest.approx(black, rel=1e-6)
    assert data.train_inputs.max() == pytest.approx(black * (1 - 1 / (0.1307 if name == "mnist" else 0.2860)), rel=1e-5)
    assert data.test_labels.tolist() == list(range(10))


def test_load_takes_the_root_from_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_DATA_DIR", str(root))
    np.testing.assert_array_equal(load("mnist").train_inputs, load("mnist", root).train_inputs)


def test_load_raises_on_a_missing_folder_with_the_layout_expected(tmp_path: Path) -> None:
    refused(DataError, r"not found.*train,t10k.*torchvision.*DPFED_DATA_DIR.*MNIST/raw", load, "mnist", tmp_path)


def test_load_raises_without_any_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPFED_DATA_DIR", raising=False)
    refused(DataError, r"no folder was given.*'digits' needs no files", load, "fashion-mnist")


@pytest.mark.parametrize(
    ("name", "array", "complaint"),
    [
        ("train-images-idx3-ubyte", np.zeros((19, 28, 28), np.uint8), "19 images.*20 labels"),
        ("train-images-idx3-ubyte", np.zeros((20, 8, 8), np.uint8), r"expected \(28, 28\)"),
        ("train-labels-idx1-ubyte", np.full(20, 10, np.uint8), "not among the 10 declared classes"),
        ("t10k-labels-idx1-ubyte", np.zeros(60_000, np.uint8), "10 images.*60000 labels"),
    ],
)
def test_load_raises_on_files_that_do_not_fit(root: Path, name: str, array: np.ndarray, complaint: str) -> None:
    write(root / "MNIST" / "raw" / name, array)
    refused(DataError, complaint, load, "mnist", root)


@pytest.mark.skipif(not REAL, reason="DPFED_DATA_DIR is not set: the real files are not here")
@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("name", list(FOLDERS))
def test_real_files_have_the_published_moments(name: str) -> None:
    if not (Path(REAL or "") / FOLDERS[name]).is_dir():
        pytest.skip(f"DPFED_DATA_DIR has no {FOLDERS[name]}")
    data = load(name)
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    assert data.train_inputs.mean(dtype=np.float64) == pytest.approx(0, abs=1e-3)
    assert data.train_inputs.std(dtype=np.float64) == pytest.approx(1, abs=1e-3)
    assert np.bincount(data.train_labels).min() > 5000


ARRAY = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)


@pytest.mark.parametrize("shape", [(0,), (7,), (5, 4, 3), (2, 0, 3)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_read_idx_returns_what_was_written(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(encode(array)) if suffix else encode(array))
    np.testing.assert_array_equal(read_idx(path, axes=len(shape)), array)


HOSTILE = {
    "empty": (b"", "starts with bytes"),
    "text": (b"<html>404</html>", "starts with bytes"),
    "not-bytes": (encode(ARRAY, magic=0x0D), "starts with bytes"),
    "gzip-without-suffix": (gzip.compress(encode(ARRAY), mtime=0), "gzipped one ends in .gz"),
    "axes": (encode(ARRAY.reshape(5, 12)), "3 dimensions"),
    "header-cut": (encode(ARRAY)[:9], "ends inside its header"),
    "byte-short": (encode(ARRAY)[:-1], "only 59 found"),
    "byte-over": (encode(ARRAY) + b"x", "more found"),
    "declares-huge": (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "at most 1073741824"),
    "declares-all-missing": (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**20, 2**5, 2**5), "only 0 found"),
}


@pytest.mark.parametrize(("content", "complaint"), HOSTILE.values(), ids=HOSTILE)
def test_read_idx_raises_on_hostile_content(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint) as raised:
        read_idx(path, axes=3)
    assert str(path) in str(raised.value)


def test_read_idx_stops_decompressing_at_the_declared_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(encode(ARRAY) + bytes(5_000_000)))
    refused(DataError, "declares 60 bytes of content, more found", read_idx, path, axes=3)


@pytest.mark.parametrize("cut", [5, 15, 30])
def test_read_idx_raises_on_damaged_gzip(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(encode(ARRAY))[:cut])
    refused(DataError, "cannot be read", read_idx, path, axes=3)


def test_read_idx_raises_on_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        refused(DataError, "cannot be read", read_idx, path, axes=1)
