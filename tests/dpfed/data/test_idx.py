"""The IDX reader gives back what was written and refuses everything else."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from dpfed.data.files import read_idx
from dpfed.errors import DataError


def encode(array: np.ndarray, magic: int = 0x08) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, magic, array.ndim, *array.shape) + array.tobytes()


ARRAY = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)


@pytest.mark.parametrize("shape", [(0,), (7,), (5, 4, 3), (2, 0, 3)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_read_idx_returns_what_was_written(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(encode(array)) if suffix else encode(array))
    np.testing.assert_array_equal(read_idx(path, axes=len(shape)), array)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "starts with bytes"),
        (b"<html>404</html>", "starts with bytes"),
        (encode(ARRAY, magic=0x0D), "starts with bytes"),
        (gzip.compress(encode(ARRAY), mtime=0), "gzipped one ends in .gz"),
        (encode(ARRAY.reshape(5, 12)), "3 dimensions"),
        (encode(ARRAY)[:9], "ends inside its header"),
        (encode(ARRAY)[:-1], "only 59 found"),
        (encode(ARRAY) + b"x", "more found"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "at most 1073741824"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**20, 2**5, 2**5), "only 0 found"),
    ],
    ids=[
        "empty",
        "text",
        "not-bytes",
        "gzip-without-suffix",
        "axes",
        "header-cut",
        "byte-short",
        "byte-over",
        "declares-huge",
        "declares-all-missing",
    ],
)
def test_read_idx_raises_on_hostile_content(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint) as raised:
        read_idx(path, axes=3)
    assert str(path) in str(raised.value)


def test_read_idx_stops_decompressing_at_the_declared_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(encode(ARRAY) + bytes(50_000_000)))
    refused(DataError, "declares 60 bytes of content, more found", read_idx, path, axes=3)


@pytest.mark.parametrize("cut", [5, 15, 30])
def test_read_idx_raises_on_damaged_gzip(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(encode(ARRAY))[:cut])
    refused(DataError, "cannot be read", read_idx, path, axes=3)


def test_read_idx_raises_on_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        refused(DataError, "cannot be read", read_idx, path, axes=1)
