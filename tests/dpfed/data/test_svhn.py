"""MATLAB files: what scipy writes comes back, and hostile ones are one error within bounded memory."""

import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from scipy.io import savemat

from dpfed.data import load
from dpfed.data.svhn import read_mat
from dpfed.errors import DataError


def half(count: int, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    return {"X": images, "y": (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]}


def write(root: Path, *, compressed: bool = True) -> None:
    (root / "SVHN").mkdir(exist_ok=True)
    for seed, (part, count) in enumerate({"train": 12, "extra": 7, "test": 5}.items()):
        savemat(root / "SVHN" / f"{part}_32x32.mat", half(count, seed), do_compression=compressed)


@pytest.mark.parametrize("compressed", [False, True])
def test_read_mat_gives_back_what_scipy_wrote(tmp_path: Path, compressed: bool) -> None:
    arrays = {
        "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "doubles": np.linspace(0, 1, 7)[:, None],
        "shorts": np.array([[-3, 400]], dtype=np.int16),
        "one": np.array([[5]], dtype=np.uint8),
        "none": np.empty((0, 3), dtype=np.uint8),
    }
    others = {"text": "words", "cells": np.array([[1, "a"]], dtype=object), "complex": np.array([[1j]])}
    savemat(tmp_path / "file.mat", arrays | others, do_compression=compressed)
    found = read_mat(tmp_path / "file.mat", set(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    for name in others:
        refused(DataError, f"no numeric array {name}", read_mat, tmp_path / "file.mat", {name})


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("extra", [False, True])
def test_svhn_is_channels_first_and_ten_is_zero(tmp_path: Path, compressed: bool, extra: bool) -> None:
    write(tmp_path, compressed=compressed)
    data = load("svhn-extra" if extra else "svhn", tmp_path)
    assert data.train_inputs.shape == (19 if extra else 12, 3, 32, 32)
    assert data.train_labels[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    source, means, deviations = half(5, 2)["X"], (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    for channel in range(3):
        expected = (source[3, 8, channel, 4] / 255 - means[channel]) / deviations[channel]
        assert data.test_inputs[4, channel, 3, 8] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    if extra:
        seen = data.train_inputs[12 + 6, 1, 20, 30] * 0.2010 + 0.4438
        assert seen == pytest.approx(half(7, 1)["X"][20, 30, 1, 6] / 255, abs=1e-5)


def test_svhn_raises_on_files_that_are_not_svhn(tmp_path: Path) -> None:
    refused(DataError, r"train_32x32.mat: not found.*housenumbers", load, "svhn", tmp_path)
    write(tmp_path)
    path = tmp_path / "SVHN" / "test_32x32.mat"
    for change, complaint in (
        ({"y": np.zeros((5, 1), dtype=np.uint8)}, "labels 1..10"),
        ({"y": np.ones((4, 1), dtype=np.uint8)}, "4 labels"),
        ({"X": np.zeros((32, 32, 3, 5))}, "float64"),
        ({"X": np.zeros((32, 32, 5), dtype=np.uint8)}, "expected bytes of shape"),
    ):
        savemat(path, half(5, 2) | change)
        refused(DataError, complaint, load, "svhn", tmp_path)


def matrix(shape: tuple[int, ...], content: bytes, *, declared: int | None = None, kind: int = 2) -> bytes:
    """An uncompressed variable X of class uint8, as the format's documentation has it."""
    dimensions = struct.pack(f"<{len(shape)}i", *shape)
    dimensions += b"\0" * (-len(dimensions) % 8)
    parts = struct.pack("<IIII", 6, 8, 9, 0) + struct.pack("<II", 5, 4 * len(shape)) + dimensions
    parts += struct.pack("<HH4s", 1, 1, b"X")
    parts += struct.pack("<II", kind, len(content) if declared is None else declared) + content
    return struct.pack("<II", 14, len(parts)) + parts


def compressed(content: bytes) -> bytes:
    packed = zlib.compress(content)
    return struct.pack("<II", 15, len(packed)) + packed


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
GOOD = matrix((2, 4), bytes(8))
HOSTILE = {
    "empty": (b"", "header"),
    "text": (b"<html>404</html>" * 20, "header"),
    "big-endian": (HEADER[:124] + b"\x01\x00MI" + GOOD, "header"),
    "hdf5": (HEADER[:124] + b"\x00\x02IM" + GOOD, "version"),
    "tag-cut": (HEADER + GOOD[:4], "inside a tag"),
    "flags-cut": (HEADER + GOOD[:14], "ends"),
    "content-cut": (HEADER + GOOD[:-3], "5 of 8 bytes"),
    "not-a-matrix": (HEADER + struct.pack("<II", 7, 0), "type 7"),
    "compressed-text": (HEADER + struct.pack("<II", 15, 4) + b"text", "incorrect header"),
    "compressed-cut": (HEADER + compressed(GOOD)[:-20], "ends"),
    "shape-too-small": (HEADER + matrix((2, 3), bytes(8)), "shape"),
    "shape-negative": (HEADER + matrix((-2, -4), bytes(8)), "shape"),
    "unknown-type": (HEADER + matrix((2, 4), bytes(8), kind=99), "type 99"),
    "declares-huge": (HEADER + matrix((2**20, 2**14), b"", declared=2**32 - 1), "at most"),
    "declares-too-much": (HEADER + matrix((2**16, 2**15 + 1), b"", declared=2**31 + 2**16), "at most 2147483648"),
    "compressed-declares-missing": (HEADER + compressed(matrix((2**16, 2**12), b"", declared=2**28)), "0 of 268435456"),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_read_mat_raises_on_hostile_content(tmp_path: Path, case: str) -> None:
    content, complaint = HOSTILE[case]
    path = tmp_path / "file.mat"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError, match=complaint) as raised:
        read_mat(path, {"X"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(raised.value)
    assert peak < 20e6


def test_a_bomb_is_inflated_only_as_far_as_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "bomb.mat"
    path.write_bytes(HEADER + compressed(GOOD + bytes(40_000_000)))
    tracemalloc.start()
    np.testing.assert_array_equal(read_mat(path, {"X"})["X"], np.zeros((2, 4)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
